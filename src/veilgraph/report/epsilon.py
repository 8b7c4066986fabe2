"""How an ε is told of: its name, its digits, what it is about, and whom it holds against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context
from typing import Any, Final

from veilgraph.privacy.plan import Plan
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of

PER_RELEASE: Final = "per-release ε"
TOTAL: Final = "total ε"
NO_PERSON: Final = " (not a person, not an edge)"
"""Said wherever an ε is shown that is about one published row."""
OF_NODES: Final = "δ ≤ 1/(10·N), of N common nodes"
"""Said of a δ that follows from N, where N is not known."""
_DIGITS: Final = 4
_ROUNDING: Final = 1 - 1e-9
"""What calibration adds to be safe is not rounded up to another digit."""


def holds_against(job: JobSettings) -> str:
    """Against whom a holder's ε holds."""
    return paradigm_of(job).holds_against(job)


def meaning(privacy: PrivacySettings, delta: float | None) -> str:
    """What an ε is about."""
    at = OF_NODES if delta is None else f"δ = {delta:g}"
    what = NO_PERSON if privacy.unit == "row" else ""
    return f"{at}, unit {privacy.unit}{what}, {privacy.relation}"


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


def plans_of(job: JobSettings, nodes: int | None = None) -> dict[str, Plan]:
    """Holders' names → their plan: the label holder's, and the others', which are all alike."""
    labelled = job.data.label_party
    others = [name for name in job.data.names if name != labelled]
    found = {
        f"{labelled} (label holder)": paradigm_of(job).plan(job, labelled, nodes),
        ", ".join(others): paradigm_of(job).plan(job, others[0], nodes),
    }
    return {name: planned for name, planned in found.items() if planned is not None}
