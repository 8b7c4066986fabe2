"""What a vertical federation is compared with: the job's network with one holder, by the same optimisers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.partition import pool
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

    It uses all nodes that the holder has, those that the others do not know included, and is judged on the common ones,
    so that its figures compare with the federation's.

    Args:
        settings: the federated job.
        graphs: of all holders.
        party: who is alone. Without labels of its own it is lent the label holder's, as in the paper, so that the
            figure tells what its features and edges are worth.
        progress: called after every epoch.
    """
    own = next(graph for graph in graphs if graph.party == party)
    labelled = next(graph for graph in graphs if graph.party == settings.data.label_party)
    common, only_own = own.common, own.num_nodes - own.common

    def of_common(values: Tensor | None, elsewhere: int) -> Tensor | None:
        return None if values is None else torch.cat([values[:common], values.new_full((only_own,), elsewhere)])

    trains = own is labelled  # its own nodes have labels then
    alone = replace(
        own,
        num_common=None,
        labels=own.labels if trains else of_common(labelled.labels, -1),
        train_mask=own.train_mask if trains else of_common(labelled.train_mask, False),
        val_mask=of_common(labelled.val_mask, False),
        test_mask=of_common(labelled.test_mask, False),
        num_classes=labelled.num_classes,
    )
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
    everything = pool(graphs, settings.data.label_party)
    return fit(PlainNetwork(settings, [everything], everything.party), progress)
