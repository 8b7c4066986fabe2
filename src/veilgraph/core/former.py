"""Settings under the names that they had in version 0.1: still read, with a note of what they are called now."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

_ABSENT: Final = object()


class FormerName(FutureWarning):
    """A setting was given under a former name."""


def note(former: str, now: str, source: str) -> None:
    """Says what a setting is called now; a command shows it on one line."""
    warnings.warn(f"{source}: {former} is called {now} now", FormerName, stacklevel=2)


def moved(settings: Mapping[str, Any], names: Mapping[str, str], source: str | None = None) -> dict[str, Any]:
    """Settings with some of them in other places; itself left as it is.

    Args:
        settings: nested mappings, not validated yet.
        names: dotted key → where it goes, in this order; what is not there is passed over.
        source: where they were read, for the notes; None: nothing is noted.

    Raises:
        ValueError: a setting stands in both places.
    """
    found = dict(settings)
    for old, new in names.items():
        value = _take(found, old.split("."))
        if value is _ABSENT:
            continue
        _put(found, new, value, old)
        if source is not None:
            note(old, new, source)
    return found


def moved_key(key: str, names: Mapping[str, str]) -> str:
    """Where one dotted key, of a setting or of one in it, went."""
    return next((new + key[len(old) :] for old, new in names.items() if f"{key}.".startswith(f"{old}.")), key)


def _take(settings: dict[str, Any], path: list[str]) -> object:
    """Takes a setting out, and groups that are empty then; groups on the way to it are copies from here on."""
    head, *rest = path
    if not rest:
        return settings.pop(head, _ABSENT)
    group = settings.get(head)
    if not isinstance(group, dict):
        return _ABSENT
    settings[head] = group = dict(group)
    value = _take(group, rest)
    if value is not _ABSENT and not group:
        del settings[head]
    return value


def _put(settings: dict[str, Any], path: str, value: object, former: str) -> None:
    *groups, last = path.split(".")
    for group in groups:
        inner = settings.get(group, {})
        if not isinstance(inner, dict):
            raise ValueError(
                f"{former} is called {path} now, and {group} is no group of settings; leave one of them out"
            )
        settings[group] = settings = dict(inner)
    if last in settings:
        raise ValueError(f"{former} is called {path} now, and both are given; leave {former} out")
    settings[last] = value
