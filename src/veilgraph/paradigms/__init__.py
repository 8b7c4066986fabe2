"""The ways to train together: one package each."""
