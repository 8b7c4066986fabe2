"""Sums under masks that survive holders dropping out (Bonawitz et al. 2017): docs/explanation/averaging.md."""
