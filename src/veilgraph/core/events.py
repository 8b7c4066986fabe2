"""What a long-lived command says while it runs: a line for people, with what programs want to know of it apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, Self

Level = Literal["info", "warning", "error"]


class Event(str):
    """A line, and what it is about.

    Attributes:
        name: which kind of line it is, for programs.
        level: how bad it is.
        job: the engine's id of the job that it is about; empty where it is about none.
        facts: further values, apart from the words.
    """

    name: str
    level: Level
    job: str
    facts: Mapping[str, str | int | float]

    def __new__(  # noqa: D102
        cls, name: str, words: str, *, level: Level = "info", job: str = "", **facts: str | int | float
    ) -> Self:
        made = super().__new__(cls, words)
        made.name, made.level, made.job, made.facts = name, level, job, MappingProxyType(facts)
        return made
