"""Canaries among the nodes of a holder that trains privately: an audit holds its noisy gradients against ε.

A canary is a node with a label and with as many neighbours as the rule on them allows, or eight; all are trained on,
and touch nobody else. A secret fair coin says whether the node is *in* or *out*. Out is, with ``zero-out``, a node
that is not there: without features, edges and label; with ``replacement``, another one in its place, whose features
are the opposite and whose label is the next class. Its neighbours have its label and smaller features of their own, so
their terms point where the canary's features say while it is there, and elsewhere when it is not. Which nodes these are
follows from the job and is no secret.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Self

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import MASKS
from veilgraph.graph.features import compact
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import check_nodes
from veilgraph.privacy.units import Neighbours
from veilgraph.protocol.job import JobSettings

_MOST_LEAVES: Final = 8
_SMALL: Final = 0.25
"""Features of neighbours over those of the canary: enough for terms as long as the clip, little beside it."""


@dataclass(frozen=True)
class TrainedCanaries:
    """One holder's, for all sessions of a run.

    Attributes:
        count: m.
        nodes: N, of the holder.
        key: 32 secret bytes, from which the coins are expanded.
        leaves: neighbours of each.
        relation: what in and out differ by.
        public: SHA-256 of the job, from which places, features and labels follow.
    """

    count: int
    nodes: int
    key: bytes = field(repr=False)
    leaves: int
    relation: Neighbours
    public: str

    @classmethod
    def of(cls, job: JobSettings, graph: PartyGraph, source: SecretSource, kept: bytes | None = None) -> Self:
        """Those of a job.

        Args:
            job: with a private training.
            graph: of a holder.
            source: of the key, where there is none yet.
            kept: the key of an earlier session.

        Raises:
            ConfigError: the job has none, or the holder has fewer nodes than they take.
        """
        plan = job.training_plan
        leaves = 0 if plan is None or not plan.hops else min(plan.settings.degree_bound or 0, _MOST_LEAVES)
        wanted, most = 0 if plan is None else plan.settings.canaries, graph.num_nodes // (1 + leaves)
        if plan is None or not 0 < wanted <= most:
            raise ConfigError(
                f"averaging.privacy.canaries={wanted} with {leaves} neighbours each take {wanted * (1 + leaves)} "
                f"nodes, and party {graph.party!r} has {graph.num_nodes}; choose from 1 to {most}",
                key="averaging.privacy.canaries",
                value=wanted,
            )
        key = source(SEED_BYTES) if kept is None else kept
        return cls(wanted, graph.num_nodes, key, leaves, plan.settings.neighbours, job.hash())

    @cached_property
    def coins(self) -> Tensor:
        """What an audit guesses, True for in: Tensor[m] bool."""
        return expand(self.key, "trained canaries/coins", (self.count,)) < 0

    @cached_property
    def places(self) -> Tensor:
        """The nodes of each, the canary first: Tensor[m, 1 + leaves] int64, all different."""
        taken = self.count * (1 + self.leaves)
        return self._drawn("places", (self.nodes,)).argsort()[:taken].view(self.count, 1 + self.leaves)

    def into(self, graph: PartyGraph) -> PartyGraph:
        """The holder's graph with its canaries in it, in or out as their coins say.

        Raises:
            RunError: they were drawn for another number of nodes.
        """
        return self.world(graph, self.coins)

    def world(self, graph: PartyGraph, coins: Tensor) -> PartyGraph:
        """The holder's graph with canaries as other coins would have them.

        Args:
            graph: of the holder, with labels.
            coins: Tensor[m] bool, True for in.

        Raises:
            RunError: they were drawn for another number of nodes.
            DataError: the holder has no labels.
        """
        check_nodes(self.nodes, graph.num_nodes)
        if graph.labels is None or graph.num_classes is None or graph.train_mask is None:
            raise DataError(
                f"party {graph.party!r}: labels: there are none, and a canary is trained on; give a holder's"
            )
        places, is_there = self.places, coins if self.relation == "zero-out" else torch.ones_like(coins)
        centres, everywhere = places[:, 0], places.flatten()
        taken = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, everywhere, True)
        rest = graph.with_edges(~taken[graph.edge_index].any(dim=0))
        chosen = places[is_there]
        pairs = torch.stack([chosen[:, :1].expand(-1, self.leaves).flatten(), chosen[:, 1:].flatten()])
        new = torch.cat([pairs, pairs.flip(0)], dim=1)
        weight, relation = rest.edge_weight, rest.edge_relation
        masks = {name: mask & ~taken for name in MASKS if (mask := getattr(graph, name)) is not None}
        masks["train_mask"] = masks["train_mask"] | taken
        masks["train_mask"][centres[~is_there]] = False
        first = self._drawn("labels", (self.count,)).remainder(graph.num_classes)
        second = first if self.relation == "zero-out" else (first + 1) % graph.num_classes
        labels = graph.labels.clone()
        labels[everywhere] = first.repeat_interleave(1 + self.leaves).to(labels.dtype)
        labels[centres] = torch.where(is_there, torch.where(coins, first, second), -1).to(labels.dtype)
        return replace(
            rest,
            features=self._features(graph.features, coins),
            edge_index=torch.cat([rest.edge_index, new], dim=1),
            edge_weight=None if weight is None else torch.cat([weight, weight.new_ones(new.shape[1])]),
            edge_relation=None if relation is None else torch.cat([relation, relation.new_zeros(new.shape[1])]),
            labels=labels,
            **masks,
        )

    def _features(self, features: Tensor, coins: Tensor) -> Tensor:
        """All columns as large as any value of the holder's, at neighbours a quarter of it, with signs of their own."""
        changed = features.to_dense().clone()
        largest = float(changed.abs().max()) if changed.numel() else 1.0
        of_centres, of_leaves = torch.where(self._drawn("signs", (2, self.count, changed.shape[1])) < 0, -1.0, 1.0)
        of_coin = torch.where(coins, 1.0, 0.0 if self.relation == "zero-out" else -1.0).unsqueeze(1)
        rows = (largest or 1.0) * torch.stack([of_centres * of_coin, *[_SMALL * of_leaves] * self.leaves], dim=1)
        changed[self.places.flatten()] = rows.flatten(0, 1).to(changed.dtype)
        return compact(changed) if features.is_sparse_csr else changed

    def _drawn(self, what: str, shape: tuple[int, ...]) -> Tensor:
        seed = hashlib.sha256(f"canaries/{self.public}".encode()).digest()
        return expand(seed, f"trained canaries/{what}", shape)
