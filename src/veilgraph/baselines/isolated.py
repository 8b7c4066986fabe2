"""Isolated training: one holder alone with its own features and edges (the paper's GraphSAGE_A, GraphSAGE_B).

The job's network with one holder: the same optimisers, W of ``collaborative`` by SGD with momentum included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from veilgraph.baselines.plaintext import PlainNetwork, PlainResult, Progress, fit_plain
from veilgraph.core.config import JobSettings
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph


def isolated(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    party: PartyId,
    progress: Progress = lambda records: None,
) -> PlainResult:
    """Trains the job's network on one holder's data.

    Args:
        settings: the federated job.
        graphs: of all holders.
        party: who is alone. Without labels of its own it is lent the label holder's, as in the paper, so that the
            figure tells what its features and edges are worth.
        progress: called after every epoch.
    """
    own = next(graph for graph in graphs if graph.party == party)
    labelled = next(graph for graph in graphs if graph.party == settings.data.label_party)
    lent = replace(
        own,
        labels=labelled.labels,
        train_mask=labelled.train_mask,
        val_mask=labelled.val_mask,
        test_mask=labelled.test_mask,
        num_classes=labelled.num_classes,
    )
    return fit_plain(PlainNetwork(settings, [lent], party), progress)
