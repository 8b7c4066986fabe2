"""The plaintext twin of a sealed job: its program in one process on floats; baselines are the twin on one graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.memory import give_back_freed_memory
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.inputs import (
    examples_of,
    max_degree_of,
    own_data,
    plan_of,
    slots_of,
    stated_neighbours,
    with_labels,
    with_scores,
)
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.programs import program_of
from veilgraph.paradigms.sealed.records.home import Home, check_classes_of_bits, with_residuals
from veilgraph.paradigms.sealed.records.program import RecordProgram
from veilgraph.paradigms.sealed.records.rows import outputs_of
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.stacking import fit_stacking
from veilgraph.protocol.judge import Judgement, Objective
from veilgraph.protocol.plain_fitting import PlainResult, Progress


def twin_context(
    job: SealedJob,
    graphs: Sequence[PartyGraph],
    *,
    trains: bool = True,
    asked: Tensor | None = None,
    examples: Examples | None = None,
) -> tuple[Context, dict[str, OwnData]]:
    """Build the twin's context and all holders' data, with random streams of the job's seed.

    ``asked`` are [R] nodes to predict, None: all; ``examples`` what trees were fitted to, None: the graphs' training
    nodes. ``trains``: put in training and validation nodes.
    """
    data = {graph.party: own_data(job, graph) for graph in graphs}
    whole = next(graph for graph in graphs if graph.labels is not None)
    labelled = whole.common_part()
    label_party, classes = labelled.party, labelled.num_classes
    if classes is None:
        assert labelled.labels is not None
        classes = int(labelled.labels.max()) + 1
    check_classes_of_bits(job, label_party, classes)
    own = with_scores(data[label_party], whole, job, examples or examples_of(job, whole), classes)
    own = replace(own, asked=asked)
    if trains:
        own = with_labels(own, labelled, job, LearningStreams(job.seed, label_party), classes)
    data[label_party] = own
    sizes = Sizes(
        labelled.num_nodes,
        0 if own.rows is None else own.rows.numel(),
        classes,
        {graph.party: graph.num_features for graph in graphs},
        {party: slots_of(job, one.edges.shape[1]) for party, one in data.items()},
        max_degree_of(job, (stated_neighbours(job, graph.party, graph.most_edges_at_a_node()) for graph in graphs)),
        0 if own.judged is None else own.judged.numel(),
        None if asked is None else asked.numel(),
    )
    plan = plan_of(job, sizes)
    if trains and plan.records is not None:
        data[label_party] = with_residuals(own, Home(labelled, classes).opinions(), labelled, plan.records)
    return Context(sizes, plan, label_party, data), data


def _begin(job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedProgram:
    """Make the twin's program of all holders' graphs, ready for its first step."""
    context, data = twin_context(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    return program


def _is_judged(job: SealedJob, epoch: int) -> bool:
    return job.passes.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs)


def trained_twin(job: SealedJob, graphs: Sequence[PartyGraph], steps: int | None = None) -> SealedProgram:
    """Run the twin's training for so many steps, None: all, and return its program."""
    program = _begin(job, graphs)
    for number in range(steps or job.train.epochs):
        program.step(number)
    return program


def record_twin(
    job: SealedJob, graphs: Sequence[PartyGraph], source: Callable[[PartyId], SecretSource] = lambda _: system_secrets
) -> RecordProgram:
    """Compute the noisy sums, or bits, of the twin of a job with noise on records, ready to predict."""
    context, data = twin_context(job, graphs)
    program = program_of(PlainMachine(list(data)), context, source)
    assert isinstance(program, RecordProgram)
    program.enter(trains=True)
    program.begin()
    program.step(0)
    return program


