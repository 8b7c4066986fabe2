"""Train a graph neural network together across organisations that share customers but not data."""
