"""Canaries among the labels of a label holder that learns from perturbed ones: an audit holds its gradients against ε.

A canary is a training node whose label is one of the first two classes, by a secret fair coin, before it is perturbed.
Which nodes they are follows from the job and from which nodes are trained with, and is no secret.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import check_nodes
from veilgraph.protocol.job import JobSettings


@dataclass(frozen=True)
class LabelCanaries:
    """The label holder's, for all sessions of a run.

    Attributes:
        count: m.
        nodes: C, of common nodes.
        key: 32 secret bytes, from which the coins are expanded.
        public: SHA-256 of the job, from which the places follow.
    """

    count: int
    nodes: int
    key: bytes = field(repr=False)
    public: str

    @classmethod
    def of(cls, job: JobSettings, graph: PartyGraph, source: SecretSource, kept: bytes | None = None) -> Self:
        """Those of a job.

        Args:
            job: with ``label_privacy``.
            graph: the label holder's.
            source: of the key, where there is none yet.
            kept: the key of an earlier session.

        Raises:
            ConfigError: the job has none, or fewer nodes are trained with.
            DataError: no node is.
        """
        private, trained = job.label_privacy, len(_trained(graph))
        wanted = 0 if private is None else private.canaries
        if not 0 < wanted <= trained:
            raise ConfigError(
                f"label_privacy.canaries={wanted} must be from 1 to the number of training nodes, {trained}, whose "
                "labels they replace; choose fewer",
                key="label_privacy.canaries",
                value=wanted,
            )
        return cls(wanted, graph.common, source(SEED_BYTES) if kept is None else kept, job.hash())

    def places(self, graph: PartyGraph) -> Tensor:
        """Their nodes, which others know who know the training nodes: Tensor[m] int64.

        Args:
            graph: of the label holder.
        """
        trained = _trained(graph)
        seed = hashlib.sha256(f"canaries/{self.public}".encode()).digest()
        return trained[expand(seed, "label canaries/places", (self.nodes,))[trained].argsort()[: self.count]]

    @cached_property
    def coins(self) -> Tensor:
        """True for the second class: Tensor[m] bool."""
        return expand(self.key, "label canaries/labels", (self.count,)) < 0

    def into(self, graph: PartyGraph) -> PartyGraph:
        """The label holder's graph with its canaries in it.

        Raises:
            RunError: they were drawn for another number of common nodes.
        """
        check_nodes(self.nodes, graph.common)
        if graph.labels is None:
            return graph
        labels = graph.labels.clone()
        labels[self.places(graph)] = self.coins.to(labels.dtype)
        return replace(graph, labels=labels)


def _trained(graph: PartyGraph) -> Tensor:
    """The common nodes that are trained with: Tensor[T] int64, ascending."""
    common = graph.common_part()
    if common.labels is None or common.train_mask is None:
        raise DataError("label_privacy.canaries: they are training nodes, and there are none; give a label holder's")
    return (common.train_mask & (common.labels >= 0)).nonzero().squeeze(1)
