"""The page in a browser: nothing is asked for or complained of, nothing is wider than a phone, and dark is dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from veilgraph.report.page.assemble import page_html
from veilgraph.run.run_directory import RunDirectory

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

WIDTHS = (390, 1280)
MEASURE = """<!DOCTYPE html><title>frames</title><script>
for (const width of {widths}) {{
  const frame = document.createElement("iframe");
  frame.style = `width: ${{width}}px; height: 900px; border: 0`;
  frame.srcdoc = {page};
  frame.onload = () => {{
    const page = frame.contentDocument;
    const wide = [...page.querySelectorAll("body *")].filter(
      (one) => !one.closest(".scroll > *, pre > *, svg > *") && one.getBoundingClientRect().right > width + 1);
    frame.name = [page.documentElement.clientWidth, page.documentElement.scrollWidth, wide.length];
  }};
  document.documentElement.append(frame);
}}
</script>"""
"""Frames, as a window has a least width: each notes its own, the page's, and how much is wider and does not scroll."""


def browse(folder: Path, page: str, *options: str) -> tuple[str, str]:
    """What the browser prints and what it logs when it shows a page."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    assert BROWSER is not None
    command = [
        *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
        *(f"--user-data-dir={folder / 'profile'}", *options, (folder / "page.html").as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def page(runs: dict[str, Path]) -> str:
    return page_html(RunDirectory.open(runs["plain"]))


def test_nothing_is_wider_than_a_phone(page: str, tmp_path: Path) -> None:
    source = json.dumps(page.replace("<details>", "<details open>")).replace("</", "<\\/")
    shown, _ = browse(tmp_path, MEASURE.format(widths=list(WIDTHS), page=source), "--dump-dom")
    assert re.findall(r'name="(\d+),(\d+),(\d+)"', shown) == [(str(width), str(width), "0") for width in WIDTHS]


def test_the_page_is_quiet_and_follows_light_and_dark(page: str, tmp_path: Path) -> None:
    pictures = []
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{name}.png"
        options = (
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--window-size={WIDTHS[0]},2000",
            f"--screenshot={picture}",
        )
        _, log = browse(tmp_path, page, *options)
        assert "CONSOLE" not in log
        pictures.append(imread(picture)[..., :3])
    light, dark = pictures
    assert light.shape == dark.shape == (2000, WIDTHS[0], 3)
    assert float(np.median(light)) > 0.9
    assert float(np.median(dark)) < 0.2
    assert min(float(picture.std()) for picture in pictures) > 0.05  # something is drawn


def test_a_page_that_asks_for_anything_would_be_noticed(page: str, tmp_path: Path) -> None:
    asking = page.replace("</body>", '<img src="https://example.org/x.png"></body>')
    _, log = browse(tmp_path, asking, f"--screenshot={tmp_path / 'x.png'}")
    assert "CONSOLE" in log
    assert "Content Security Policy" in log
