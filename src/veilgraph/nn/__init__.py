"""The split network: local models, combine strategies, server layers, head."""
