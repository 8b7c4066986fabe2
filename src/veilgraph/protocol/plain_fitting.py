"""What a job on one machine begins with, and the training loop of a network in one process.

The loop has the federated job's early stopping and choice of a model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor

from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.release_cache import parts
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import JobSettings, TrainSettings
from veilgraph.protocol.judge import Judgement
from veilgraph.protocol.limits import LimitSettings
from veilgraph.tables.frames import Tables


@dataclass(frozen=True)
class LedgerPlace:
    """Folder of the lifetime ledger of a holder without a party file, and the party's name there.

    ``ids`` are those of its graph's rows; without them all pay. ``limits`` are written into the folder, where given.
    """

    folder: Path
    party: str
    ids: Sequence[str] | None = None
    limits: LimitSettings | None = None


@dataclass(frozen=True)
class Inputs:
    """A job and its holders' graphs.

    Attributes:
        graphs: one per holder; none where each holder reads tables.
        ids: holder → its rows' ids, where rows are not the same nodes.
        tables: holder → tables that it brought in memory, which the run keeps for it.
        ledgers: holder → its ledger for life, where it brings a graph and has one.
        passing: holders that pay from the ledger of this run alone.
    """

    settings: JobSettings
    graphs: Sequence[PartyGraph] = ()
    ids: Mapping[PartyId, Sequence[str]] = field(default_factory=dict)
    tables: Mapping[PartyId, Tables] = field(default_factory=dict)
    ledgers: Mapping[PartyId, LedgerPlace] = field(default_factory=dict)
    passing: Sequence[PartyId] = ()

    def digest(self) -> str:
        """SHA-256 of the graphs and the ids of their rows, hexadecimal; of no tables."""
        found = sha256()
        for graph in self.graphs:
            for each in fields(graph):
                value = getattr(graph, each.name)
                if not isinstance(value, Tensor):
                    found.update(f"{each.name}{value!r}".encode())
                    continue
                for part in parts(value):
                    found.update(f"{each.name}{part.dtype}{tuple(value.shape)}".encode())
                    found.update(part.flatten().view(torch.uint8).numpy().data)  # as bytes: NumPy has no bfloat16
            found.update(json.dumps(self.ids.get(graph.party)).encode())
        return found.hexdigest()


Progress = Callable[[list[Record]], None]  # (the epochs' records so far); called after every epoch


@dataclass(frozen=True)
class PlainResult:
    """A training in one process: a federated run's keys without bytes; ``output``: chosen epoch's logits [N, C]."""

    summary: Record
    metrics: list[Record]
    output: Tensor


class Network(Protocol):
    """All parties' parts of a network together, and the labels that it is trained on."""

    train_settings: TrainSettings

    def train_step(self, epoch: int) -> float:
        """One forward and backward pass and one update; returns the training loss."""

    def infer(self) -> Tensor:
        """Logits, Tensor[N, C], without dropout and without a graph."""

    def judged(self) -> Tensor:
        """Logits, Tensor[N, C], that the epoch just trained is judged by; by default those of ``infer``."""
        return self.infer()

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """Score logits [N, C] on each split; ``everything`` is as for ``Objective.score``."""


def fit(network: Network, progress: Progress = lambda records: None) -> PlainResult:
    """Train a network with early stopping; it keeps the last epoch's weights, the summary is of the chosen epoch."""
    settings = network.train_settings
    judgement, metrics = Judgement(), list[Record]()
    best = network.infer()
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        loss = network.train_step(epoch)
        record: Record = {"epoch": epoch, "step_seconds": time.perf_counter() - started}
        if epoch % settings.evaluate_every == 0 or epoch == settings.epochs:
            logits = network.judged()
            scores = network.score(logits)
            record.update(scores.record())
            judgement = judgement.after(epoch, scores, settings.select_by)
            if judgement.best_epoch == epoch:
                best = logits
        metrics.append({**record, "loss": loss})
        progress(metrics)
        if judgement.stops(settings):
            break
    if settings.select_by == "last":  # what was judged may be the last training pass, before its update
        best = network.infer()
    summary = {
        "best_epoch": judgement.best_epoch,
        **network.score(best, everything=True).values,
        "seconds_per_step": fmean(record["step_seconds"] for record in metrics),
    }
    return PlainResult(summary, metrics, best)
