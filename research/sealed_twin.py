"""The plaintext twin of a sealed job: the same network on floating numbers in one place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from veilgraph.core.errors import ConfigError
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Objective
from veilgraph.runtime.store.run_directory import Record


def train_sealed(job: JobSettings, kind: str) -> Record:
    """Summary of the twin of a sealed job, with its seed's split.

    Args:
        job: of paradigm sealed.
        kind: only ``twin``.

    Raises:
        ConfigError: there is no such training of a sealed job.
        DataError: the data cannot be read or divided so.
    """
    settings = sealed(job)
    if kind != "twin":
        raise ConfigError(f"kind={kind!r}: a sealed job has only a twin; give kind='twin'")
    graphs = load_parties(job.data, job.seed)
    labelled = next(graph for graph in graphs if graph.party == job.data.label_party)
    objective = Objective(labelled, job.train, torch.float64)
    program, best_epoch = _trained(settings, graphs)
    found = program.predict()
    assert found is not None
    if settings.output == "classes":
        found = nn.functional.one_hot(found[:, 0].round().to(torch.int64), objective.classes).to(torch.float64)
        logits = found.clamp_min(torch.finfo(found.dtype).tiny).log()
    else:
        logits = logits_of(found)
    return {**objective.score(logits, everything=True).values, "best_epoch": best_epoch}


def _trained(job: SealedJob, graphs: Sequence[PartyGraph]) -> tuple[SealedProgram, int]:
    """With the weights of the step that the job takes, and its number."""
    context, data = twin_context(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    best, best_epoch, taken = -1.0, job.train.epochs, program.shares()
    for epoch in range(1, job.train.epochs + 1):
        program.step(epoch - 1, taken)
        if job.passes.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
            right = float(program.score(epoch) or 0)
            if right > best:
                best, best_epoch, taken = right, epoch, program.shares()
    if job.passes.evaluates:
        program.restore(taken, training=False)
    return program, best_epoch
