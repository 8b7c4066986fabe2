"""The plaintext twin of a sealed job: the same network on floating numbers in one place."""

from __future__ import annotations

import torch
from torch import nn

from veilgraph.core.errors import ConfigError
from veilgraph.graph.dataset import load_parties
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Objective
from veilgraph.runtime.store.run_directory import Record


def train_sealed(job: JobSettings, kind: str) -> Record:
    """Summary of the twin of a sealed job, with its seed's split.

    Args:
        job: of paradigm sealed that takes its last step.
        kind: only ``twin``.

    Raises:
        ConfigError: there is no such training of a sealed job.
        DataError: the data cannot be read or divided so.
    """
    settings = sealed(job)
    if kind != "twin" or settings.train.select_by != "last":
        raise ConfigError(f"kind={kind!r}: of a sealed job that takes its last step there is only the twin; give it")
    graphs = load_parties(job.data, job.seed)
    labelled = next(graph for graph in graphs if graph.party == job.data.label_party)
    objective = Objective(labelled, job.train, torch.float64)
    found = trained_twin(settings, graphs).predict()
    assert found is not None
    if settings.output == "classes":
        found = nn.functional.one_hot(found[:, 0].round().to(torch.int64), objective.classes).to(torch.float64)
    scores = objective.score(found.clamp_min(torch.finfo(found.dtype).tiny).log(), everything=True)
    return {**scores.summary(), "best_epoch": job.train.epochs}
