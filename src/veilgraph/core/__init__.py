"""Errors, names, randomness and settings that every other room may use."""

__version__ = "0.1.0"
