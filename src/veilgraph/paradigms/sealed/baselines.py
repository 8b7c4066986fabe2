"""What a sealed federation is compared with: the twin of its job, on one graph."""

from __future__ import annotations

import math
import time
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.tensor_file import Record
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.twin import PlainMachine
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import together
from veilgraph.protocol.judgement import Judgement
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.protocol.scores import Objective, Scores

_LEAST: Final = 2.0**-16
"""Of a probability in fixed point."""


def in_one_place(job: SealedJob, graph: PartyGraph, progress: Progress) -> PlainResult:
    """Trains the job's network on one graph, with numbers that are not rounded.

    Which step is taken is judged as in the job: by right validation nodes alone, or not at all. Probabilities are known
    here, whatever the job's ``output``.

    Args:
        job: the federated job.
        graph: with labels and masks.
        progress: called after every step.
    """
    like = _for_one(job, graph)
    context, data = together(like, [graph])
    program, objective = SealedProgram(PlainMachine(list(data)), context), Objective(graph, job.train, torch.float64)
    program.enter(trains=True)
    program.begin()
    judgement, metrics, best = Judgement(), list[Record](), None
    for epoch in range(1, job.train.epochs + 1):
        started = time.perf_counter()
        program.step(epoch - 1)
        record: Record = {"epoch": epoch, "step_seconds": time.perf_counter() - started}
        if job.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
            logits = _logits(program)
            right = objective.score(logits).val_accuracy
            record["val_accuracy"] = right
            judgement = judgement.after(epoch, Scores(math.nan, 0.0, math.nan, right, None), job.train.select_by)
            best = logits if judgement.best_epoch == epoch else best
        metrics.append(record)
        progress(metrics)
        if judgement.stops(job.train):
            break
    output = _logits(program) if best is None else best
    steps = sorted(record["step_seconds"] for record in metrics)
    summary = {
        "best_epoch": judgement.best_epoch or len(metrics),
        **objective.score(output, everything=True).summary(),
        "seconds_per_step": steps[len(steps) // 2],
    }
    return PlainResult(summary, metrics, output)


def _for_one(job: SealedJob, graph: PartyGraph) -> SealedJob:
    weighted = job.model.edge_weights or graph.edge_weight is not None
    return job.model_copy(
        update={
            "output": "probabilities",
            "named_nodes": None,
            "privacy": None,
            "model": job.model.model_copy(update={"edge_weights": weighted, "edge_slots": None}),
            "data": job.data.model_copy(update={"holders": (graph.party,), "label_holder": None}),
        }
    )


def _logits(program: SealedProgram) -> Tensor:
    found = program.predict()
    assert found is not None  # one place knows all
    return found.clamp_min(_LEAST).log()
