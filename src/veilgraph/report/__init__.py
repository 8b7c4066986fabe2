"""What a run shows: tables, curves, the page of a run."""
