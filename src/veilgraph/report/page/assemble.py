"""The page: every section filled in and put into one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.core.printable import printable_lines
from veilgraph.core.version import __version__
from veilgraph.core.wording import argument
from veilgraph.report.page.audit import audit
from veilgraph.report.page.confusion import confusion
from veilgraph.report.page.drift import drift
from veilgraph.report.page.found import find
from veilgraph.report.page.groups import read_column_of
from veilgraph.report.page.head import head
from veilgraph.report.page.judged import judged
from veilgraph.report.page.learned import learned
from veilgraph.report.page.privacy import privacy
from veilgraph.report.page.scored import scored
from veilgraph.report.page.traffic import traffic
from veilgraph.report.page.training import training
from veilgraph.report.page.words import job
from veilgraph.run.run_directory import RunDirectory

PAGE: Final = "report.html"
_TEMPLATE: Final = "page.html.j2"


def page_html(run: RunDirectory, by: str | None = None, party_file: Path | None = None) -> str:
    """A run as one HTML page; the same files give the same page.

    Everything that comes from files, names of classes and words of other parties among it, is escaped.

    Args:
        run: whole, or one organisation's part.
        by: a column of the label holder's tables, whose groups of test nodes are judged by themselves.
        party_file: the label holder's, which says where these are; None: the one that the job names.

    Raises:
        VeilgraphError: a file of the run is damaged, or the column cannot be had. What else is missing is said in the
            page.
    """
    found = find(run)
    told = scored(found)
    judgement = judged(found, told, None if by is None else read_column_of(found.settings, told, by, party_file))
    sections = {
        "head": head(found, judgement),
        "job": job(found),
        "learned": learned(found),
        "training": training(found),
        "judged": judgement,
        "drift": drift(found),
        "confusion": confusion(told),
        "traffic": traffic(found),
        "privacy": privacy(found),
        "audit": audit(found),
    }
    return environment().get_template(_TEMPLATE).render(**sections, found=found, version=__version__)


def write_page(run: RunDirectory, path: Path, by: str | None = None, party_file: Path | None = None) -> None:
    """Writes the page, whole or not at all; the other arguments are ``page_html``'s.

    Raises:
        VeilgraphError: as there, or the page cannot be written.
    """
    write_html(path, page_html(run, by, party_file))


def write_html(path: Path, content: str) -> None:
    """Writes a page, whole or not at all.

    Raises:
        RunError: it cannot be written.
    """
    try:
        write_whole(path, content.encode())
    except OSError as error:
        raise RunError(f"{path}: the page cannot be written ({error}); choose another {argument('out')}") from error


@cache
def environment() -> Environment:
    """Of all templates; what is put into them is escaped."""
    return Environment(
        loader=PackageLoader("veilgraph.report"),
        autoescape=True,
        finalize=_printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _printed(value: object) -> object:
    """A value in a page: text without characters that hide, or turn the direction of others."""
    if isinstance(value, Markup):
        return Markup(printable_lines(value))  # noqa: S704 - markup already
    return printable_lines(value) if isinstance(value, str) else value
