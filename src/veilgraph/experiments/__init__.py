"""The papers' tables with our figures beside them."""
