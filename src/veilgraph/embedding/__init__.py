"""Embeddings to publish: keep one attribute and the graph, hide another; with the attacks that say how well."""
