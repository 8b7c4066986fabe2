"""Averaging: every holder has a graph of its own, and sums of weights are all that leaves it."""
