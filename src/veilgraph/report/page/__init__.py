"""A run as one self-contained HTML page: for people who did not train it."""
