"""Arguments given from Python or on the command line: their types, and how an error calls them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId

WRONG_TYPE: Final = "wrong-type"
"""Code of the error of a value of another type than its argument takes."""


def kind_of(value: object) -> str:
    """The type of a value as its user writes it: ``int``, ``pandas.DataFrame``, ``the class veilgraph.JobSettings``."""
    kind = value if isinstance(value, type) else type(value)
    package = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if package in ("builtins", "__main__") else f"{package}.{kind.__qualname__}"
    return "None" if value is None else f"the class {name}" if isinstance(value, type) else name


def wrong_type(key: str, value: object, wanted: str, way_out: str, *, party: PartyId | None = None) -> ConfigError:
    """Build the error of an argument ``key`` whose value is not ``wanted``, words such as ``a path (str or Path)``."""
    whose = "" if party is None else f"{party!r} brings "
    found = kind_of(value)
    return ConfigError(
        f"{key}: {whose}{found}, which is not {wanted}; {way_out}", code=WRONG_TYPE, key=key, value=found, party=party
    )


def path_of(key: str, value: object, what: str = "a directory") -> Path:
    """A path, given as text or as a path; raises ``ConfigError`` for anything else, or an empty one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise wrong_type(key, value, "a path (str or Path)", f"give the path of {what}")
    if not text or "\0" in text:
        raise ConfigError(f"{key}={text!r}: no path is like this; give the path of {what}", key=key, value=text)
    return Path(text)


def check_flags(**flags: object) -> None:
    """Raise ``ConfigError`` (code ``wrong-type``) for an argument that is no bool; arguments by their names."""
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise wrong_type(key, value, "True or False", "give one of these")


def _check_types(values: Mapping[str, object], fits: Callable[[object], bool], wanted: str) -> None:
    """Raise the ``wrong_type`` of the first value, by its argument's name, that is not None and does not fit."""
    for key, value in values.items():
        if value is not None and not fits(value):
            raise wrong_type(key, value, wanted, "give one, or leave it out")


def check_functions(**functions: object) -> None:
    """Raise ``ConfigError`` for an argument that is neither callable nor None; arguments by their names."""
    _check_types(functions, callable, "a function")


def check_text(**texts: object) -> None:
    """Raise ``ConfigError`` for an argument that is neither a str nor None; arguments by their names."""
    _check_types(texts, lambda value: isinstance(value, str), "a name (str)")


def check_whole(**numbers: object) -> None:
    """Raise ``ConfigError`` for an argument that is neither an int (no bool) nor None; arguments by their names."""
    _check_types(numbers, lambda each: isinstance(each, int) and not isinstance(each, bool), "a whole number (int)")


def check_mapping(key: str, value: object, wanted: str) -> None:
    """Raise ``ConfigError`` unless ``value`` maps str keys; ``wanted`` says from what to what, as ``holder → ids``."""
    if not isinstance(value, Mapping):
        raise wrong_type(key, value, f"a dict, {wanted}", "give one")
    for each in value:
        if not isinstance(each, str):
            raise wrong_type(key, each, "a name (str)", f"give a dict, {wanted}")


def check_several(key: str, value: Any, wanted: str) -> None:  # noqa: ANN401 - anything
    """Raise ``ConfigError`` unless ``value`` is None or a one-dimensional sequence, no text; ``wanted``: of what."""
    if value is None:
        return
    listed = hasattr(value, "__len__") and hasattr(value, "__getitem__") and not hasattr(value, "keys")
    if not listed or isinstance(value, str | bytes) or getattr(value, "ndim", 1) != 1:
        raise wrong_type(key, value, f"a list of {wanted}", "give a list, of one too")


OPTIONS: Final = ContextVar("OPTIONS", default=False)
"""Whether errors name options (``--out``) in place of Python arguments; the command line sets it."""


def argument(name: str, value: str = "") -> str:
    """Name an argument in an error: ``--some-name`` for readers of the command line, else ``some_name=value``."""
    return f"--{name.replace('_', '-')}" if OPTIONS.get() else f"{name}={value}"


def resuming(run: object) -> str:
    """Say how to resume a run: a shell command for readers of the command line, else a Python call."""
    return f"veilgraph resume {shlex.quote(str(run))}" if OPTIONS.get() else f"load_run({str(run)!r}).resume()"
