"""The demonstration: one job federated, each holder alone, and everything pooled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from veilgraph.baselines.isolated import isolated
from veilgraph.baselines.pooled import pooled
from veilgraph.core.types import PartyId
from veilgraph.graph.datasets import load_parties
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import PlainResult
from veilgraph.run.jobs import Progress, TrainResult, train
from veilgraph.run.run_directory import Record
from veilgraph.samples.shipped import shipped_job, with_overrides

DEMO_JOB: Final = "digits"
"""Name of the shipped job that is demonstrated."""

Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""(what is trained, its epochs) → a block that shows its progress."""


@dataclass(frozen=True)
class DemoResult:
    """The four trainings of the demonstration.

    Attributes:
        federated: the run of the job.
        alone: holder → what it reaches by itself; one without labels is lent the label holder's.
        pooled: what all data in one place would reach.
    """

    federated: TrainResult
    alone: Mapping[PartyId, PlainResult]
    pooled: PlainResult

    def summaries(self) -> dict[str, Record]:
        """Name of each training → its summary: holders alone, federated, pooled."""
        alone = {alone_name(party): result.summary for party, result in self.alone.items()}
        return {**alone, "federated": self.federated.summary, "pooled": self.pooled.summary}

    def references(self) -> dict[str, float]:
        """Test accuracy in [0, 1] of every training that the federated one is compared with."""
        return {name: summary["test_accuracy"] for name, summary in self.summaries().items() if name != "federated"}


def alone_name(party: PartyId) -> str:
    """What the training of one holder by itself is called."""
    return f"{party} alone"


def demo_settings(epochs: int | None = None) -> JobSettings:
    """The demonstration's job, with another number of epochs if one is given."""
    settings = shipped_job(DEMO_JOB)
    return settings if epochs is None else with_overrides(settings, {"train.epochs": epochs})


def run_demo(settings: JobSettings, out: Path, stage: Stage) -> DemoResult:
    """Trains the job federated and then what it is compared with.

    Args:
        settings: the job, of any data set that can be split on this machine.
        out: run directory of the federated job.
        stage: shows the progress of one training.

    Raises:
        VeilgraphError: ``out`` is in use, or the job breaks a rule.
    """
    graphs = load_parties(settings.data, settings.seed)
    epochs = settings.train.epochs
    with stage("federated", epochs) as progress:
        federated = train(settings, out, progress=progress)
    alone = {}
    with _one_thread():
        for party in settings.data.names:
            with stage(alone_name(party), epochs) as progress:
                alone[party] = isolated(settings, graphs, party, progress)
        with stage("pooled", epochs) as progress:
            return DemoResult(federated, alone, pooled(settings, graphs, progress))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps torch to one thread: with matrices this small, threads cost more than they give, above all on a busy
    machine, where they wait for one another at every operation.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
