"""One suite per seam, passed by every implementation."""
