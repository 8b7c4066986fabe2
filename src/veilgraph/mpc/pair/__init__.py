"""Two parties compute shares of functions of what each has, and nobody deals to them."""

from typing import Final

COMPILER: Final = "numba"
"""The library that all of it needs, an extra of the package."""
WITHOUT_COMPILER: Final = (
    f"trust=nobody needs {COMPILER}, which is not installed; pip install numba, or set trust to dealer"
)
