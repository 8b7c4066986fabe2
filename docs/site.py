"""What ``make docs`` builds the site of: ``python -m docs.site stage``, mkdocs, and ``python -m docs.site check``.

``stage`` puts the pages into build/pages as the site has them: the README first, links within it, lists as
Python-Markdown knows them, the names of the public interface, and JSON Schemas for editors. ``check`` holds what was
built to two rules: every page is there, and none fetches anything from elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import veilgraph
from docs.pages import DOCS, FIGURES, all_pages
from veilgraph.protocol.job_file import SCHEMAS

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "build" / "pages"
SITE: Final = ROOT / "build" / "site"
_BESIDE: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_OWN: Final = ("package.md", "README.md")
"""What an index of packages shows, and the list of the folders: the site has the README and its navigation."""
_LESS_FOUND: Final = ("CHANGELOG.md", "api.md", "architecture.md", "claims.md", "errata.md", "proofs.md", "results.md")
"""Pages that name everything and introduce nothing. The search lists pages that explain a thing before them."""
_STYLE: Final = """.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { font-size: 0.68rem; }
.md-typeset pre > code { font-size: 0.66rem; }
"""
_FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*?"""
    r"""\bhref\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
)
_IMPORTED: Final = re.compile(r"""url\(\s*["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)""")


def staged_text(text: str, source: Path) -> str:
    """Return a page as the site has it: lists as Python-Markdown knows them, and links to where the site has files.

    Args:
        text: as it is in the repository.
        source: its path there.
    """

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found[1]))
        if not target.exists():  # code, such as x[0](y)
            return found[0]
        return f"]({Path(os.path.relpath(staged_path(target), staged_path(source).parent)).as_posix()}{found[2]}"

    return _with_lists(re.sub(r"\]\(([^)#:\s]+)([)#])", link, text))


def staged_path(path: Path) -> Path:
    """Return where the site has a file of the repository: pages and figures side by side, all else as it is there."""
    if path == ROOT / "README.md":
        return PAGES / "index.md"
    if path == ROOT / "jobs":
        return PAGES / "jobs.md"
    return PAGES / (path.name if DOCS in path.parents else path.relative_to(ROOT))


def _with_lists(text: str) -> str:
    """With what Python-Markdown needs to know a list: an empty line before it, four spaces before one within it."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        fenced = fenced != line.startswith("```")
        item = re.match(r"([-*]|\d+\.) ", line)
        before = lines[-1] if lines else ""
        if item and not fenced and before and not re.match(r"([-*]|\d+\.) |  ", before):
            lines.append("")
        nested = None if fenced else re.match(r" {2,3}(?=[-*] )", line)
        lines.append(line if nested is None else f"    {line[nested.end() :]}")
    return "\n".join(lines) + "\n"


def names() -> str:
    """A page of the public names, from their docstrings."""
    parts = ["# Names in Python\n", "`import veilgraph as vg`; [From Python](python.md) shows how they go together.\n"]
    for name in veilgraph.__all__:
        if name.startswith("_"):
            continue
        found = getattr(veilgraph, name)
        home = found.__name__ if isinstance(found, type(veilgraph)) else f"{found.__module__}.{found.__name__}"
        parts.append(f"::: {home}\n")
    return "\n".join(parts)


def stage(pages: Path = PAGES) -> None:
    """Writes everything that mkdocs builds the site of."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for path in all_pages():
        if path.name not in _OWN:
            _write(path, pages / path.name)
    _write(ROOT / "README.md", pages / "index.md")
    for name in _BESIDE:
        _write(ROOT / name, pages / name)
    for path in (*FIGURES.iterdir(), ROOT / "LICENSE"):
        shutil.copy(path, pages / path.name)
    shutil.copytree(ROOT / "jobs", pages / "jobs")
    shutil.copytree(ROOT / "deploy", pages / "deploy")
    _write(ROOT / "deploy" / "README.md", pages / "deploy" / "README.md")
    (pages / "api.md").write_text(_searched(names(), "api.md"), encoding="utf-8")
    (pages / "site.css").write_text(_STYLE, encoding="utf-8")
    (pages / "schema").mkdir()
    for name, schema in SCHEMAS.items():
        (pages / "schema" / f"{name}.json").write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")


def _write(source: Path, target: Path) -> None:
    text = staged_text(source.read_text(encoding="utf-8"), source)
    target.write_text(_searched(text, source.name), encoding="utf-8")


def _searched(text: str, name: str) -> str:
    """With what the site's search multiplies a page's score by, where that is not 1."""
    return f"---\nsearch:\n  boost: 0.1\n---\n{text}" if name in _LESS_FOUND else text


def faults(site: Path, pages: Path) -> list[str]:
    """What is wrong with a built site."""
    built = {path: site / f"{path.stem}.html" for path in sorted(pages.glob("*.md"))}
    found = [f"{path.name} is no page of the site" for path, page in built.items() if not page.is_file()]
    for pattern, fetching in (("*.html", _FETCHED), ("*.css", _IMPORTED)):
        for path in sorted(site.rglob(pattern)):
            fetched = {one or other for one, other in fetching.findall(path.read_text(encoding="utf-8"))}
            found += [f"{path.relative_to(site)} fetches {each}" for each in sorted(fetched)]
    return found


def main(what: str) -> int:
    """Does one of the two; returns the exit status."""
    if what == "stage":
        stage()
        return 0
    found = faults(SITE, PAGES)
    for line in found or [f"{SITE}/index.html: {sum(1 for _ in SITE.rglob('*.html'))} pages"]:
        print(line)  # noqa: T201
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
