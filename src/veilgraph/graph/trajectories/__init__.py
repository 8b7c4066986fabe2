"""People who walk through scenes that cameras record, by social forces, with known truth."""
