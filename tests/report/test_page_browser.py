"""The page in a browser: nothing is asked for or complained of, nothing is wider than a phone, and dark is dark."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from tests.report.conftest import Copy
from tests.report.made import study, two_classes, with_ids
from veilgraph.report.comparison import comparison_html, read_comparison
from veilgraph.report.page import page_html, several_html
from veilgraph.runtime.store.run_directory import RunDirectory

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

WIDTHS = (390, 1280)
MEASURE = """<!DOCTYPE html><title>frames</title><script>
for (const source of {pages}) for (const width of {widths}) {{
  const frame = document.createElement("iframe");
  frame.style = `width: ${{width}}px; height: 900px; border: 0`;
  frame.srcdoc = source;
  frame.onload = () => {{
    const page = frame.contentDocument;
    const box = (one) => one.getBoundingClientRect();
    const every = (chosen) => [...page.querySelectorAll(chosen)];
    const wide = every("body *").filter(
      (one) => !one.closest(".scroll > *, pre > *, svg > *") && box(one).right > width + 1);
    const cut = every("p, li, dd, dt, td, th, h1, h2, h3, figcaption, summary").filter(
      (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display != "inline");
    const drawn = every("svg text").filter((one) => {{
      const [own, whole] = [box(one), box(one.closest("svg"))];
      return own.left < whole.left - 1 || own.right > whole.right + 1 || own.bottom > whole.bottom + 1;
    }});
    const scrolls = every(".scroll").filter((one) => one.scrollWidth > one.clientWidth + 1);
    const cued = scrolls.filter((one) => getComputedStyle(one).backgroundAttachment.includes("local"));
    frame.name = [page.documentElement.clientWidth, page.documentElement.scrollWidth, wide.length, cut.length,
      drawn.length, scrolls.length - cued.length, scrolls.length];
  }};
  document.documentElement.append(frame);
}}
</script>"""
"""Frames, as a window has a least width: each notes its own, the page's, how much is wider and does not scroll, how
much text is cut off in the page and in its drawings, how many tables scroll without a cue, and how many do."""


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


def measured(folder: Path, *pages: str) -> list[list[int]]:
    """What every page notes at each width, as ``MEASURE`` says."""
    opened = json.dumps([page.replace("<details>", "<details open>") for page in pages]).replace("</", "<\\/")
    shown, _ = browse(folder, MEASURE.format(widths=list(WIDTHS), pages=opened), "--dump-dom")
    return [[int(number) for number in noted.split(",")] for noted in re.findall(r'name="([\d,]+)"', shown)]


def test_nothing_is_wider_than_a_phone_or_cut_off(page: str, runs: dict[str, Path], copy: Copy, tmp_path: Path) -> None:
    study(tmp_path / "study", long="-of-an-organisation-with-a-name-of-sixty-four-characters-in-all")
    fraud = two_classes(copy("plain"))
    party = with_ids(fraud)
    pages = (
        page,
        page_html(RunDirectory.open(runs["private"])),
        page_html(RunDirectory.open(fraud), "region", party),
        comparison_html(read_comparison(tmp_path / "study")),
        several_html([RunDirectory.open(path) for path in runs.values()]),
    )
    found = measured(tmp_path, *pages)
    wanted = [[width, width, 0, 0, 0, 0] for _ in pages for width in WIDTHS]
    assert [each[:6] for each in found] == wanted
    assert all(each[6] > 0 for each in found[::2])  # at the width of a phone tables do scroll


def test_what_is_too_wide_cut_off_or_without_a_cue_would_be_noticed(page: str, tmp_path: Path) -> None:
    wide = page.replace("<main>", '<main><div style="width: 1400px">wide</div>')
    cut = page.replace("<main>", '<main><p style="width: 3rem; overflow: hidden; white-space: nowrap">cut off here</p>')
    drawn = page.replace("<main>", '<main><svg viewBox="0 0 9 9"><text x="5" y="5">beyond its drawing</text></svg>')
    bare = page.replace("no-repeat local", "no-repeat scroll")
    found = measured(tmp_path, wide, cut, drawn, bare)[::2]
    assert found[0][1] > WIDTHS[0]
    assert found[0][2] == 1
    assert [found[1][3], found[2][4]] == [1, 1]
    assert found[3][5] == found[3][6] > 0


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
