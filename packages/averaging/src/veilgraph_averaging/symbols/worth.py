"""From which public sizes on symbols can add anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from veilgraph.core.types import PartyId
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.costs import PartySizes
from veilgraph_averaging.settings import AveragingJob

LEAST_WORTH: Final = 0.1
"""Symbols a node, as so many without noise, below which they added 0.6 points at most (``research.union_privacy``)."""


def trained_counterparts(sizes: Mapping[PartyId, PartySizes]) -> float | None:
    """Return the mean number of a node's neighbours at other holders that are trained on; None where it is unknown.

    Edges across are taken to end at training nodes as often as at others.
    """
    nodes = sum(own.nodes for own in sizes.values())
    if not nodes or not all(own.nodes for own in sizes.values()):
        return None
    shares = {holder: own.training / own.nodes for holder, own in sizes.items()}
    ends = sum(
        count * shares[other] for own in sizes.values() for other, count in own.shared.items() if other in shares
    )
    return ends / nodes


def worth(counterparts: float, epsilon: float, classes: int) -> float:
    """Return how many symbols without noise a node's symbols are worth: their number times (p − q)².

    p and q are the chances that a symbol is the node's own class, and one that is another.
    """
    law = LabelResponse(epsilon, classes).transition()
    return counterparts * float(law[0, 0] - law[0, 1]) ** 2


def words_of_worth(job: AveragingJob, sizes: Mapping[PartyId, PartySizes] | None) -> list[str]:
    """Say from public sizes whether symbols can add anything, a line; [] where the job has none."""
    given, private = job.averaging.symbols, job.label_privacy
    if given is None or private is None:
        return []
    rule = "symbols help where a node has about one trained neighbour at other holders, or more"
    found = None if sizes is None else trained_counterparts(sizes)
    if found is None:
        return [f"{rule}: veilgraph check JOB says how many there are"]
    classes = max(2, *(own.classes for own in sizes.values())) if sizes else 2
    counted = worth(found, private.epsilon, classes)
    said = (
        f"a node has up to {found:.2g} trained neighbours at other holders on average, whose symbols at ε "
        f"{private.epsilon:g} are worth {counted:.2g} without noise (docs/explanation/union.md)"
    )
    if counted < LEAST_WORTH:
        return [f"{said}: too few to add much; {way_out(job, found, classes)}"]
    return [said]


def way_out(job: AveragingJob, counterparts: float, classes: int) -> str:
    """Say what to do where symbols are too few: a larger ε if that is enough, or class sums."""
    needed = next((each for each in (1, 1.5, 2, 3, 4, 6, 8) if worth(counterparts, each, classes) >= LEAST_WORTH), None)
    assert job.label_privacy is not None
    raised = (
        "" if needed is None or needed <= job.label_privacy.epsilon else f"raise label_privacy.epsilon to {needed:g}, "
    )
    return (
        f"{raised}take class sums (averaging.privacy) in place of averaging.symbols, or set "
        "averaging.symbols.allow_weak to true"
    )


def refusal_of_weak(job: AveragingJob, sizes: Mapping[PartyId, PartySizes]) -> str:
    """Why a job is refused whose public sizes say that symbols add nothing; empty where they may."""
    given, private, found = job.averaging.symbols, job.label_privacy, trained_counterparts(sizes)
    if given is None or private is None or given.allow_weak or found is None or not math.isfinite(found):
        return ""
    classes = max(2, *(own.classes for own in sizes.values()))
    if worth(found, private.epsilon, classes) >= LEAST_WORTH:
        return ""
    return f"averaging.symbols: {words_of_worth(job, sizes)[0]}"
