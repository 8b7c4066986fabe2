"""How the holders' local embeddings become one: a strategy a file, with its settings (VFGNN 3.4)."""
