"""Small averaging jobs, their twins, and runs in which holders drop out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import pytest
from torch import Tensor

from tests.mpc.aggregation.rounds import DropsOut, GivesUp
from tests.roles.federation import Settings, merge
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.datasets import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.link.memory import MemoryHub
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.twin import PlainAveraging
from veilgraph.protocol.figures import Judged
from veilgraph.protocol.job_file import parse_job

NAMES = "ABCD"
EPOCHS = 4
RULES: Mapping[str, Settings] = {
    "fedavg": {},
    "fedavg, server rate": {"averaging": {"rule": {"name": "fedavg", "server_rate": 0.5}}},
    "fedprox": {"averaging": {"rule": {"name": "fedprox", "mu": 0.3}}},
    "fedsgd": {"averaging": {"rule": {"name": "fedsgd"}, "local_epochs": 1}, "train": {"learning_rate": 0.5}},
    "fedsgd, momentum": {
        "averaging": {"rule": {"name": "fedsgd", "momentum": 0.7}, "local_epochs": 1},
        "train": {"learning_rate": 0.1},
    },
    "fedadam": {"averaging": {"rule": {"name": "fedadam", "server_rate": 0.05}}},
}
Dropped = Mapping[PartyId, Mapping[int, int]]
"""Holder → number of a sum → the first message that it does not send in it."""


def job(*changes: Settings) -> AveragingJob:
    base: Settings = {
        "paradigm": "averaging",
        "precision": "float64",
        "timeout_s": 30,
        "data": {"dataset": "synthetic", "holders": len(NAMES)},
        "model": {"dim": 4, "dropout": 0.1, "local": {"model": "gcn", "hops": 1}},
        "averaging": {"rule": {"name": "fedavg"}, "local_epochs": 2, "patience_s": 5},
        "train": {"epochs": EPOCHS, "patience": None, "checkpoint_every": 1},
    }
    return averaging(parse_job(merge(base, *changes)))


def graphs(settings: AveragingJob) -> list[PartyGraph]:
    return [part.graph for part in load_parts(settings.data, settings.seed)]


def sums_of(epoch: int) -> tuple[int, int]:
    """Numbers of the sums of weights and of scores of an epoch."""
    return 2 * epoch - 1, 2 * epoch


def twin_of(
    settings: AveragingJob, dropped: Dropped | None = None
) -> tuple[PlainAveraging, list[float | None], list[Judged]]:
    """The twin after all rounds, and the loss and the scores of each."""
    twin, losses, scores = PlainAveraging(settings, graphs(settings)), list[float | None](), list[Judged]()
    for epoch in range(1, settings.train.epochs + 1):
        weights, scored = sums_of(epoch)
        losses.append(twin.round(epoch, absent(dropped or {}, weights)))
        scores.append(twin.scores(absent(dropped or {}, scored)))
    return twin, losses, scores


def absent(dropped: Dropped, number: int) -> Collection[PartyId]:
    """Whose values are not in a sum: message 3 has them."""
    return [holder for holder, moments in dropped.items() if moments.get(number, 6) <= 3]


@contextmanager
def dropping_out(dropped: Dropped) -> Iterator[None]:
    """Jobs in threads, in which holders lose messages, and the server does not wait for these."""
    link = MemoryHub.link

    def wrapped(self: MemoryHub, party: PartyId) -> Link:
        end = link(self, party)
        return GivesUp(end, dropped) if party == SERVER else DropsOut(end, dropped.get(party, {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryHub, "link", wrapped)
        yield


def close(one: Tensor, other: Tensor) -> bool:
    """To 1e-6, as the protocol's fixed point allows."""
    return float((one.double() - other.double()).abs().max()) < 1e-6
