"""Secure computation over Z_2^64: sharing, the dealer, the secure product, masked sums."""
