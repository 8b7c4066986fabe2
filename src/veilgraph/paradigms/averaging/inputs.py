"""What an averaging job on one machine begins with: holders' own graphs, and names of their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from veilgraph.core.types import PartyId
from veilgraph.graph.datasets import load_named_graphs, load_parts
from veilgraph.graph.features import scale_together
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.settings import AveragingJob
from veilgraph.paradigms.horizontal.inputs import check_own
from veilgraph.protocol.aligning import check_split
from veilgraph.protocol.inputs import Inputs


def load(job: AveragingJob) -> Inputs:
    """Of a data set, divided by nodes, or of saved graphs."""
    check_split(job)
    if job.data.graphs is None:
        parts = load_parts(job.data, job.seed)
        names = {part.graph.party: [str(node) for node in part.ids.tolist()] for part in parts}
        return Inputs(job, [part.graph for part in parts], names)
    graphs, found = map(list, zip(*load_named_graphs(job.data), strict=True))
    check_own(graphs)
    return accept(job, graphs, {graph.party: each for graph, each in zip(graphs, found, strict=True)})


def accept(job: AveragingJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
    """Graphs of holders' own nodes, scaled together."""
    return Inputs(job, scale_together(graphs, job.data.feature_scaling), ids)
