"""What a job of same columns on one machine begins with: holders' own graphs, and their nodes' ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.datasets import load_named_graphs, load_parts
from veilgraph.graph.features import scale_together
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.aligning import check_split
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.job import JobSettings


def load(job: JobSettings) -> Inputs:
    """Of a data set, divided by nodes, or of saved graphs."""
    check_split(job)
    if job.data.graphs is None:
        parts = load_parts(job.data, job.seed)
        names = {part.graph.party: [str(node) for node in part.ids.tolist()] for part in parts}
        return Inputs(job, [part.graph for part in parts], names)
    graphs, found = map(list, zip(*load_named_graphs(job.data), strict=True))
    check_own(graphs)
    return accept(job, graphs, {graph.party: each for graph, each in zip(graphs, found, strict=True)})


def check_own(graphs: Sequence[PartyGraph]) -> None:
    """Refuses graphs that say which of their nodes are common.

    Raises:
        DataError: names the first.
    """
    for graph in graphs:
        if graph.common != graph.num_nodes:
            raise DataError(
                f"party {graph.party!r}: num_common={graph.num_common} is for paradigm vertical; a horizontal holder "
                "does not know which nodes are common: leave it out"
            )


def accept(job: JobSettings, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
    """Graphs of holders' own nodes, scaled together."""
    return Inputs(job, scale_together(graphs, job.data.feature_scaling), ids)
