"""Nothing is opened but predictions: every party computes on what is masked."""
