"""Attacks: each succeeds without the protection, and is refused with it."""
