"""Pooled plaintext training: all features and edges in one place (the paper's GraphSAGE_{A+B}).

The job's network with one holder, which is the limit that the federation is measured against: same optimisers, nothing
split.
"""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.graph.partition import pool
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit


def pooled(
    settings: JobSettings, graphs: Sequence[PartyGraph], progress: Progress = lambda records: None
) -> PlainResult:
    """Trains the job's network on the union of all holders' data about the common nodes.

    Args:
        settings: the federated job.
        graphs: of all holders.
        progress: called after every epoch.
    """
    everything = pool(graphs, settings.data.label_party)
    return fit(PlainNetwork(settings, [everything], everything.party), progress)
