"""What three organisations export, each in its own way."""
