"""``--json``: what a command found as one JSON document on standard output, in place of its tables and lines.

A command that can says ``json=True`` where it is registered, and ``tell(facts)`` where it shows its results.
"""

from __future__ import annotations

import inspect
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from veilgraph.cli.output import echo

PARAMETER: Final = "as_json"
JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="As one JSON document, and nothing else, on standard output.")
]

_TOLD: Final[ContextVar[list[object] | None]] = ContextVar("told", default=None)


def tell(facts: object) -> None:
    """What the command found, for programs; without ``--json`` nothing is done with it.

    Args:
        facts: dataclasses, settings, mappings, sequences, numbers and text.
    """
    if (told := _TOLD.get()) is not None:
        told[:] = [facts]


@contextmanager
def telling(wanted: bool) -> Iterator[None]:
    """Where JSON is wanted, nothing goes to standard output but what is told, once the block is through.

    What ends with a code of its own after it has told, as an audit that failed, is told as well; what ends with an
    error is not.
    """
    if not wanted:
        yield
        return
    found: list[object] = []
    before = _TOLD.set(found)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except typer.Exit:
        _write(found)
        raise
    finally:
        _TOLD.reset(before)
    _write(found)


def with_json(function: Callable[..., None]) -> Callable[..., None]:
    """A command with the option; the command itself is not given it."""

    @wraps(function)
    def told(*args: object, **kwargs: object) -> None:
        with telling(bool(kwargs.pop(PARAMETER, False))):
            function(*args, **kwargs)

    signature = inspect.signature(function, eval_str=True)
    option = inspect.Parameter(PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    told.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    told.__annotations__ = {**function.__annotations__, PARAMETER: JsonOption}
    return told


def plain(value: object) -> Any:  # noqa: ANN401, PLR0911 - what JSON has, of whatever it was
    """A value as JSON has it; numbers that are none, or infinite, are null.

    Raises:
        TypeError: JSON has nothing for it.
    """
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Set):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is nothing that JSON has; tell what it holds")


def _write(found: list[object]) -> None:
    for facts in found:
        echo(json.dumps(plain(facts), indent=2, allow_nan=False))
