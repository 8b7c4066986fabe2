"""Attacks mounted on what an adversary of a run has, beside adversaries who have less and more."""
