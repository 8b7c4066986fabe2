"""Canaries of private training: nodes that are trained on, each in or out of a holder's data by a secret coin.

A canary is a node with a label and as many neighbours as its bound allows, or eight. Out is a node that is not there
(``zero-out``) or one of opposite features and the next class (``replacement``). Its neighbours have its label and
smaller features, so that their terms point where the canary's features say while it is there, and elsewhere when it is
not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Self

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.features import compact, is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import DrawnCanaries, check_nodes, replace_edges_at
from veilgraph.privacy.event import Neighbours

_MOST_LEAVES: Final = 8
# Features of neighbours over those of the canary: enough for terms as long as the clip, little beside it.
_SMALL: Final = 0.25


@dataclass(frozen=True)
class TrainedCanaries(DrawnCanaries):
    """The canaries of one holder in private training, each with ``leaves`` neighbours."""

    kind: ClassVar[str] = "trained canaries"
    leaves: int
    relation: Neighbours

    @classmethod
    def of(cls, graph: PartyGraph, key: bytes, public: str, count: int, bound: int, relation: Neighbours) -> Self:
        """Plan ``count`` canaries in a graph with at most ``bound`` neighbours a node; ``ConfigError``: too many.

        ``key`` and ``public`` are of ``DrawnCanaries``.
        """
        leaves = min(bound, _MOST_LEAVES)
        most = graph.num_nodes // (1 + leaves)
        if not 0 < count <= most:
            raise ConfigError(
                f"averaging.privacy.canaries={count} with {leaves} neighbours each take {count * (1 + leaves)} "
                f"nodes, and party {graph.party!r} has {graph.num_nodes}; choose from 1 to {most}"
            )
        return cls(count, graph.num_nodes, key, public, leaves, relation)

    @cached_property
    def places(self) -> Tensor:
        """Each canary's node, then its neighbours': Tensor[m, 1 + leaves] int64, all different."""
        return self._places(1 + self.leaves)

    @property
    @override
    def watched(self) -> Tensor:
        return self.places.flatten()

    @override
    def into(self, graph: PartyGraph) -> PartyGraph:
        """Put the canaries into a graph, in or out by their secret coins; errors as ``world``."""
        return self.world(graph, self.coins)

    def world(self, graph: PartyGraph, coins: Tensor) -> PartyGraph:
        """Return the graph with canaries in or out by ``coins``, Tensor[m] bool; ``DataError`` without labels."""
        check_nodes(self.nodes, graph.num_nodes)
        if graph.labels is None or graph.num_classes is None or graph.train_mask is None:
            raise DataError(
                f"party {graph.party!r}: labels: there are none, and a canary is trained on; give a holder's"
            )
        places, is_there = self.places, coins if self.relation == "zero-out" else torch.ones_like(coins)
        centres, everywhere = places[:, 0], places.flatten()
        taken = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, everywhere, True)
        chosen = places[is_there]
        pairs = torch.stack([chosen[:, :1].expand(-1, self.leaves).flatten(), chosen[:, 1:].flatten()])
        train = graph.train_mask | taken
        train[centres[~is_there]] = False
        first = self._drawn("labels", (self.count,)).remainder(graph.num_classes)
        second = first if self.relation == "zero-out" else (first + 1) % graph.num_classes
        labels = graph.labels.clone()
        labels[everywhere] = first.repeat_interleave(1 + self.leaves).to(labels.dtype)
        labels[centres] = torch.where(is_there, torch.where(coins, first, second), -1).to(labels.dtype)
        return replace(
            replace_edges_at(graph, taken, torch.cat([pairs, pairs.flip(0)], dim=1)),
            features=self._with_canary_features(graph.features, coins),
            labels=labels,
            train_mask=train,
        )

    def _with_canary_features(self, features: Tensor, coins: Tensor) -> Tensor:
        """Set canaries' features to ± the largest magnitude, their neighbours' to a quarter, with random signs."""
        changed = features.to_dense().clone()
        of_centres, of_leaves = torch.where(self._drawn("signs", (2, self.count, changed.shape[1])) < 0, -1.0, 1.0)
        centres = of_centres * _feature_factors(coins, self.relation)
        rows = _largest_magnitude(changed) * torch.stack([centres, *[_SMALL * of_leaves] * self.leaves], dim=1)
        changed[self.places.flatten()] = rows.flatten(0, 1).to(changed.dtype)
        return compact(changed) if features.is_sparse_csr else changed


def _feature_factors(is_in: Tensor, relation: Neighbours) -> Tensor:
    """Return what canaries' features are multiplied by, [m, 1]: 1 in; out: 0, or −1 for ``replacement``."""
    return torch.where(is_in, 1.0, 0.0 if relation == "zero-out" else -1.0).unsqueeze(1)


def _largest_magnitude(features: Tensor) -> float:
    """Return the largest magnitude of any feature; 1 where all are zero or there are none."""
    values = features.values() if is_sparse(features) else features
    return (float(values.abs().max()) if values.numel() else 1.0) or 1.0
