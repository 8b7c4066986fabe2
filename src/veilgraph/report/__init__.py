"""What a run shows: curves and tables."""
