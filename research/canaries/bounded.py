"""Releases of what came of all hops, with a bound on degrees: an edge that displaces two others, a node's features.

As a job does it: edges beyond the bound are left out, features propagated without weights, rows clipped, and noised by
the publisher. Features are so large that every row that moves turns round, and is as long as the clip in both worlds:
the counts of rows of ``privacy.sensitivity`` are reached, and 2C for each of them.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor
from typing_extensions import override

from research.canaries.game import Game, Played, paying
from research.canaries.rows import job_of, planned
from research.canaries.world import World, beside
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.once import fixed_embedding, released_edges
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.publisher import NoisedPublisher, clip_rows
from veilgraph.protocol.job import JobSettings

_LARGE: Final = 1e4
_KEPT: Final = [(0, 4), (1, 5)]
_DISPLACED: Final = [(0, 2), (1, 3)]
_FEATURES: Final = [-100.0, -100.0, 20.0, 20.0, 150.0, 150.0]
"""Of six nodes. With D = 2 the pair of 0 and 1 displaces two; after one hop the first four have turned round."""


@dataclass(frozen=True)
class Bounded(Game):
    """A unit in one release within a degree bound.

    Attributes:
        unit: edge, with D = 2 and one hop, or node.
        hops: K.
        bound: D.
    """

    unit: Literal["edge", "node"] = "edge"
    hops: int = 1
    bound: int = 2

    @override
    def play(self, coins: Tensor) -> Played:
        names = self._names(len(coins))
        rows, ways = self._rows(*self._worlds, coins, names), self._clipped(coins, names)
        with paying(self.delta) as ledger, closing(NoisedPublisher(self.plan, ledger, system_secrets)) as door:
            along = door.embeddings(rows, 0) * (ways[0] - ways[1])
            return Played(along.reshape(len(coins), -1).sum(1), door.spent().epsilon_total)

    def clipped(self, coins: Tensor) -> tuple[Tensor, Tensor]:
        """Rows before noise where all canaries are in, and where all are out: Tensor[N, 1] each."""
        return self._clipped(coins, self._names(len(coins)))

    @property
    def plan(self) -> Plan:
        """Of the holder."""
        return planned(self._job, "B")

    @property
    def _job(self) -> JobSettings:
        noise: dict[str, Any] = {"epsilon_total": self.epsilon, "delta": self.delta}
        return job_of(2, 1, hops=self.hops, schedule="once", unit=self.unit, degree_bound=self.bound, **noise)

    @property
    def _worlds(self) -> tuple[World, World]:
        if self.unit == "edge":
            others = [*_DISPLACED, *_KEPT]
            return World(_FEATURES, [(0, 1), *others]), World(_FEATURES, others)
        pairs = tree(self.bound, self.hops)
        rest = len(pairs) * [0.0]
        return World([_LARGE, *rest], pairs), World([-_LARGE, *rest], pairs)

    def _names(self, copies: int) -> Tensor | None:
        return _displacing(copies) if self.unit == "edge" else None

    def _clipped(self, coins: Tensor, names: Tensor | None) -> tuple[Tensor, Tensor]:
        clip = self.plan.settings.clip
        one, other = (clip_rows(self._rows(each, each, coins, names), clip, 2) for each in self._worlds)
        return one, other

    def _rows(self, here: World, there: World, coins: Tensor, names: Tensor | None) -> Tensor:
        """What the holder releases, before it is clipped: Tensor[N, 1]."""
        job = self._job
        features, edges = beside(here, there, coins, names)
        kept, _ = released_edges(PartyGraph("B", features, edges), job)
        adjacency = Adjacency.of_edges(kept, None, len(features), torch.float64)
        return fixed_embedding(features, adjacency, vertical(job).model, LearningStreams(0, "B"))


def _displacing(copies: int) -> Tensor:
    """Numbers of six nodes each, with which the pair of 0 and 1 comes before those to displace: Tensor[m, 6] int64."""
    size, pairs = len(_FEATURES), torch.tensor([(0, 1), *_KEPT, *_DISPLACED])
    found = torch.arange(size * copies).reshape(-1, size)
    left = torch.arange(copies)
    for order in itertools.permutations(range(size)):
        names = size * left[:, None] + torch.tensor(order)
        kept = bound_degrees(names[:, pairs].reshape(-1, 2).T, size * copies, 2).reshape(-1, len(pairs))
        fits = (kept == torch.tensor([True, True, True, False, False])).all(dim=1)
        found[left[fits]] = names[fits]
        left = left[~fits]
        if not len(left):
            return found
    raise DataError(f"{len(left)} copies: no order of their nodes displaces two pairs; take other numbers")


def tree(bound: int, hops: int) -> list[tuple[int, int]]:
    """Below node 0, of which every node but the leaves has as many neighbours as it may."""
    pairs, shell, nodes = list[tuple[int, int]](), [0], 1
    for _ in range(hops):
        children = []
        for parent in shell:
            for _ in range(bound - (parent > 0)):
                pairs.append((parent, nodes))
                children.append(nodes)
                nodes += 1
        shell = children
    return pairs
