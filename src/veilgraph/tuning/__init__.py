"""Settings of a job chosen by what they reach on its validation nodes."""
