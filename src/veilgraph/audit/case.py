"""What an auditor has and an adversary has not: the truth, everybody's data, and models to compare with.

Attacks are scored with it; what an adversary is granted to know is drawn from it and named as such. Across
organisations nobody has all that: see ``audit.across``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.audit.attacks.label_gradients import matched
from veilgraph.audit.attacks.pairs import KnownPairs, sample_pairs
from veilgraph.audit.attacks.reconstruction import alike_pairs
from veilgraph.audit.columns import Parts, narrowed, side_by_side
from veilgraph.audit.finding import members_of
from veilgraph.audit.roc import Floats
from veilgraph.audit.source import source_of
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_scipy
from veilgraph.graph.partition import pool
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.protocol.figures import LOSS
from veilgraph.run.run_directory import RunDirectory

if TYPE_CHECKING:
    from veilgraph.audit.evidence import Evidence
    from veilgraph.paradigms.vertical.twin import PlainNetwork

Nodes = NDArray[np.int64]
Shadow = tuple[NDArray[np.bool_], Floats]

_MOST_LINKS: Final = 1000
_MOST_CLASSMATES: Final = 2000
_MOST_CLASS_PAIRS: Final = 1000
_ALIKE_PAIRS: Final = 4000
ALIKE: Final = 0.05
"""Share of pairs of nodes that count as alike."""


class Case:
    """A run under audit.

    Args:
        run: complete, with all parties' parts.
        seed: of everything drawn.
        shadows: models that adversaries train on nodes that are none of the targets.
    """

    def __init__(self, run: RunDirectory, *, seed: int, shadows: int) -> None:
        self.run, self.settings, self.seed, self.shadows = run, run.settings, seed, shadows
        self._graphs: dict[PartyId, PartyGraph] = {}
        self._kept: dict[tuple[str, ...], Floats | None] = {}
        self._pooled: dict[PartyId, Floats] = {}
        self._shadows: dict[PartyId, list[Shadow]] = {}
        self._twin: PlainNetwork | None = None

    def once(self, key: tuple[str, ...], make: Callable[[], Floats | None]) -> Floats | None:
        """What was made under a key, made the first time: baselines are the same for several kinds of evidence."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    @property
    def is_aligned(self) -> bool:
        """Whether row v is the same node at every holder."""
        return self.settings.is_aligned

    def graph(self, party: PartyId) -> PartyGraph:
        """A holder's data about the nodes that the job is about."""
        if party not in self.settings.data.names:
            raise DataError(f"{party} is no holder, and has no data of its own")
        if party not in self._graphs:
            self._graphs[party] = load_party(self.run.party(party).graph_path).common_part()
        return self._graphs[party]

    def links(self, target: PartyId, adversary: PartyId) -> KnownPairs:
        """Pairs of nodes, half of them linked at the target, and none at the adversary.

        Raises:
            DataError: the target has too few links.
        """
        edges, others = self.graph(target).edge_index.numpy(), self.own_edges(adversary)
        if others.shape[1]:
            count = self.graph(target).num_nodes
            known = np.concatenate([others[0] * count + others[1], others[1] * count + others[0]])
            edges = edges[:, ~np.isin(edges[0] * count + edges[1], known)]
        distinct = len(np.unique(np.sort(edges[:, edges[0] != edges[1]], axis=0), axis=1).T)
        return sample_pairs(
            edges,
            self.graph(target).num_nodes,
            seed=self.seed,
            links=min(distinct, _MOST_LINKS) or None,
            left_out=others,
        )

    def alike(self, target: PartyId) -> KnownPairs:
        """Random pairs of nodes, and which of them have inner products of features among the largest."""
        features = self.graph(target).features.to_dense().numpy()
        return alike_pairs(features, _ALIKE_PAIRS, share=ALIKE, seed=self.seed)

    def members(self, target: PartyId) -> NDArray[np.bool_]:
        """The training nodes of a holder with labels, [N] bool."""
        found = np.zeros(self.graph(target).num_nodes, dtype=np.bool_)
        found[self.labels(target)[1]] = True
        return found

    def classmates(self, target: PartyId, steps: Sequence[Floats]) -> tuple[Nodes, KnownPairs]:
        """Training nodes, and pairs of places among them, as many of one class as of two, all different.

        Args:
            target: a holder with labels.
            steps: gradients that tell who is trained on.

        Raises:
            DataError: there are too few of one kind.
        """
        labels, train, _, _ = self.labels(target)
        random = np.random.default_rng(self.seed)
        nodes = train[labels[train] >= 0]
        if len(nodes) > _MOST_CLASSMATES:
            nodes = random.choice(nodes, size=_MOST_CLASSMATES, replace=False)
        first, second = np.triu_indices(len(nodes), k=1)
        same = labels[nodes[first]] == labels[nodes[second]]
        kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
        size = min(_MOST_CLASS_PAIRS, *map(len, kinds))
        if not size:
            raise DataError(f"{len(nodes)} training nodes have no two of one class, or none of two; give more")
        chosen = np.concatenate([random.choice(kind, size=size, replace=False) for kind in kinds])
        return nodes, KnownPairs(np.stack([first[chosen], second[chosen]], axis=1), same[chosen])

    def agreement(self, target: PartyId, nodes: Nodes, groups: Nodes) -> tuple[float | None, str]:
        """How many of some nodes are in the group of their class, by the names that fit best; and of how many."""
        labels, _, _, classes = self.labels(target)
        right = matched(groups, labels[nodes]) == labels[nodes]
        return float(right.mean()), f" where there are {classes} classes"

    def own_rows(self, adversary: PartyId, target: PartyId) -> Floats | None:
        """What the adversary has of the target's nodes without any message; None where that is nothing."""
        parts = self.own_parts(adversary, target)
        return side_by_side(parts) if parts else None

    def own_parts(self, adversary: PartyId, target: PartyId) -> Parts:
        """The same apart: its features, and what a network of its own data alone predicts, where it has labels."""
        holders = self.holders_of(adversary) if self.is_aligned or adversary == target else ()
        if not holders:
            return ()
        features = self.once(
            ("own", adversary),
            lambda: np.concatenate([narrowed(self.graph(each).features, self.seed) for each in holders], axis=1),
        )
        labelled = self.settings.data.label_party
        if labelled not in holders or not source_of(self.settings).trains_alone:
            return (cast(Floats, features),)
        alone = self.once(
            ("alone", adversary),
            lambda: self._posteriors(labelled, self.graph(labelled).train_mask, names=holders),
        )
        return cast(Floats, features), cast(Floats, alone)

    def beside_own(self, evidence: Evidence, adversary: PartyId, target: PartyId) -> Evidence:
        """Evidence of sort ``beside`` with what the adversary has without it; others as they are."""
        own = self.own_parts(adversary, target)
        if evidence.sort != "beside" or evidence.rows is None or not own:
            return evidence
        parts = (*own, evidence.rows)
        return replace(evidence, rows=side_by_side(parts), parts=parts)

    def own_edges(self, adversary: PartyId) -> Nodes:
        """The links that the adversary has itself, between the target's nodes: [2, E]; none where rows differ."""
        holders = self.holders_of(adversary) if self.is_aligned else ()
        found = [self.graph(each).edge_index.numpy() for each in holders]
        return np.concatenate([np.empty((2, 0), dtype=np.int64), *found], axis=1)

    def holders_of(self, adversary: PartyId) -> tuple[PartyId, ...]:
        """The holders among those whose views an adversary has."""
        members = members_of(adversary)
        return tuple(name for name in self.settings.data.names if name in members)

    def pooled_rows(self, target: PartyId, without: Sequence[int] = ()) -> Floats | None:
        """All holders' features of the target's nodes, less some columns of the target; None where nothing is left."""
        return self.once(("pooled", target, *map(str, without)), lambda: self._pooled_rows(target, without))

    def _pooled_rows(self, target: PartyId, without: Sequence[int]) -> Floats | None:
        parties = self.settings.data.names if self.is_aligned else (target,)
        blocks = []
        for party in parties:
            features = self.graph(party).features
            kept = np.setdiff1d(np.arange(features.shape[1]), without if party == target else ())
            if len(kept):
                blocks.append(to_scipy(features)[:, kept] if features.layout == torch.sparse_csr else features[:, kept])
        narrow = [narrowed(block, self.seed) for block in blocks]
        return np.concatenate(narrow, axis=1) if narrow else None

    def labels(self, holder: PartyId) -> tuple[Nodes, Nodes, Nodes, int]:
        """A holder's labels [N], −1 where unknown, its training and its test nodes, and the number of classes.

        Raises:
            DataError: it has none.
        """
        graph = self.graph(holder)
        if graph.labels is None or graph.train_mask is None or graph.num_classes is None:
            raise DataError(f"{holder} has no labels; attacks on labels are about a holder that has")
        test = graph.test_mask if graph.test_mask is not None else ~graph.train_mask & (graph.labels >= 0)
        return graph.labels.numpy(), _where(graph.train_mask), _where(test), graph.num_classes

    def pooled_posteriors(self, holder: PartyId) -> Floats:
        """Of a model trained on everybody's plaintext and a holder's labels, [N, C]."""
        if holder not in self._pooled:
            self._pooled[holder] = self._posteriors(holder, self.graph(holder).train_mask)
        return self._pooled[holder]

    def shadow_models(self, holder: PartyId) -> list[Shadow]:
        """Training nodes [N] and posteriors [N, C] of models on nodes that are neither training nor test nodes.

        Raises:
            DataError: there are too few such nodes with a label.
        """
        if holder not in self._shadows:
            self._shadows[holder] = self._shadow_models(holder)
        return self._shadows[holder]

    def _shadow_models(self, holder: PartyId) -> list[Shadow]:
        labels, training, test, _ = self.labels(holder)
        free = np.setdiff1d(np.flatnonzero(labels >= 0), np.concatenate([training, test]))
        size = min(len(training), len(free) // 2)
        if size < _FEWEST:
            raise DataError(
                f"{len(free)} nodes with a label are neither training nor test nodes; shadow models need {2 * _FEWEST}"
            )
        random, models = np.random.default_rng(self.seed), []
        for _ in range(self.shadows):
            members = np.zeros(len(labels), dtype=np.bool_)
            members[random.choice(free, size=size, replace=False)] = True
            models.append(
                (members, self._posteriors(holder, torch.from_numpy(members), seed=int(random.integers(2**31))))
            )
        return models

    def paired_models(self, holder: PartyId, targets: Nodes) -> tuple[NDArray[np.bool_], Floats]:
        """Which targets each model was trained on, [M, T], and its posteriors of them, [M, T, C]: half of all models.

        Models come in pairs that learn from one half of the targets and from the other, and are filled up with nodes
        that are neither training nor test nodes to as many as the run was trained on.
        """
        labels, training, _, _ = self.labels(holder)
        free, count = np.flatnonzero(self.free_nodes(holder)), len(targets)
        random = np.random.default_rng(self.seed)
        members, posteriors = [], list[Floats]()
        for _ in range(self.shadows):
            half = random.permutation(count) < count // 2
            more = random.choice(free, size=min(len(free), max(0, len(training) - count // 2)), replace=False)
            for chosen in (half, ~half):
                learned = np.zeros(len(labels), dtype=np.bool_)
                learned[targets[chosen]] = learned[more] = True
                seed = int(random.integers(2**31))
                members.append(chosen)
                posteriors.append(self._posteriors(holder, torch.from_numpy(learned), seed=seed)[targets])
        return np.stack(members), np.stack(posteriors)

    def twin(self) -> PlainNetwork:
        """The trained network.

        Raises:
            DataError: its inferences cannot be made anew.
        """
        if self._twin is None:
            self._twin = source_of(self.settings).twin(self.run)
        return self._twin

    def free_nodes(self, holder: PartyId) -> NDArray[np.bool_]:
        """Nodes with a label that are neither training nor test nodes, [N] bool."""
        labels, training, test, _ = self.labels(holder)
        free = labels >= 0
        free[training] = free[test] = False
        return free

    def _posteriors(
        self,
        holder: PartyId,
        train_mask: Tensor | None,
        seed: int | None = None,
        names: Sequence[PartyId] | None = None,
    ) -> Floats:
        """Of a network like the run's, trained as long as that was, on some holders' plaintext; None: all that fit."""
        settings, summary = self.settings, self.run.summary or {}
        everybody = settings.data.names if self.is_aligned else (holder,)
        graphs = [self.graph(name) for name in names or everybody]
        everything = pool(graphs, holder)
        nobody = torch.zeros(everything.num_nodes, dtype=torch.bool)
        everything = replace(everything, train_mask=train_mask, val_mask=nobody, test_mask=nobody)
        epochs = max(1, int(summary.get("best_epoch") or settings.train.epochs))
        # Nobody validates, so no epoch is chosen: AUC, which needs validation nodes of every class, is not asked.
        train = settings.train.model_copy(update={"select_by": LOSS})
        like = settings.model_copy(update={"train": train} | ({} if seed is None else {"seed": seed}))
        return np.asarray(source_of(settings).posteriors(like, everything, epochs).numpy())


_FEWEST: Final = 10


def some_of_each(nodes: Nodes, labels: Nodes, most: int, seed: int) -> Nodes:
    """At most so many of some nodes, rare classes whole: as many of each class as there are, or an even share.

    Args:
        nodes: [T], to choose among.
        labels: [N], of all nodes.
        most: to choose.
        seed: of the draw.
    """
    if len(nodes) <= most:
        return nodes
    mixed = np.random.default_rng(seed).permutation(nodes)
    classes = labels[mixed]
    rank = np.empty(len(mixed), dtype=np.int64)  # the place of each among those of its class
    for each in np.unique(classes):
        rank[classes == each] = np.arange(int((classes == each).sum()))
    return np.asarray(mixed[np.argsort(rank, kind="stable")[:most]])


def _where(mask: Tensor) -> Nodes:
    return mask.nonzero()[:, 0].numpy()
