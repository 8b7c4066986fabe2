"""Canaries in a holder's data: put there before anything is computed, so that an audit is about the whole pipeline.

A canary is one unit of what the job's ε is about: the features of a node that has no edges (``row``), those of a node
with a few neighbours (``node``), these and its edges to them (``node-edges``), or an edge (``edge``). A secret fair
coin says of each whether it is *in* or *out*; in and out are neighbours in the sense of the ledger. So whoever sees
everything that was released, by whichever party, may tell the coins only as well as the ledger's total ε allows.

Canaries are kept apart from each other and from all other nodes, by every holder: their nodes lose their edges, and
their features at all holders but their owner's. Which nodes these are follows from the job and is no secret; the coins
are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Self

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import choose_rows, from_scipy, is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import check_nodes
from veilgraph.privacy.units import Neighbours, Unit
from veilgraph.protocol.job import JobSettings

_MOST_LEAVES: Final = 8
_SIZES: Final = {"row": 1, "edge": 2}


@dataclass(frozen=True)
class Inserted:
    """One holder's canaries, for all sessions of a run, and the places of all holders'.

    Attributes:
        count: m, of each holder that has any.
        nodes: N, that all holders know.
        key: 32 secret bytes, from which the coins are expanded.
        unit: what one of them is.
        relation: what in and out differ by.
        owners: the holders that have canaries, in the job's order.
        party: whose these are.
        public: SHA-256 of the job, from which all holders' places follow.
        votes: whether the node at the first end of an edge has no features, and that at the other end, at every holder,
            those of a node elsewhere: so that predictions of the first hang on what the other votes for, and on noise.
        leaves: neighbours of the node of a canary of unit ``node``: one more than the degree bound keeps, if that is
            less than eight, so that an audit sees whether the bound was applied; of unit ``node-edges`` as many as it
            allows, or eight.
    """

    count: int
    nodes: int
    key: bytes = field(repr=False)
    unit: Unit
    relation: Neighbours
    owners: tuple[PartyId, ...]
    party: PartyId
    public: str
    leaves: int = 0
    votes: bool = False

    @classmethod
    def of(cls, job: JobSettings, party: PartyId, nodes: int, source: SecretSource, kept: bytes | None = None) -> Self:
        """Those of a job; every holder needs them, to keep the others' apart from its own nodes.

        Args:
            job: with ``privacy.canaries_in: data``.
            party: a holder.
            nodes: N.
            source: of the key, where there is none yet.
            kept: the key of an earlier session.

        Raises:
            ConfigError: there are too few common nodes, or the job has no such canaries.
        """
        privacy = job.privacy
        if privacy is None or not privacy.canaries:
            raise ConfigError("privacy.canaries: the job has none; give how many")
        more = {"node": 1, "node-edges": 0}.get(privacy.unit)
        leaves = 0 if more is None else min((privacy.degree_bound or 0) + more, _MOST_LEAVES)
        made = cls(
            privacy.canaries,
            nodes,
            source(SEED_BYTES) if kept is None else kept,
            privacy.unit,
            privacy.relation,
            job.publishing,
            party,
            job.hash(),
            leaves,
            job.counts_votes,
        )
        needed = made.count * made.size * len(made.owners)
        if needed + made.votes > nodes:
            raise ConfigError(
                f"privacy.canaries={made.count} of unit {made.unit} at each of {len(made.owners)} holders take "
                f"{needed} nodes, and {nodes} are common to all; choose at most "
                f"{(nodes - made.votes) // (made.size * len(made.owners))}",
                key="privacy.canaries",
                value=made.count,
            )
        return made

    @property
    def size(self) -> int:
        """Nodes that a canary takes."""
        return _SIZES.get(self.unit, 1 + self.leaves)

    @cached_property
    def coins(self) -> Tensor:
        """What an audit guesses, True for in: Tensor[m] bool."""
        return expand(self.key, "inserted/coins", (self.count,)) < 0

    def places(self, owner: PartyId) -> Tensor:
        """The nodes of a holder's canaries: Tensor[m, size] int64, all different, also from other holders'."""
        seed = hashlib.sha256(f"canaries/{self.public}".encode()).digest()
        taken = self.count * self.size
        first = self.owners.index(owner) * taken
        chosen = expand(seed, "inserted/places", (self.nodes,)).argsort()[first : first + taken]
        return chosen.view(self.count, self.size)

    @cached_property
    def everywhere(self) -> Tensor:
        """The nodes of all holders' canaries, sorted: Tensor[owners·m·size] int64."""
        return torch.cat([self.places(owner).flatten() for owner in self.owners]).sort().values

    def into(self, graph: PartyGraph) -> PartyGraph:
        """The holder's graph with its own canaries in it, and the others' kept apart.

        They are in no split: nobody learns from them, or is scored on what is predicted for them.

        Raises:
            RunError: they were drawn for another number of common nodes.
        """
        check_nodes(self.nodes, graph.common)
        taken = torch.zeros(graph.num_nodes, dtype=torch.bool)
        taken[self.everywhere] = True
        apart = ~taken[graph.edge_index].any(dim=0)
        new = torch.cat([torch.empty(2, 0, dtype=torch.int64), *self._edges()], dim=1)
        rest = graph.with_edges(apart)
        weight, relation = rest.edge_weight, rest.edge_relation
        masks = {name: mask & ~taken for name in MASKS if (mask := getattr(graph, name)) is not None}
        return replace(
            rest,
            features=self._copied(graph.features) if self.votes else self._features(graph.features),
            edge_index=torch.cat([rest.edge_index, new], dim=1),
            edge_weight=None if weight is None else torch.cat([weight, weight.new_ones(new.shape[1])]),
            edge_relation=None if relation is None else torch.cat([relation, relation.new_zeros(new.shape[1])]),
            **masks,
        )

    def _edges(self) -> Iterator[Tensor]:
        """Both directions of each edge of its own canaries."""
        if self.party not in self.owners or self.unit == "row":
            return
        places = self.places(self.party)
        is_there = self.unit == "edge" or (self.unit == "node-edges" and self.relation == "zero-out")
        chosen = places[self.coins] if is_there else places
        for leaf in range(1, self.size):
            pair = chosen[:, [0, leaf]].T
            yield pair
            yield pair.flip(0)

    def _copied(self, features: Tensor) -> Tensor:
        """Nothing at the first ends, and at the others what a node has that is no canary."""
        chosen = torch.arange(self.nodes)
        pairs = torch.cat([self.places(owner) for owner in self.owners])
        others = torch.ones(self.nodes, dtype=torch.bool)
        others[self.everywhere] = False
        elsewhere = others.nonzero().flatten()
        chosen[pairs[:, 1]] = elsewhere[torch.arange(len(pairs)) % len(elsewhere)]
        rows = choose_rows(features, torch.cat([chosen, torch.arange(self.nodes, len(features))]))
        if not is_sparse(rows):
            rows[pairs[:, 0]] = 0
            return rows
        matrix = to_scipy(rows).tolil()
        matrix[pairs[:, 0].numpy()] = 0
        return from_scipy(matrix.tocsr())

    def _features(self, features: Tensor) -> Tensor:
        """The owner's: all columns as large as any value is, where the canary is in; else nothing, or the opposite."""
        values = features.values() if is_sparse(features) else features
        largest = float(values.abs().max()) if values.numel() else 1.0
        out = 0.0 if self.relation == "zero-out" else -1.0
        rows, signs = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=features.dtype)
        if self.party in self.owners:
            rows = self.places(self.party)[:, 0]
            signs = torch.where(self.coins, 1.0, out).to(features.dtype)
            if self.unit == "edge":  # the edge is the secret, and carries what is at its first end
                signs = torch.ones_like(signs)
        if not is_sparse(features):
            changed = features.clone()
            changed[self.everywhere] = 0
            changed[rows] = (signs * (largest or 1.0)).unsqueeze(1).expand(-1, features.shape[1])
            return changed
        matrix = to_scipy(features).tolil()
        matrix[self.everywhere.numpy()] = 0
        filled = signs != 0
        matrix[rows[filled].numpy()] = (signs[filled] * (largest or 1.0)).numpy()[:, None].repeat(matrix.shape[1], 1)
        return from_scipy(matrix.tocsr())
