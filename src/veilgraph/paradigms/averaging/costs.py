"""What an averaging job will send, and hold, before it runs (docs/averaging.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.aggregation.summing import holder_bytes
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.averaging.tasks.task import Task
from veilgraph.paradigms.averaging.training import EXTRA, public
from veilgraph.protocol.costs import Costs, PartySizes, Stage, added

_NUMBER: Final = 8
"""Bytes of one that is added up, and of facts and tallies."""
_WAITS: Final = 10
"""Messages of a sum that wait for the ones before: five from the holders, and what the server says after each."""


class _Sums:
    """Bytes of sums that all holders stay to the end of.

    Args:
        holders: all of them.
    """

    def __init__(self, holders: Mapping[PartyId, PartySizes]) -> None:
        self._holders = holders

    def told(self, count: int, each: int = _NUMBER) -> dict[PartyId, int]:
        """Numbers that the server tells every holder."""
        return {SERVER: len(self._holders) * (HEADER_BYTES + each * count)}

    def of(self, size: int, each: int = _NUMBER) -> dict[PartyId, int]:
        """A sum of so many numbers, and what is told of it: as many, of some width."""
        up, down = holder_bytes(len(self._holders), size)
        return {**dict.fromkeys(self._holders, up), SERVER: len(self._holders) * down + self.told(size, each)[SERVER]}


def costs_of(job: AveragingJob, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
    """As ``Paradigm.costs``; None where the network is one of the parties' own."""
    classes = {holder: own.classes for holder, own in sizes.items() if own.classes}
    stated = classes or dict.fromkeys(sizes, 1)  # of a task without any, which holders merely say that they have
    known = public(job, {holder: own.columns for holder, own in sizes.items()}, stated)
    task: Task[Any, Any] = known.task.kind(known)
    try:
        network = task.network(LearningStreams(job.seed, SERVER))
    except ConfigError:  # a part of it comes from Python
        return None
    network.keep_home(job.averaging.personal)
    weights, real = len(network.vector()), known.dtype.itemsize

    sums, train = _Sums(sizes), job.train
    judged = -(-train.epochs // train.evaluate_every)
    tallied = job.averaging.privacy is None  # else each holder judges for itself
    verdict = {job.data.label_party: HEADER_BYTES + 2} if train.select_by != "last" else {}
    keys = dict.fromkeys(sizes, (len(sizes) - 1) * (HEADER_BYTES + SEED_BYTES))
    tally = sums.of(task.tally_size) if tallied else {}
    stages = [
        Stage("set-up", 2, added((keys, 1), (sums.told(weights, real), 1))),
        Stage("facts", _WAITS * len(task.gathers), added(*((sums.of(size), 1) for size in task.gathers))),
        Stage("rounds", _WAITS * train.epochs, added((sums.of(weights + EXTRA, real), train.epochs))),
        Stage("evaluations", (_WAITS * tallied + bool(verdict)) * judged, added((tally, judged), (verdict, judged))),
        Stage("inference", _WAITS * tallied, tally),
    ]
    notes = ["of holders that all stay to the end; who drops out sends less"]
    if train.patience is not None:
        notes.append(f"at most: training ends after {train.patience} evaluations that are no better (train.patience)")
    most = _NUMBER * max(weights + EXTRA, task.tally_size)
    memory = {**dict.fromkeys(sizes, 3 * most), SERVER: (len(sizes) + 2) * most}
    return Costs([stage for stage in stages if stage.sent], memory, notes)
