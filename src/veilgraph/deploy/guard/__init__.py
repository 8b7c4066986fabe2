"""What stands between FLARE and everybody else: what may come in, from whom, and through which door."""
