"""What a computation of two parties costs, ours or a peer's; imports nothing that either needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Figures:
    """Of one run.

    Attributes:
        seconds: of the party that takes longer.
        cpu_seconds: of both parties, on all threads.
        sent_bytes: of both parties.
        messages: likewise.
    """

    seconds: float
    cpu_seconds: float
    sent_bytes: float
    messages: float


def mean(runs: Sequence[Figures]) -> Figures:
    """The means of several runs' figures."""
    columns = zip(*((run.seconds, run.cpu_seconds, run.sent_bytes, run.messages) for run in runs), strict=True)
    return Figures(*map(fmean, columns))
