"""Errors, names, randomness and settings that every other room may use."""
