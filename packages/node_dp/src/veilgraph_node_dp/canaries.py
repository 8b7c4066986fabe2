"""Canaries of nodes that perturb their own values, each with high or low features by a secret coin.

All features of a canary are as high as the declared range allows, or all as low; where labels are released, it has one
of the first two classes by another coin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import compact
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import DrawnCanaries, check_nodes
from veilgraph.privacy.plan import NodeRelease


@dataclass(frozen=True)
class NodeCanaries(DrawnCanaries):
    """One holder's canaries in a release of values from ``low`` to ``high``; holder ``labelled`` releases labels."""

    kind: ClassVar[str] = "node canaries"
    coin: ClassVar[str] = "features"
    low: float
    high: float
    labelled: PartyId | None

    @classmethod
    def of(cls, nodes: int, key: bytes, public: str, release: NodeRelease, labelled: PartyId | None) -> Self:
        """Plan canaries among ``nodes``; ``key``, ``public``: of ``DrawnCanaries``. ``ConfigError``: too few nodes."""
        if not 0 < release.canaries <= nodes:
            raise ConfigError(
                f"canaries={release.canaries} must be from 1 to the number of common nodes, {nodes}; choose fewer"
            )
        return cls(release.canaries, nodes, key, public, release.low, release.high, labelled)

    @cached_property
    def places(self) -> Tensor:
        """The canaries' nodes, the same at all holders: Tensor[m] int64."""
        return self._places(1).flatten()

    @cached_property
    def label_coins(self) -> Tensor:
        """The secret coins of the canaries' labels, True for the second class: Tensor[m] bool."""
        return self._coins("labels")

    @override
    def into(self, graph: PartyGraph) -> PartyGraph:
        check_nodes(self.nodes, graph.common)
        features = graph.features.to_dense().clone()
        features[self.places] = torch.where(self.coins, self.high, self.low).to(features.dtype).unsqueeze(1)
        changed = replace(graph, features=compact(features) if graph.features.is_sparse_csr else features)
        if self.labelled != graph.party or graph.labels is None:
            return changed
        values = graph.labels.clone()
        values[self.places] = torch.where(values[self.places] >= 0, self.label_coins.to(values.dtype), -1)
        return replace(changed, labels=values)
