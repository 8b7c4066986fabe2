"""Orders that holders of a sealed job tell: of edges' slots and of rows, each relative to a random one."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from veilgraph.audit.attacks.orders import Order
from veilgraph.audit.view import View
from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Seen
from veilgraph.mpc.sealed.placement import steps_of
from veilgraph.paradigms.sealed.entering import hidden_edges
from veilgraph.paradigms.sealed.settings import sealed

_MOST: Final = 48


def told_and_true_orders(view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
    """What a holder told, the steps that it needs for its edges, and its training and validation nodes.

    Args:
        view: of who was told.
        sender: who told.
        truth: its data.
    """
    nodes, found, slots = nodes_of(view), list[Order](), set[int]()
    told = view.received(Kind.PLACEMENT, sender)
    for seen in told if len(told) <= _MOST else [*told[: _MOST // 2], *told[-_MOST // 2 :]]:
        places = seen.tensor().numpy()
        if not is_of_edges(view, seen):
            found.append(Order(places, nodes))
            continue
        size = slots_of(view, seen)
        found += [Order(part, size) for part in np.split(places[: 2 * size + nodes], [size, 2 * size])]
        slots.add(size)
    put_in = hidden_edges(sealed(view.settings), truth)
    for size in slots:
        for edges in (put_in, put_in.flip(0)):
            steps = steps_of(edges, nodes, size - nodes)
            found += [Order(step.numpy(), size, told=False) for step in (steps.spread, steps.turn, steps.pick)]
    for mask in (truth.train_mask, truth.val_mask):
        if mask is not None and bool(mask.any()):
            found.append(Order(torch.nonzero(mask)[:, 0].numpy(), nodes, told=False, in_order=False))
    return found


def is_of_edges(view: View, seen: Seen) -> bool:
    """Whether a message of orders is of edges: rows are at most as many as there are."""
    return seen.shape[0] > nodes_of(view)


def slots_of(view: View, seen: Seen) -> int:
    """N and the padded number of edges, of a message of orders of edges."""
    return (seen.shape[0] - nodes_of(view)) // (3 if sealed(view.settings).model.edge_weights else 2)


def nodes_of(view: View) -> int:
    """N, as a holder knows it."""
    return 0 if view.graph is None else view.graph.common
