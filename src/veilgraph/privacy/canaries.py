"""Canaries, drawn from a secret of a holder, and what a run keeps of them: all of its sessions have the same.

``protocol.canaries`` says what they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.randomness import expand
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph


@dataclass(frozen=True)
class Canaries:
    """One holder's ``count`` canaries, for all of a run, among N ``nodes``; coins come of 32 secret bytes."""

    count: int
    nodes: int
    key: bytes = field(repr=False)


def check_nodes(drawn: int, now: int) -> None:
    """Raises ``RunError`` for canaries that were drawn for another number of common nodes."""
    if drawn != now:
        raise RunError(
            f"canaries: drawn for {drawn} common nodes, and now there are {now}; an audited run goes on with its own "
            "nodes only, so begin a new one",
            key="canaries",
            value=now,
        )


@dataclass(frozen=True)
class DrawnCanaries:
    """One holder's canaries, for a run: coins from ``key``, 32 secret bytes, places from ``public``, the job's hash."""

    kind: ClassVar[str]
    coin: ClassVar[str] = "coins"
    count: int
    nodes: int
    key: bytes = field(repr=False)
    public: str

    @cached_property
    def coins(self) -> Tensor:
        """Coins that an audit guesses, Tensor[m] bool: True for in the data, high features or the second class."""
        return self._coins(self.coin)

    @property
    def watched(self) -> Tensor | None:
        """Tensor[w] int64, the rows whose releases an audit watches; None for none."""
        return None

    def into(self, graph: PartyGraph) -> PartyGraph:
        """Return the holder's graph with its canaries in it; raises ``RunError`` where they are of other nodes."""
        raise NotImplementedError

    def _coins(self, what: str) -> Tensor:
        return expand(self.key, f"{self.kind}/{what}", (self.count,)) < 0

    def _places(self, size: int, after: int = 0) -> Tensor:
        """Draw nodes for canaries of a ``size``, all different, after the first ``after``: Tensor[m, size] int64."""
        order = self._drawn("places", (self.nodes,)).argsort()
        return order[after : after + self.count * size].view(self.count, size)

    def _drawn(self, what: str, shape: tuple[int, ...]) -> Tensor:
        return expand(hashlib.sha256(f"canaries/{self.public}".encode()).digest(), f"{self.kind}/{what}", shape)


def replace_edges_at(graph: PartyGraph, taken: Tensor, edges: Tensor) -> PartyGraph:
    """Replace all edges at ``taken`` nodes, bool [N], by ``edges`` [2, E], both ways; no split has these nodes."""
    rest = graph.with_edges(~taken[graph.edge_index].any(dim=0))
    weight, relation = rest.edge_weight, rest.edge_relation
    return replace(
        rest,
        edge_index=torch.cat([rest.edge_index, edges], dim=1),
        edge_weight=None if weight is None else torch.cat([weight, weight.new_ones(edges.shape[1])]),
        edge_relation=None if relation is None else torch.cat([relation, relation.new_zeros(edges.shape[1])]),
        **{name: mask & ~taken for name in MASKS if (mask := getattr(graph, name)) is not None},
    )
