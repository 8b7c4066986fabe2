"""Secure computation over Z_2^64: sharing, the dealer, products, masked sums, intersection."""
