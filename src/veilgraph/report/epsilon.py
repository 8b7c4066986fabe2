"""How an ε is shown: its digits, what it is about, whom it holds against; and what a protection of a job can show."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from types import MappingProxyType
from typing import Any, ClassVar, Final

from rich.table import Table

from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.store.run_directory import Record

PER_RELEASE: Final = "per-release ε"
TOTAL: Final = "total ε"
NO_PERSON: Final = " (not a person, not an edge)"
"""Said wherever an ε is shown that is about one published row."""
OF_NODES: Final = "δ ≤ 1/(10·N), of N common nodes"
"""Said of a δ that follows from N, where N is not known."""
BOUND: Final = (
    "Whatever a receiver knows besides and computes from what it got, it can hardly tell two data sets apart that "
    "differ in one unit: the odds of any conclusion differ by a factor of at most e to the power of the total ε, but "
    "for a probability δ. Small is strong: below 1 says much, above about 16 says little."
)
RELATIONS: Final = MappingProxyType(
    {"zero-out": "as it is, or empty", "replacement": "as it is, or replaced by any other"}
)
ADD_UP: Final = "Each holder's ε is about its own data; where a person is in the data of several, their ε add up."
_DIGITS: Final = 4
_ROUNDING: Final = 1 - 1e-9
"""What calibration adds to be safe is not rounded up to another digit."""


@dataclass(frozen=True)
class Guarantee:
    """What an ε of a job means.

    Attributes:
        scope: in a few words; empty where there is no differential privacy.
        statement: what is guaranteed, or that nothing is.
        about: what the guarantee is about, by name.
        limits: what it is not about.
    """

    scope: str
    statement: str
    about: tuple[tuple[str, str], ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Protection(ABC):
    """One kind of differential privacy of a job, as it is shown before and after a run.

    Attributes:
        job: that has it.
        nodes: common to all holders; None where that is not known.
        not_asked: options of ``budget`` that say nothing of it → why; empty: it takes all.
    """

    job: JobSettings
    nodes: int | None = None
    not_asked: ClassVar[tuple[frozenset[str], str]] = (frozenset(), "")

    @property
    def features(self) -> Protection | None:
        """What nodes perturb beside it."""
        return None

    @abstractmethod
    def table(self) -> Table | None:
        """What every holder releases and what that costs; None where nothing is noised."""

    @abstractmethod
    def notes(self) -> list[str]:
        """What must be said beside the table, a line each."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the table shows, for programs: holder → facts; an ε that is None is infinite."""

    @abstractmethod
    def guarantee(self, delta: float | None = None) -> Guarantee:
        """What it says in words; a δ that the job leaves open is the ledgers', where they have one."""

    @abstractmethod
    def spent_about(self, delta: float | None) -> str | None:
        """What an ε that a run has spent is about; ``delta``: the largest of the ledgers."""

    def own_epsilons(self) -> dict[float, float]:
        """Total ε → that of one job, which the job has without being asked for any."""
        return {}

    def noise(self, totals: list[float]) -> list[Record]:
        """The noise that totals need, where it is not of published rows."""
        return []


def epsilon_text(epsilon: float | None) -> str:
    """An ε as ledgers are summed up with it, None for infinite: four digits, rounded up."""
    return "infinite" if epsilon is None else rounded_up(epsilon)


def rounded_up(number: float) -> str:
    """Four digits, rounded up: an ε is never shown smaller, nor noise that is needed less, than it is."""
    if math.isinf(number):
        return "infinite"
    rounded = Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal_from_float(number * _ROUNDING)
    return f"{float(rounded):.{_DIGITS}g}" if 1e-4 <= number < 1e4 or number == 0 else f"{float(rounded):g}"


def counted(releases: Mapping[Any, int]) -> str:
    """How many releases of which kind."""
    return ", ".join(f"{channel} {count:,}" for channel, count in releases.items() if count) or "none"
