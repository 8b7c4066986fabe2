"""Paths of the documentation's pages and data files, which are in folders by their kind."""

from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent
FIGURES: Final = DOCS / "figures"
"""Folder of what was measured, and of pictures."""


def all_pages() -> list[Path]:
    """Return the paths of all pages, sorted by name."""
    return sorted(DOCS.rglob("*.md"), key=lambda path: path.name)


def find_page(name: str) -> Path:
    """Return the path of a page, whichever folder it is in. No two pages have one name."""
    (found,) = DOCS.rglob(name)
    return found


def figure_path(name: str) -> Path:
    """Return the path of a data file or picture, which need not exist yet."""
    return FIGURES / name
