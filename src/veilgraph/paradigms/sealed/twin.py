"""The twin of a sealed job: the same program on floating numbers in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.twin import PlainMachine
from veilgraph.paradigms.sealed.entering import own_data, plan_of, slots_of, with_labels
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob


def together(
    job: SealedJob, graphs: Sequence[PartyGraph], *, trains: bool = True, asked: Tensor | None = None
) -> tuple[Context, dict[str, OwnData]]:
    """What all holders of a job know and put in, as the twin has it.

    Args:
        job: whose parties all learn from its seed.
        graphs: of the holders, one of them with labels.
        trains: whether training rows and their labels are put in.
        asked: [R] nodes that are predicted; None: all.
    """
    data = {graph.party: own_data(job, graph) for graph in graphs}
    labelled = next(graph for graph in graphs if graph.labels is not None).common_part()
    label_party, classes = labelled.party, labelled.num_classes
    if classes is None:
        assert labelled.labels is not None
        classes = int(labelled.labels.max()) + 1
    own = replace(data[label_party], asked=asked)
    if trains:
        own = with_labels(own, labelled, job, LearningStreams(job.seed, label_party), classes)
    data[label_party] = own
    sizes = Sizes(
        labelled.num_nodes,
        0 if own.rows is None else own.rows.numel(),
        classes,
        {party: one.features.shape[1] for party, one in data.items()},
        {party: slots_of(job, one.edges.shape[1]) for party, one in data.items()},
        job.model.max_degree,
        0 if own.judged is None else own.judged.numel(),
        None if asked is None else asked.numel(),
    )
    return Context(sizes, plan_of(job, sizes.nodes), label_party, data), data


def trained_twin(job: SealedJob, graphs: Sequence[PartyGraph], steps: int | None = None) -> SealedProgram:
    """After so many steps; None: all."""
    context, data = together(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    for number in range(steps or job.train.epochs):
        program.step(number)
    return program


def check_ranges(job: SealedJob, graphs: Sequence[PartyGraph]) -> None:
    """Refuse a job that would end because its numbers leave the ring's range: the twin trains and predicts first.

    Args:
        job: the job.
        graphs: of all holders.

    Raises:
        RangeOverflow: numbers leave the range.
        DataError: as ``own_data`` and ``with_labels``.
    """
    context, data = together(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    best, taken = -1.0, (program.weights, program.outside)
    for epoch in range(1, job.train.epochs + 1):
        program.step(epoch - 1)
        if job.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
            right = float(program.score(epoch) or 0)
            if right > best:
                best, taken = right, (list(program.weights), program.outside)
    if job.evaluates:
        program.weights, program.outside = taken
    program.predict()


def predicting_twin(
    job: SealedJob, graphs: Sequence[PartyGraph], weights: Mapping[str, Tensor], asked: Tensor | None = None
) -> SealedProgram:
    """Before a prediction with what was trained.

    Args:
        job: as in ``together``.
        graphs: as they are now.
        weights: what the holders' shares add up to, int64, by name.
        asked: [R] nodes that are predicted; None: all.
    """
    context, data = together(job, graphs, trains=False, asked=asked)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=False)
    program.restore(weights, training=False)
    return program
