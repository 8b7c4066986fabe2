"""The attacks themselves: pure functions on arrays, which know of no run."""