def chosen_twin(job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedProgram:
    """Run all steps of the twin, and return its program with the weights of the best scored step, or of the last."""
    return train_and_restore_best(job, _begin(job, graphs))


def train_and_restore_best(job: SealedJob, program: SealedProgram) -> SealedProgram:
    """Train a program that was begun for all steps, and restore its best scored step's weights, if steps are scored."""
    most, best = -1.0, dict[str, Tensor]()
    for epoch in range(1, job.train.epochs + 1):
        program.step(epoch - 1, best)
        if _is_judged(job, epoch):
            found = program.score(epoch)
            right = 0.0 if found is None else float(found[0, 0])
            if right > most:
                most, best = right, program.shares()
    if job.passes.evaluates:
        program.restore(best, training=False)
    return program


def check_ranges(job: SealedJob, graphs: Sequence[PartyGraph]) -> None:
    """Train and predict in plaintext, to refuse with ``RangeOverflow`` a job whose numbers would leave the ring.

    Raises ``DataError`` as ``own_data`` and ``with_labels``.
    """
    if job.records is None:  # whose numbers have bounds
        chosen_twin(job, graphs).predict()
        give_back_freed_memory()  # before the parties begin, perhaps on this machine


def _begin_alone(job: SealedJob, graph: PartyGraph) -> SealedProgram:
    """Make the program of a job with one graph alone, margins opened and no privacy, ready for its first step."""
    weighted = job.model.edge_weights or graph.edge_weight is not None
    model = job.model.model_copy(update={"edge_weights": weighted, "edge_slots": None})
    data = job.data.model_copy(update={"holders": (graph.party,), "label_holder": None})
    alone = {"output": "margins", "named_nodes": None, "privacy": None, "trust": "dealer"}
    changes = {**alone, "model": model, "data": data}
    return _begin(job.model_copy(update=changes), [graph])


def train_plain(
    job: SealedJob, graph: PartyGraph, progress: Progress, program: SealedProgram | None = None
) -> PlainResult:
    """Train the job's network on one graph in plaintext, and return scores and stacked logits of the best step.

    Steps are judged as in the job, by all validation nodes, or not at all: also where these tell no such figure. Its
    ``output`` and privacy are ignored. ``progress`` is called after every step. ``program`` is of that graph, begun;
    None makes a sealed job's.
    """
    if job.records is not None:
        return _fit_home(job, graph, progress)
    program = program or _begin_alone(job, graph)
    objective = Objective(graph, job.train, torch.float64)
    judgement, metrics, best, earlier = Judgement(), list[Record](), None, None
    for epoch in range(1, job.train.epochs + 1):
        started = time.perf_counter()
        trial = program.trial
        program.step(epoch - 1)
        record: Record = {"epoch": epoch, "step_seconds": time.perf_counter() - started}
        earlier = best if program.trial != trial and job.data.feature_scaling == "standard" else earlier
        own = _logits_in_range(program) if _is_judged(job, epoch) else None
        if own is not None:
            tried = [own] if earlier is None else [own, (own + earlier) / 2]
            logits = max(tried, key=lambda each: objective.score(each).selection(job.train.select_by))
            scores = replace(objective.score(logits), val_loss=0.0)
            name = f"val_{job.train.select_by}"
            if name in scores.values:  # one bank's validation nodes may be of one class, and tell no AUC
                record[name] = scores.values[name]
                judgement = judgement.after(epoch, scores, job.train.select_by)
                best = logits if judgement.best_epoch == epoch else best
        metrics.append(record)
        progress(metrics)
    output = _predicted_logits(program) if best is None else best
    output = fit_stacking(output, graph, objective.weights).logits(output, graph)
    summary = {
        "best_epoch": judgement.best_epoch or len(metrics),
        **objective.score(output, everything=True).values,
        "seconds_per_step": fmean(record["step_seconds"] for record in metrics),
    }
    return PlainResult(summary, metrics, output)


def _fit_home(job: SealedJob, graph: PartyGraph, progress: Progress) -> PlainResult:
    """Fit the model that a label holder of a job with noise on records has at home, on one graph."""
    started, objective = time.perf_counter(), Objective(graph, job.train, torch.float64)
    home = Home(graph.common_part(), objective.classes)
    nothing = torch.zeros((graph.common, outputs_of(objective.classes)), dtype=torch.float64)
    output = home.with_scores(home.opinions(), nothing, objective.weights)
    metrics: list[Record] = [{"epoch": 1, "step_seconds": time.perf_counter() - started}]
    progress(metrics)
    values = objective.score(output, everything=True).values
    return PlainResult({"best_epoch": 1, **values, "seconds_per_step": metrics[0]["step_seconds"]}, metrics, output)


def _logits_in_range(program: SealedProgram) -> Tensor | None:
    """Return the logits of a step; None where it has left the range of the ring, and so has nothing right in a job."""
    try:
        return _predicted_logits(program)
    except RangeOverflow:
        return None


def _predicted_logits(program: SealedProgram) -> Tensor:
    found = program.predict()
    assert found is not None  # one place knows all
    return logits_of(found)
