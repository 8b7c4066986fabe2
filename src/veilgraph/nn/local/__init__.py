"""A holder's local models: message passing over its own edges, a model a file, with its settings (VFGNN 3.3)."""
