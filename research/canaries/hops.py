"""Releases with noise in every hop, through their publisher: an edge, a node's features, a node with all its edges.

Of a vertical job, where a hop sums what the one before it released, and of one of paradigm node-dp, where it sums
opinions, of which the adversary knows all.

Many copies of a small graph lie side by side, each in one of two worlds by its coin. The score is the likelihood ratio:
by how much what was released is nearer to what the noise was added to in the one world than in the other. Rows that
later hops sum were released, so that whoever sees them knows both.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override
from veilgraph_node_dp.settings import node_dp, release_plan

from research.canaries.game import Game, Played, paying
from research.canaries.rows import job_of, planned
from research.canaries.world import World, beside
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.aggregation import NoisySums, Then, pair_matrix
from veilgraph.privacy.event import Neighbours, Unit
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.protocol.job_file import parse_job


def worlds(unit: Unit, neighbours: Neighbours, bound: int) -> tuple[World, World]:
    """The node or the pair that ε is about in, and out or replaced.

    A node's neighbours are as many as the rule allows. Where it is replaced by one with other neighbours, in neither
    world a node has more of them, and all that are summed point the same way.

    Args:
        unit: edge, node or node-edges.
        neighbours: zero-out or replacement.
        bound: D.
    """
    if unit == "edge":
        return World([1.0, 1.0], [(0, 1)]), World([1.0, 1.0], [])
    here, there = range(1, bound + 1), range(bound + 1, 2 * bound + 1)
    star = [(0, leaf) for leaf in here]
    if unit == "node":
        return World([1.0] + bound * [0.0], star), World([-1.0] + bound * [0.0], star)
    leaves = bound * [1.0]
    if neighbours == "zero-out":
        return World([1.0, *leaves], star), World([0.0, *leaves], [])
    others = [*leaves, *(-one for one in leaves)]
    return World([1.0, *others], star), World([-1.0, *others], [(0, leaf) for leaf in there])


@dataclass(frozen=True)
class Hops(Game):
    """A unit of a holder's data in a release with noise in every hop.

    Attributes:
        unit: edge, node or node-edges.
        neighbours: zero-out or replacement.
        hops: K.
        bound: D; not of unit edge.
        own_rows: noised or clear.
    """

    unit: Unit = "edge"
    neighbours: Neighbours = "replacement"
    hops: int = 2
    bound: int = 4
    own_rows: str = "noised"

    @property
    def plan(self) -> Plan:
        """Of the holder."""
        own: dict[str, Any] = {} if self.own_rows == "noised" else {"own_rows": self.own_rows}
        bound: dict[str, Any] = {} if self.unit == "edge" else {"degree_bound": self.bound}
        noise: dict[str, Any] = {"epsilon_total": self.epsilon, "delta": self.delta, "neighbours": self.neighbours}
        aggregation = {"hops": self.hops, "dim": 1, **own}
        job = job_of(2, 1, schedule="once", unit=self.unit, aggregation=aggregation, **noise, **bound)
        return planned(job, "B")

    @property
    def worlds(self) -> tuple[World, World]:
        """In and out."""
        return worlds(self.unit, self.neighbours, self.bound)

    def then(self, rows: Tensor) -> Then | None:
        """What later hops sum, where it is not what was released."""
        return None

    @override
    def play(self, coins: Tensor) -> Played:
        here, there = self.worlds
        of = self.plan
        rows, edges = beside(here, there, coins)
        then = self.then(rows)
        with paying(self.delta) as ledger, closing(NoisedPublisher(of, ledger, system_secrets)) as door:
            released = door.aggregated(rows, pair_matrix(edges, None, len(rows)), len(rows), then)
            claim = door.spent().epsilon_total
        away = []
        for world in (here, there):
            features, pairs = beside(world, world, coins)
            made = NoisySums(
                pair_matrix(pairs, None, len(rows)),
                self.hops,
                of.mechanism("embeddings"),
                of.settings.sum_clip,
                of.own_length,
            )
            away.append((released - made.clean(features, released, then)).square().reshape(len(coins), -1).sum(1))
        return Played(away[1] - away[0], claim)


@dataclass(frozen=True)
class Opinions(Hops):
    """An edge of a node-dp learner, or all of a node's: sums of what nodes are taken for, the same in both worlds.

    Opinions are of one column and as far from each other as rows of length 1 can be, which probabilities are not.
    """

    @property
    @override
    def plan(self) -> Plan:
        bound: dict[str, Any] = {} if self.unit == "edge" else {"degree_bound": self.bound}
        noise: dict[str, Any] = {"epsilon_total": self.epsilon, "delta": self.delta, "neighbours": self.neighbours}
        job = parse_job(
            {
                "paradigm": "node-dp",
                "data": {"dataset": "synthetic", "holders": 2, "label_holder": "A"},
                "release": {"features": {"epsilon": 1.0, "low": -1.0, "high": 1.0}},
                "privacy": {"unit": self.unit, "aggregation": {"hops": self.hops}, **noise, **bound},
            }
        )
        found = release_plan(node_dp(job), "A")
        assert found is not None
        return found

    @property
    @override
    def worlds(self) -> tuple[World, World]:
        here, there = worlds(self.unit, self.neighbours, self.bound)
        return here, World(here.features, there.pairs)

    @override
    def then(self, rows: Tensor) -> Then:
        return lambda _: rows
