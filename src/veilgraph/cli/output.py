"""The one way of commands to a terminal: what data, files and other parties say cannot control it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from veilgraph.cli.logging import LOG
from veilgraph.core.printable import printable, printable_lines

_WIDE: Final = 500
"""Columns of a file: a table takes no more of them than it needs."""


class PrintableConsole(Console):
    """A console that shows text as it is: without rich's markup, and with escapes for what is not printable."""

    @override
    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable_lines(text), **how)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)


def messages() -> Console:
    """For progress and everything that is no result."""
    return PrintableConsole(stderr=True, markup=False, emoji=False)


def results() -> Console:
    """For tables, which are as wide as they need to be where the output is a file or a pipe."""
    fixed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return PrintableConsole(file=sys.stdout, width=None if fixed else _WIDE, markup=False, emoji=False)


def echo(text: str, *, nl: bool = True) -> None:
    """Write lines to standard output."""
    typer.echo(printable_lines(text), nl=nl)


def say(message: str) -> None:
    """Write one line to standard error, in the form that the command's log has."""
    if (log := LOG.get()) is not None:
        log(message)
    else:
        typer.echo(f"veilgraph: {printable(' '.join(message.split()))}", err=True)
