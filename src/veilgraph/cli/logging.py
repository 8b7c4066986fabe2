"""What long-lived commands say while they run: lines for people, or one JSON object on each for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer

from veilgraph.core.events import Event

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log-format",
        help="Of what is said on standard error. json: an object on each line, with time, level, event, message, party "
        "and job.",
    ),
]

_PREFIX: Final = "error: "


@dataclass
class JsonLog:
    """A log of JSON lines.

    Attributes:
        party: whose; None until that is known.
    """

    party: str | None = None

    def line(self, message: str) -> str:
        """A line of it; of an ``Event`` with all that it has."""
        known = message if isinstance(message, Event) else Event("message", message)
        said = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": known.level,
            "event": known.name,
            "message": " ".join(known.split()).removeprefix(_PREFIX),
            "party": self.party,
            "job": known.job or None,
        }
        return json.dumps({**said, **{key: value for key, value in known.facts.items() if key not in said}})

    def __call__(self, message: str) -> None:
        """Says it, from whichever thread."""
        typer.echo(self.line(message), err=True)


LOG: Final[ContextVar[JsonLog | None]] = ContextVar("log", default=None)
"""Of the command that runs; None where it speaks to people."""


def begun(log_format: str, otherwise: Callable[[str], None]) -> Callable[[str], None]:
    """What a command reports with from now on, its errors included.

    Args:
        log_format: what ``--log-format`` says.
        otherwise: speaks to people.
    """
    if log_format != "json":
        return otherwise
    log = JsonLog()
    LOG.set(log)
    return log


def of_party(report: Callable[[str], None], party: str) -> None:
    """Says whose log it is, once that is known."""
    if isinstance(report, JsonLog):
        report.party = party
