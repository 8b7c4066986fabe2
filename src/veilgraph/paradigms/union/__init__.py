"""Sealed training over everybody's own nodes, and edges between nodes of different holders."""
