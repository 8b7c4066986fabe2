"""The twin of a sealed job: the same program on floating numbers in one place."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.twin import PlainMachine
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.roles import own_data, plan_of, slots_of, with_labels
from veilgraph.paradigms.sealed.settings import SealedJob


def together(job: SealedJob, graphs: Sequence[PartyGraph]) -> tuple[Context, dict[str, OwnData]]:
    """What all holders of a job know and put in, as the twin has it.

    Args:
        job: whose parties all learn from its seed.
        graphs: of the holders, one of them with labels.
    """
    data = {graph.party: own_data(job, graph) for graph in graphs}
    labelled = next(graph for graph in graphs if graph.labels is not None).common_part()
    label_party, classes = labelled.party, labelled.num_classes
    if classes is None:
        assert labelled.labels is not None
        classes = int(labelled.labels.max()) + 1
    streams = LearningStreams(job.seed, label_party)
    data[label_party] = own = with_labels(data[label_party], labelled, job, streams, classes)
    assert own.rows is not None
    sizes = Sizes(
        labelled.num_nodes,
        own.rows.numel(),
        classes,
        {party: one.features.shape[1] for party, one in data.items()},
        {party: slots_of(job.model, one.edges.shape[1]) for party, one in data.items()},
        job.model.max_degree,
        0 if own.judged is None else own.judged.numel(),
    )
    return Context(sizes, plan_of(job), label_party, data), data


def trained_twin(job: SealedJob, graphs: Sequence[PartyGraph], steps: int | None = None) -> SealedProgram:
    """After so many steps; None: all."""
    context, data = together(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    for number in range(steps or job.train.epochs):
        program.step(number)
    return program
