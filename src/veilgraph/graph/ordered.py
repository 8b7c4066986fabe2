"""A graph with its nodes and edges in an order of its own: what is computed of it then has the same last bits again."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from veilgraph.graph.features import choose_rows
from veilgraph.graph.party import PartyGraph


def in_order(graph: PartyGraph, order: Tensor) -> PartyGraph:
    """A graph with node ``order[n]`` as its n-th, and its edges by target, source and weight.

    Args:
        graph: of one holder; which nodes are common, and relations, are left out.
        order: Tensor[N] int64, every node once.
    """
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    edges, weight = places[graph.edge_index], graph.edge_weight
    keys = (() if weight is None else (weight.numpy(),)) + (edges[0].numpy(), edges[1].numpy())
    sorting = torch.from_numpy(np.lexsort(keys))

    def moved(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[order]

    return PartyGraph(
        graph.party,
        choose_rows(graph.features, order),
        edges[:, sorting],
        None if weight is None else weight[sorting],
        moved(graph.labels),
        moved(graph.train_mask),
        moved(graph.val_mask),
        moved(graph.test_mask),
        graph.num_classes,
    )
