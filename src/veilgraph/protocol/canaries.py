"""Canaries: units of a holder's data with a secret coin each, so that an audit can hold a run against its ε.

They are put into the data before anything is computed, so that the audit is about the whole pipeline. In and out are
neighbours in the sense of the ledger: whoever sees everything that was released, by whichever party, may tell the coins
only as well as the total ε allows. Which nodes they are follows from the job and is no secret; the coins are.

- ``VoteCanaries``, of edges whose ends' classes are counted with noise. Their nodes lose their other edges, and their
  features.
- ``RecordCanaries``, of columns that are in noisy sums over training nodes, or in a bit that is flipped.
- ``LabelCanaries``, of perturbed labels: training nodes of one of the first two classes, before perturbation.

Those of a private training, and of nodes that perturb their own values, are their plans' (``privacy.plan``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.features import compact, is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import DrawnCanaries, check_nodes, replace_edges_at
from veilgraph.protocol.job import JobSettings, perturbing


@dataclass(frozen=True)
class VoteCanaries(DrawnCanaries):
    """One holder's canaries among edges that vote, and the places of all holders'.

    The node at the first end, which counts the vote of the other, has no features, and that at the other end those of a
    node elsewhere: so that predictions of the first hang on what the other votes for, and on noise.

    Attributes:
        owners: the holders that have canaries, in the job's order; ``party`` is whose these are.
        seed: of the orientation of edges.
    """

    kind: ClassVar[str] = "inserted"
    owners: tuple[PartyId, ...]
    party: PartyId
    seed: int

    @classmethod
    def of(cls, job: JobSettings, party: PartyId, nodes: int, key: bytes) -> Self:
        """Draw a holder's canaries for a job with noisy votes, by its secret ``key``; all holders need the places.

        Raises ``ConfigError``: too few common nodes, or no such canaries.
        """
        count, owners = job.noise.canaries, job.duties.publishing
        if not count:
            raise ConfigError("privacy.canaries is 0 in this job; give their number")
        most = (nodes - 1) // (2 * len(owners))
        if count > most:
            raise ConfigError(
                f"privacy.canaries={count} at each of {len(owners)} holders take {2 * count * len(owners)} nodes, and "
                f"{nodes} are common to all, of which one must be left; choose at most {most}"
            )
        return cls(count, nodes, key, job.hash(), owners, party, job.seed)

    def places(self, owner: PartyId) -> Tensor:
        """The nodes of a holder's canaries: Tensor[m, 2] int64, all different, also from other holders'."""
        return _counting_first(self._places(2, self.owners.index(owner) * self.count * 2), self.seed)

    @cached_property
    def everywhere(self) -> Tensor:
        """The nodes of all holders' canaries, sorted: Tensor[owners·m·2] int64."""
        return torch.cat([self.places(owner).flatten() for owner in self.owners]).sort().values

    @override
    def into(self, graph: PartyGraph) -> PartyGraph:
        """Return the graph with the party's canaries put in and other holders' kept apart; none is in a split."""
        check_nodes(self.nodes, graph.common)
        taken = torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, self.everywhere, True)
        edges = torch.empty(2, 0, dtype=torch.int64)
        if self.party in self.owners:
            pairs = self.places(self.party)[self.coins].T
            edges = torch.cat([pairs, pairs.flip(0)], dim=1)
        return replace(replace_edges_at(graph, taken, edges), features=self._with_canary_features(graph.features))

    def _with_canary_features(self, features: Tensor) -> Tensor:
        """Replace all canaries' rows: zeros at first ends, rows of other nodes at second ends: [N, F] to [N, F]."""
        changed = features.to_dense().clone()
        pairs = torch.cat([self.places(owner) for owner in self.owners])
        others = torch.ones(self.nodes, dtype=torch.bool).index_fill(0, self.everywhere, False)
        elsewhere = others.nonzero().flatten()
        changed[pairs[:, 1]] = changed[elsewhere[torch.arange(len(pairs)) % len(elsewhere)]]
        changed[pairs[:, 0]] = 0
        return compact(changed) if is_sparse(features) else changed


def _counting_first(pairs: Tensor, seed: int) -> Tensor:
    """Pairs [m, 2] of different nodes in their order, each with the end first that its orientation points to."""
    from veilgraph.graph.partition import orient_pairs  # noqa: PLC0415 - few trainings have votes

    targets = set(map(tuple, orient_pairs(pairs.T, seed).T.tolist()))
    points = torch.tensor([(one, other) in targets for one, other in pairs.tolist()], dtype=torch.bool)
    return torch.where(points[:, None], pairs.flip(1), pairs)


