"""Public data sets that are read from a folder, a file for each."""
