"""SIGN (Frasca et al. 2020, arXiv:2004.11198): hops of several lengths side by side, joined in the first layer.

Every holder makes the hops of its own columns over its own edges by itself, in plaintext and for nothing. What only
the pooled graph has is one more block, where the job asks for pooled hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor
from typing_extensions import override

from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.networks.decoupled import Perceptron
from veilgraph.paradigms.sealed.networks.network import Suits
from veilgraph.paradigms.sealed.plan import OwnData


class Sign(Perceptron):
    """softmax(relu([X, P_i·X, P_i²·X, …, P^K·X]·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=0, learning_rate=1.0, weight_decay=5e-3)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on every holder's columns and their hops over its own edges, "
        "{own_hops} far, and pooled ones, {hops} far"
    )

    @property
    @override
    def pooled_columns(self) -> int:
        return self.own_columns // self.blocks if self.context.plan.hops else 0

    @property
    @override
    def own_columns(self) -> int:
        return sum(self.context.sizes.columns.values())

    @override
    def own(self) -> Sequence[Wire]:
        return self.columns

    @override
    def pooled(self) -> Sequence[Wire]:
        if not self.context.plan.hops:
            return []
        return [part[:, : part.shape[1] // self.blocks] for part in self.columns]


def own_blocks(own: OwnData, hops: int, *, symmetric: bool) -> Tensor:
    """A holder's columns and their hops over its own edges, side by side: [N, (hops + 1)·F].

    Args:
        own: columns, edges and their weights.
        hops: how many.
        symmetric: the normalisation by the holder's own degrees.
    """
    nodes, (sources, targets) = len(own.features), own.edges.numpy()
    degrees = 1.0 + own.degrees(nodes)
    into, out = (degrees.rsqrt(), degrees.rsqrt()) if symmetric else (degrees.reciprocal(), torch.ones_like(degrees))
    counts = np.ones(len(sources)) if own.edge_weights is None else own.edge_weights.numpy()
    adjacency = csr_array((counts, (targets, sources)), (nodes, nodes)) + eye_array(nodes, format="csr")
    blocks = [own.features]
    for _ in range(hops):
        blocks.append(torch.from_numpy(adjacency @ (blocks[-1] * out[:, None]).numpy()) * into[:, None])
    return torch.cat(blocks, 1)