@dataclass(frozen=True)
class RecordCanaries(DrawnCanaries):
    """One holder's canaries among records, and the places of all holders'; every other record of a holder is zero.

    A canary has a node that is trained on, and one that is not. In sums the first has a record if the coin says so, a
    one in a column of its own, and a label that is not its own, so that its residual is large; the other, whose score
    the label holder learns, always has that record. With bits the first always has a one in the first column and is of
    the second class, so that weights are large there, and the other has it if the coin says so.

    Attributes:
        owners: the holders that have canaries, in the job's order; ``party`` is whose these are.
        of_bits: whether a record is in a bit, and not in a sum.
    """

    kind: ClassVar[str] = "records"
    owners: tuple[PartyId, ...]
    party: PartyId
    of_bits: bool

    @classmethod
    def of(cls, job: JobSettings, graph: PartyGraph, key: bytes) -> Self:
        """Draw those of a job with noise on records in a holder's graph, by its secret ``key``.

        Raises ``ConfigError``: too few common nodes or columns, or no such canaries.
        """
        count, nodes, privacy = job.noise.canaries, graph.common, job.privacy
        owners = tuple(name for name in job.duties.publishing if name != job.data.label_party)
        of_bits = privacy is not None and privacy.unit == "node"
        most = nodes // (4 * len(owners))
        if not of_bits and graph.party in owners:
            most = min(most, graph.num_features)
        if not 0 < count <= most:
            raise ConfigError(
                f"privacy.canaries={count} must be from 1 to {most} at {graph.party}: they take up to half of {nodes} "
                "common nodes and, in sums, a column each; choose fewer",
                key="privacy.canaries",
                value=count,
                party=graph.party,
            )
        return cls(count, nodes, key, job.hash(), owners, graph.party, of_bits)

    def places(self, owner: PartyId) -> Tensor:
        """The nodes of a holder's canaries, trained on and not: Tensor[m, 2] int64, different from all others."""
        return self._places(2, self.owners.index(owner) * self.count * 2)

    @override
    def into(self, graph: PartyGraph) -> PartyGraph:
        check_nodes(self.nodes, graph.common)
        trained, others = torch.cat([self.places(owner) for owner in self.owners]).T
        masks = {name: mask.clone() for name in MASKS if (mask := getattr(graph, name)) is not None}
        for name, mask in masks.items():
            mask[others] = False
            mask[trained] = name == "train_mask"
        features = graph.features
        if self.party in self.owners:
            features = torch.zeros(tuple(features.shape), dtype=torch.float32)
            here = torch.ones(self.count, dtype=torch.bool), self.coins
            for nodes, has in zip(self.places(self.party).T, here if self.of_bits else here[::-1], strict=True):
                column = torch.zeros_like(nodes) if self.of_bits else torch.arange(self.count)
                features[nodes, column] = has.to(torch.float32)
            features = compact(features) if is_sparse(graph.features) else features
        return replace(graph, features=features, labels=self._labels(graph, trained), **masks)

    def _labels(self, graph: PartyGraph, trained: Tensor) -> Tensor | None:
        if graph.labels is None:
            return None
        classes = graph.num_classes or int(graph.labels.max()) + 1
        labels = graph.labels.clone()
        labels[trained] = 1 if self.of_bits else (labels[trained] + 1) % classes
        return labels


@dataclass(frozen=True)
class LabelCanaries(DrawnCanaries):
    """The label holder's canaries, among the labels that are perturbed."""

    kind: ClassVar[str] = "label canaries"
    coin: ClassVar[str] = "labels"

    @classmethod
    def of(cls, job: JobSettings, graph: PartyGraph, key: bytes) -> Self:
        """Draw those of a job with ``label_privacy`` in the label holder's graph; as ``VoteCanaries.of``."""
        private, trained = job.label_privacy, len(_training_nodes(graph))
        wanted = 0 if private is None else private.canaries
        if not 0 < wanted <= trained:
            raise ConfigError(
                f"label_privacy.canaries={wanted} must be from 1 to the number of training nodes, {trained}, whose "
                "labels they replace; choose fewer"
            )
        return cls(wanted, graph.common, key, job.hash())

    def places(self, graph: PartyGraph) -> Tensor:
        """Their nodes in the label holder's graph, which follow from the training nodes: Tensor[m] int64."""
        trained = _training_nodes(graph)
        return trained[self._drawn("places", (self.nodes,))[trained].argsort()[: self.count]]

    @override
    def into(self, graph: PartyGraph) -> PartyGraph:
        check_nodes(self.nodes, graph.common)
        if graph.labels is None:
            return graph
        labels = graph.labels.clone()
        labels[self.places(graph)] = self.coins.to(labels.dtype)
        return replace(graph, labels=labels)


def _training_nodes(graph: PartyGraph) -> Tensor:
    """Return the common training nodes that have a label, int64 [n]; ``DataError`` where nothing is labelled."""
    common = graph.common_part()
    if common.labels is None or common.train_mask is None:
        raise DataError(
            "label_privacy.canaries replace labels of training nodes, and this graph has none; give the label holder's"
        )
    return (common.train_mask & (common.labels >= 0)).nonzero().squeeze(1)


def canaries_in_data(job: JobSettings, graph: PartyGraph, key: Callable[[], bytes]) -> DrawnCanaries | None:
    """The canaries that a job has in a holder's data; None where it has none. ``key`` is asked for where it has any.

    Errors as ``VoteCanaries.of``.
    """
    plan, labels, release, has_labels = job.training_plan, job.label_privacy, job.noise.feature_release, graph.labels
    if plan is not None and plan.canaries and has_labels is not None:
        return plan.canaries_in(graph, key(), job.hash())
    if labels is not None and labels.canaries and graph.party in perturbing(job) and has_labels is not None:
        return LabelCanaries.of(job, graph, key())
    if release is not None and release.canaries and graph.party in job.duties.releasing:
        return release.canaries_in(graph, key(), job.hash())
    if job.noise.canaries and job.noise.sums_records:
        return RecordCanaries.of(job, graph, key())
    if job.noise.canaries:
        return VoteCanaries.of(job, graph.party, graph.common, key())
    return None
