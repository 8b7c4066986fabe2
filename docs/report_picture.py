"""Photograph the head of a real run's report for the README: ``python -m docs.report_picture``; about two minutes.

Three banks of the shipped job ``banks`` train and compare, every attack is mounted, and Chromium draws the page.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

import veilgraph as vg
from docs.pages import figure_path

PICTURE: Final = figure_path("report.png")
WIDTH, HEIGHT = 1000, 560  # pixels: the page's head, down to its links
_COLOURS: Final = 48


def photograph(page: Path, picture: Path) -> None:
    """Draw the head of a page as PNG, with few colours so that the file is small."""
    browser = shutil.which("chromium")
    if browser is None:
        raise FileNotFoundError("no chromium is on the path; install Chromium")
    # Without Chromium's own sandbox, which root may not start: the page loads nothing.
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    subprocess.run([browser, *options, f"--screenshot={picture}", page.resolve().as_uri()], check=True)
    with Image.open(picture) as drawn:
        few = drawn.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


def main() -> None:
    """Train, compare, audit, report and draw."""
    with tempfile.TemporaryDirectory() as folder:
        run = vg.fit("banks", out=Path(folder) / "banks", record_views=True)
        run.compare()
        run.audit()
        photograph(run.report(), PICTURE)


if __name__ == "__main__":
    main()
