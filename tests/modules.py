"""Where the modules of all tests are: the package's, and beside each distribution its own."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def all_modules() -> list[Path]:
    """Every file of tests and of what they share."""
    folders = (ROOT / "tests", *ROOT.glob("packages/*/tests"))
    return [ROOT / "conftest.py", *(path for folder in folders for path in folder.rglob("*.py"))]
