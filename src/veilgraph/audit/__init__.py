"""Attacks on what a party sees, as pure functions on arrays, and the statistics that say how strong they are."""
