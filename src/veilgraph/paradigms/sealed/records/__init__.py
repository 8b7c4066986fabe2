"""Sealed jobs with ``privacy: {unit: training-record}``: hidden weights of others' columns, sums with noise."""
