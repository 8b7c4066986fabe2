"""Settings that a job leaves out, chosen by its preset from what every party knows before anything runs: the job.

``paper`` chooses nothing: what is left out has the defaults of the models in ``settings``, which are the papers'.
``auto`` takes what the job's paradigm offers in ``JobSettings.choices``; docs/guides/presets.md says how that was
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

Preset = Literal["auto", "paper"]
AUTO: Final = "auto"
PAPER: Final = "paper"
DEFAULT: Preset = AUTO
"""Of a job that names none; tests of what the papers say have ``paper`` here."""

_ABSENT: Final = object()
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """A setting that a preset chose, by its dotted key; ``needed`` where the default makes no valid job."""

    key: str
    value: bool | int | float | str | None
    why: str
    needed: bool = False

    def __str__(self) -> str:
        return f"{self.key}: {'null' if self.value is None else self.value}"


class JobContent:
    """What a job, not validated yet, says and leaves out; a group that is given as settings says all of them."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not _ABSENT

    def get(self, key: str, otherwise: object = None) -> Any:  # noqa: ANN401 - whatever stands there
        """What stands at a dotted key; ``otherwise`` where nothing does."""
        found = self._find(key)
        return otherwise if found is _ABSENT else found

    def name(self, key: str) -> str | None:
        """Return the text at a dotted key; None where there is nothing, or something else, which is refused later."""
        found = self._find(key)
        return found if isinstance(found, str) else None

    def _find(self, key: str) -> object:
        place: object = self._content
        for name in key.split("."):
            if isinstance(place, BaseModel):
                place = getattr(place, name, None)
            elif isinstance(place, Mapping):
                if name not in place:
                    return _ABSENT
                place = place[name]
            else:
                return place  # a group that is no group, null among them: nothing is put into it
        return place


def left_out(content: Mapping[str, Any], offered: Iterable[Choice]) -> list[Choice]:
    """Return the offered choices whose keys a job does not say."""
    said = JobContent(content)
    return [choice for choice in offered if choice.key not in said]


def resolved(content: Mapping[str, Any], offered: Iterable[Choice], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Read a job with its preset's choices for what it leaves out, so that none makes a valid job invalid.

    Where all together would, each is taken only where the job stays valid with it, needed ones first. Raises
    ``ValidationError`` where the job breaks a rule by itself.
    """
    open_ = left_out(content, offered)
    try:
        return read(_with_choices(content, open_))
    except ValidationError as error:
        taken, found = [choice for choice in open_ if choice.needed], None
        try:
            found = read(_with_choices(content, taken))
        except ValidationError as alone:  # what is wrong with the job beside what the preset would have chosen
            of_choice = any(choice.key in str(error) for choice in open_)
            raise (alone if of_choice else error) from None
    for choice in open_:
        if choice in taken:
            continue
        try:
            found = read(_with_choices(content, [*taken, choice]))
        except ValidationError:
            continue
        taken.append(choice)
    return found


def chosen(content: Mapping[str, Any], offered: Iterable[Choice], settings: BaseModel) -> list[Choice]:
    """Return what a preset chose: the offered choices that the job leaves out and its ``settings`` now have."""
    has = JobContent(settings.model_dump())
    return [choice for choice in left_out(content, offered) if has.get(choice.key, _ABSENT) == choice.value]


def _with_choices(content: Mapping[str, Any], choices: Iterable[Choice]) -> dict[str, Any]:
    """Copy a job's content, with each choice's value at its dotted key."""
    found: dict[str, Any] = dict(content)
    for choice in choices:
        place = found
        *groups, last = choice.key.split(".")
        for group in groups:
            place[group] = dict(place.get(group, {}))
            place = place[group]
        place[last] = choice.value
    return found
