"""Attacks on a whole system: each refused, and the honest job goes on to the same bits."""
