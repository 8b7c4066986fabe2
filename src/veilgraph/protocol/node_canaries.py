"""Canaries among nodes that perturb their own values: so that an audit can hold a release against its ε.

A canary is a node whose features are all as high as the declared range allows, or all as low, by a secret fair coin;
where labels are released, its label is one of the first two classes by another coin. That is a node's record in place
of any other, as ε is about, put there before anything is computed. Which nodes they are follows from the job and is no
secret.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.graph.features import compact
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import check_nodes
from veilgraph.protocol.job import JobSettings


@dataclass(frozen=True)
class NodeCanaries:
    """One holder's, for all sessions of a run.

    Attributes:
        count: m.
        nodes: C, that all holders know.
        key: 32 secret bytes, from which the coins are expanded.
        public: SHA-256 of the job, from which the places follow.
    """

    count: int
    nodes: int
    key: bytes = field(repr=False)
    public: str

    @classmethod
    def of(cls, job: JobSettings, nodes: int, source: SecretSource, kept: bytes | None = None) -> Self:
        """Those of a job.

        Args:
            job: whose nodes release their features.
            nodes: C.
            source: of the key, where there is none yet.
            kept: the key of an earlier session.

        Raises:
            ConfigError: the job has none, or there are fewer nodes.
        """
        release = job.feature_release
        if release is None or not 0 < release.canaries <= nodes:
            wanted = 0 if release is None else release.canaries
            raise ConfigError(f"canaries={wanted} must be from 1 to the number of common nodes, {nodes}; choose fewer")
        return cls(release.canaries, nodes, source(SEED_BYTES) if kept is None else kept, job.hash())

    @cached_property
    def places(self) -> Tensor:
        """Their nodes, the same at all holders: Tensor[m] int64."""
        seed = hashlib.sha256(f"canaries/{self.public}".encode()).digest()
        return expand(seed, "node canaries/places", (self.nodes,)).argsort()[: self.count]

    @cached_property
    def coins(self) -> Tensor:
        """Of the features, True for high: Tensor[m] bool."""
        return expand(self.key, "node canaries/features", (self.count,)) < 0

    @cached_property
    def label_coins(self) -> Tensor:
        """Of the labels, True for the second class: Tensor[m] bool."""
        return expand(self.key, "node canaries/labels", (self.count,)) < 0

    def into(self, graph: PartyGraph, low: float, high: float, *, labels: bool) -> PartyGraph:
        """The holder's graph with its canaries in it.

        Args:
            graph: of the holder.
            low: α of the declared range.
            high: β.
            labels: whether the holder releases its labels.

        Raises:
            RunError: they were drawn for another number of common nodes.
        """
        check_nodes(self.nodes, graph.common)
        features = graph.features.to_dense().clone()
        features[self.places] = torch.where(self.coins, high, low).to(features.dtype).unsqueeze(1)
        changed = replace(graph, features=compact(features) if graph.features.is_sparse_csr else features)
        if not labels or graph.labels is None:
            return changed
        values = graph.labels.clone()
        values[self.places] = torch.where(values[self.places] >= 0, self.label_coins.to(values.dtype), -1)
        return replace(changed, labels=values)
