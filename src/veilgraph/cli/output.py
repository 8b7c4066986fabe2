"""What commands write: tables and lines for people, ``--json`` and logs of JSON lines for programs.

It is the one way of commands to a terminal: what data, files and other parties say cannot control it. A command with
``--json`` says ``json=True`` where it is registered, and calls ``emit(facts)`` where it shows its results.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TextIO

import typer
from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from veilgraph.core.text import Event, printable, printable_lines

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log-format",
        help="Format of the messages on standard error. json: one object a line, with time, level, event, message, "
        "party and job.",
    ),
]


@dataclass
class JsonLog:
    """Writes messages to standard error as JSON lines, with the ``party`` once it is known."""

    party: str | None = None

    def line(self, message: str) -> str:
        """Return a message as one line of JSON; an ``Event`` adds its level, name, job and facts."""
        known = message if isinstance(message, Event) else Event("message", message)
        said = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": known.level,
            "event": known.name,
            "message": " ".join(known.split()).removeprefix("error: "),
            "party": self.party,
            "job": known.job or None,
        }
        return json.dumps({**said, **{key: value for key, value in known.facts.items() if key not in said}})

    def __call__(self, message: str) -> None:
        """Write the message's line to standard error; any thread may call it."""
        typer.echo(self.line(message), err=True)


LOG: Final[ContextVar[JsonLog | None]] = ContextVar("log", default=None)
"""Of the command that runs; None where it speaks to people."""


def start_log(log_format: str, otherwise: Callable[[str], None]) -> Callable[[str], None]:
    """Return a new ``JsonLog``, also for errors, if ``log_format`` is json; else ``otherwise``, for people."""
    if log_format != "json":
        return otherwise
    log = JsonLog()
    LOG.set(log)
    return log


def set_log_party(report: Callable[[str], None], party: str) -> None:
    """Set the party of ``report`` if it is a ``JsonLog``."""
    if isinstance(report, JsonLog):
        report.party = party


_WIDE: Final = 500  # columns of a file: a table takes no more of them than it needs


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
    """Make a console on standard error, for progress and all that is no result."""
    return PrintableConsole(stderr=True, width=_width(sys.stderr), markup=False, emoji=False)


def results() -> Console:
    """Make a console on standard output, for tables."""
    return PrintableConsole(file=sys.stdout, width=_width(sys.stdout), markup=False, emoji=False)


def _width(stream: TextIO) -> int | None:
    """Columns: of the terminal; as many as are needed where the output is a file or a pipe."""
    return None if stream.isatty() or "COLUMNS" in os.environ else _WIDE


def echo(text: str, *, nl: bool = True) -> None:
    """Write lines to standard output."""
    typer.echo(printable_lines(text), nl=nl)


def say(message: str) -> None:
    """Write one line to standard error, in the form that the command's log has."""
    if (log := LOG.get()) is not None:
        log(message)
    else:
        typer.echo(f"veilgraph: {printable(' '.join(message.split()))}", err=True)


PARAMETER: Final = "as_json"
JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="As one JSON document, and nothing else, on standard output.")
]

_FACTS: Final[ContextVar[list[object] | None]] = ContextVar("told", default=None)


def emit(facts: object) -> None:
    """Set the facts that ``--json`` prints at the end, over earlier ones; without ``--json`` do nothing."""
    if (told := _FACTS.get()) is not None:
        told[:] = [facts]


@contextmanager
def json_output(wanted: bool) -> Iterator[None]:
    """If ``wanted``, discard the block's standard output, and print its emitted facts as JSON at the end.

    They are printed also if the block ends by ``typer.Exit``, as a failed audit does, but not after another exception.
    """
    if not wanted:
        yield
        return
    found: list[object] = []
    before = _FACTS.set(found)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except typer.Exit:
        _write_json(found)
        raise
    finally:
        _FACTS.reset(before)
    _write_json(found)


def with_json(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option ``--json`` to a command, which is called without it, within ``json_output``."""

    @wraps(function)
    def told(*args: object, **kwargs: object) -> None:
        with json_output(bool(kwargs.pop(PARAMETER, False))):
            function(*args, **kwargs)

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    told.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    told.__annotations__ = {**function.__annotations__, PARAMETER: JsonOption}
    return told


def plain(value: object) -> Any:  # noqa: ANN401 - what JSON has, of whatever it was
    """A value as JSON has it, null for numbers that are none or infinite; raises ``TypeError`` for what JSON lacks."""
    return json.loads(json.dumps(value, default=_as_json), parse_constant=lambda _: None)


def _as_json(value: object) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    for kind, convert in _CONVERSIONS.items():
        if isinstance(value, kind):
            return convert(value)
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON has; tell what it holds")


_CONVERSIONS: Final[Mapping[type, Callable[[Any], object]]] = {
    BaseModel: BaseModel.model_dump,
    Mapping: dict,
    Set: sorted,
    Path: str,
    datetime: datetime.isoformat,
}


def _write_json(found: list[object]) -> None:
    for facts in found:
        echo(json.dumps(plain(facts), indent=2, allow_nan=False))
