"""Sums of opinions over a node-dp learner's edges, through their publisher: an edge, or a node's edges.

Many copies of a small graph lie side by side, each in one of two worlds by its coin. The adversary knows all opinions.
The score is the likelihood ratio: by how much what was released is nearer to what the noise was added to in the one
world than in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override
from veilgraph_node_dp.settings import SumPlan, node_dp, release_plan
from veilgraph_node_dp.sums import NoisySums, pair_matrix

from research.canaries.game import Game, Played, paying
from research.canaries.world import World, beside
from veilgraph.privacy.event import Neighbours, Unit
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.privacy.release_cache import ReleaseCache
from veilgraph.protocol.job_file import parse_job


def worlds(unit: Unit, neighbours: Neighbours, bound: int) -> tuple[World, World]:
    """The pair, or the node's edges, that ε is about in, and out or replaced; opinions are the same in both.

    A node's neighbours are as many as the rule allows. Where its edges are replaced by others, in neither world a node
    has more of them, and all that are summed point the same way.

    Args:
        unit: edge or node-edges.
        neighbours: zero-out or replacement.
        bound: D.
    """
    if unit == "edge":
        return World([1.0, 1.0], [(0, 1)]), World([1.0, 1.0], [])
    here, there = range(1, bound + 1), range(bound + 1, 2 * bound + 1)
    star, leaves = [(0, leaf) for leaf in here], bound * [1.0]
    if neighbours == "zero-out":
        return World([1.0, *leaves], star), World([1.0, *leaves], [])
    opinions = [1.0, *leaves, *(-one for one in leaves)]
    return World(opinions, star), World(opinions, [(0, leaf) for leaf in there])


@dataclass(frozen=True)
class Opinions(Game):
    """An edge of a learner, or all of a node's: sums of what nodes are taken for.

    Opinions are of one column and as far from each other as rows of length 1 can be, which probabilities are not.

    Attributes:
        unit: edge or node-edges.
        neighbours: zero-out or replacement.
        hops: K.
        bound: D; not of unit edge.
    """

    unit: Unit = "edge"
    neighbours: Neighbours = "replacement"
    hops: int = 2
    bound: int = 4

    @property
    def plan(self) -> SumPlan:
        """Of the learner."""
        bound: dict[str, Any] = {} if self.unit == "edge" else {"degree_bound": self.bound}
        noise: dict[str, Any] = {"epsilon_total": self.epsilon, "delta": self.delta, "neighbours": self.neighbours}
        job = parse_job(
            {
                "paradigm": "node-dp",
                "data": {"dataset": "synthetic", "holders": 2, "label_holder": "A"},
                "release": {"features": {"epsilon": 1.0, "low": -1.0, "high": 1.0}},
                "privacy": {"unit": self.unit, "hops": self.hops, **noise, **bound},
            }
        )
        found = release_plan(node_dp(job), "A")
        assert found is not None
        return found

    @override
    def play(self, coins: Tensor) -> Played:
        here, there = worlds(self.unit, self.neighbours, self.bound)
        of = self.plan
        rows, edges = beside(here, there, coins)
        with paying(self.delta) as ledger:
            publisher = of.paid_by(ledger, None, ReleaseCache(ledger))
            released = publisher.sums(rows, pair_matrix(edges, None, len(rows)), lambda _: rows)
            claim = publisher.spent().epsilon_total
        away = []
        for world in (here, there):
            _, pairs = beside(world, world, coins)
            exact = NoisySums(self.hops, _Still(1.0, of.multiplier), of.settings.longest)
            clean = exact.release(pair_matrix(pairs, None, len(rows)), rows, bytes, lambda _: rows)
            away.append((released - clean).square().reshape(len(coins), -1).sum(1))
        return Played(away[1] - away[0], claim)


class _Still(Gaussian):
    """The mechanism's clip and grid without its noise."""

    @override
    def draw(self, shape: tuple[int, ...], source: object) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)
