"""What a vertical federation is compared with: the job's network with one holder, by the same optimisers."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.types import PartyId
from veilgraph.graph.partition import isolate, pool
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit


def isolated(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    party: PartyId,
    progress: Progress = lambda records: None,
) -> PlainResult:
    """Trains the job's network on one holder's own features and edges (the paper's GraphSAGE_A, GraphSAGE_B).

    Args:
        settings: the federated job.
        graphs: of all holders.
        party: who is alone, as ``isolate`` says.
        progress: called after every epoch.
    """
    alone = isolate(graphs, party, settings.data.label_party)
    return fit(PlainNetwork(settings, [alone], party), progress)


def pooled(
    settings: JobSettings, graphs: Sequence[PartyGraph], progress: Progress = lambda records: None
) -> PlainResult:
    """Trains the job's network on the union of all holders' data about the common nodes (GraphSAGE_{A+B}).

    Args:
        settings: the federated job.
        graphs: of all holders.
        progress: called after every epoch.
    """
    everything = pool(graphs, settings.data.label_party, relational=settings.is_relational)
    return fit(PlainNetwork(settings, [everything], everything.party), progress)
