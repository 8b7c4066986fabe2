"""Packages of somebody else's, with a part of a kind each."""
