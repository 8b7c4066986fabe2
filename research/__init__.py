"""The papers' tables with our figures beside them, and attack strength: for a checkout, not in the package."""
