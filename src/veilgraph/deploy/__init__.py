"""Across organisations: kits, a broker, sites and requests around the same roles."""
