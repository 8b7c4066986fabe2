"""What a job does: the vertical paradigm and the fitting loop."""
