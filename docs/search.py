"""Ask the built site's own search what newcomers ask, in a browser: ``python -m docs.search``, or ``make docs-search``.

Each question is typed into a page of the site, whose own scripts answer. Its page has to be first or second, and first
where the README promises it by name. It needs Chromium, or a browser that ``playwright install chromium`` brought.
"""

import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import quote

SITE: Final = Path(__file__).parents[1] / "build" / "site"
FIRST: Final = {
    "Which paradigm?": "index.html",
    "Deploy between two companies": "deployment.html",
    "What do the others learn about my customers?": "threat-model.html",
    "Is it worth it?": "comparison.html",
}
FIRST_OR_SECOND: Final = {
    "who learns what": "index.html",
    "gpu": "scale.html",
    "how long does it take": "tutorial.html",
    "differential privacy budget": "privacy.html",
    "what does it cost": "sealed.html",
    "certificate expired": "runbook.html",
    "restart after crash": "deployment.html",
    "new data": "deployment.html",
    "duplicate ids": "tables.html",
    "explain a score": "serving.html",
}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing: only ranks are printed."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine alone, and give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def answers(site: Path, questions: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each question and the pages that the site's search lists, best first."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the tests' environment has none

    with served(site) as address, sync_playwright() as playwright:
        # Without Chromium's own sandbox, which root may not start: it opens our own pages alone.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for question in questions:
            page = browser.new_page()
            page.goto(f"{address}/index.html?q={quote(question)}")
            page.locator(".md-search-result__meta", has_text="matching document").wait_for()
            links = page.locator(".md-search-result__item > a:first-child").evaluate_all("all => all.map(a => a.href)")
            yield question, [link.removeprefix(f"{address}/").partition("?")[0] for link in links]
            page.close()
        browser.close()


def main(site: str | Path = SITE) -> int:
    """Print the rank of every question's page; return 1 where one is too far down."""
    wanted = FIRST | FIRST_OR_SECOND
    is_fault = False
    for question, pages in answers(Path(site), wanted):
        rank = pages.index(wanted[question]) + 1 if wanted[question] in pages else None
        is_far = rank is None or rank > (1 if question in FIRST else 2)
        is_fault |= is_far
        print(f"{rank or 'none':>4}  {question}  {wanted[question]}" + f", after {pages[:2]}" * is_far)  # noqa: T201
    return is_fault


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
