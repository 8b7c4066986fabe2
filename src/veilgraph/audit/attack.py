"""An attack, and what an auditor has to score it with and an adversary has not: the truth, everybody's data, models.

``ATTACKS`` finds an attack by its name. A package adds its own, an ``Attack``, by an entry point of the group
``veilgraph.attacks``; ``veilgraph_testing.attack`` holds it to what all of them promise. What an adversary is granted
to know is drawn from the truth and named as such. Across organisations nobody has all that: see ``audit.across``.

Views come first. Of parties that put theirs together, whoever knows its own summand has the sum of the others' only;
the dealer and a holder together have what the dealt masks hide. ``docs/explanation/threat-model.md`` says against which
coalitions a claim is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic_core import from_json
from sklearn.decomposition import TruncatedSVD
from torch import Tensor

from veilgraph.audit.finding import Outcome, Secret, members_of
from veilgraph.audit.pairs import KnownPairs, alike_pairs, pair_codes, sample_pairs
from veilgraph.core.arguments import argument
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.settings import Registry
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.features import is_sparse, to_numbers, to_scipy
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.graph.pooling import pool
from veilgraph.link.view import read_view
from veilgraph.protocol.evidence import Evidence, Sort, evidence_of, source_of
from veilgraph.protocol.figures import LOSS
from veilgraph.protocol.job import ATTACKS as _REGISTERED
from veilgraph.protocol.view import Floats, View
from veilgraph.runtime.store import LEDGER, LEDGER_SUMMARY
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory


def view_files(run: RunDirectory, party: PartyId) -> list[Path]:
    """List the files of a party's view, one for each session. ``RunError``: none was recorded."""
    files = run.party(party).views() if run.party_path(party).is_dir() else []
    if not files:
        raise RunError(
            f"{run.path} has no recorded view of {party}; train the job again with {argument('record_views', 'True')}"
        )
    return files


def load_view(run: RunDirectory, party: PartyId) -> View:
    """Read a party's view: its messages, graph and predictions. ``RunError``: none was recorded, or it is damaged."""
    files = view_files(run, party)
    everything = [seen for number, path in enumerate(files) for seen in read_view(path, number)]
    own = tuple(seen for seen in everything if seen.sender == seen.receiver)
    messages = tuple(seen for seen in everything if seen.sender != seen.receiver)
    if not messages:
        raise RunError(f"{run.path}: the view of {party} has no message; record it again")
    graph = None if party == SERVER else load_party(run.party(party).graph_path)
    works = tuple(path.stem.partition("-")[2] for path in files)
    predicted = partial(predictions_of, run.party(party)) if party in run.settings.duties.scoring else None
    return View(party, run.settings, messages, own, graph, works, predicted, run.party(party).ids())


def predictions_of(store: PartyStore) -> Tensor:
    """Return a holder's newest class probabilities, uncalibrated: Tensor[N, C], in the row order of its saved graph.

    Raises ``RunError``: there are none; ``DataError``: they are no class probabilities, or lack some of these nodes.
    """
    found, ids = load_predictions(store), store.ids()
    if found.keys or not found.probabilities.shape[1]:
        raise DataError("the predictions are no probabilities of nodes' classes, which attacks on predictions read")
    if found.compared is None or ids is None:
        return found.uncalibrated
    places, common = {name: row for row, name in enumerate(found.compared)}, ids[: load_party(store.graph_path).common]
    missing = sum(name not in places for name in common)
    if missing:
        raise DataError(f"the newest predictions lack {missing} of the {len(common)} nodes that the run was trained on")
    return found.uncalibrated[[places[name] for name in common]]


def joined_evidence(views: Sequence[View]) -> list[Evidence]:
    """Return what members of a coalition can use against the holders outside of it, from all of their views.

    Masked messages are left out: what members can unmask together comes from the paradigm (``Source.joined``).
    """
    members = {view.party for view in views}
    outside = [name for name in views[0].settings.data.names if name not in members]
    found: dict[tuple[object, ...], Evidence] = {}
    for view in views:
        for each in evidence_of(view):
            about = tuple(party for party in each.about if party in outside)
            key = (each.sort, each.words, about)
            if not each.permitted or not about:
                continue
            if key not in found:
                found[key] = replace(each, about=about)
            elif each.updates:  # of the same h0, and each knows its own
                updates = zip(found[key].updates, each.updates, strict=False)
                found[key] = replace(found[key], updates=tuple(one + other for one, other in updates))
    holders = [view.of_training for view in views if view.party != SERVER]
    server = next((view.of_training for view in views if view.party == SERVER), None)
    more = source_of(views[0].settings).joined(server, holders, outside) if outside and holders else ()
    return [*found.values(), *more]


T = TypeVar("T")
Nodes: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Models: TypeAlias = tuple[Flags, Floats]
"""Which nodes each of M models was trained on, [M, N], and its posteriors of them, [M, N, C]."""
Parts: TypeAlias = tuple[Floats, ...]
"""What an adversary has of every node, of several kinds, [N, d] each."""

_WIDTH: Final = 128
_MOST_CLASSMATES: Final = 2000
_FEWEST: Final = 10
ALIKE: Final = 0.05
"""Share of pairs of nodes that count as alike."""


class AuditContext:
    """All data, views and models of a complete run; ``seed`` is of every draw, ``shadows`` how many shadow models."""

    def __init__(self, run: RunDirectory, *, seed: int, shadows: int) -> None:
        self.run, self.settings, self.seed, self.shadows = run, run.settings, seed, shadows
        self.source = source_of(self.settings)
        self._kept: dict[tuple[str, ...], Any] = {}

    def once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Return ``make()``, cached under ``key``: baselines are the same for several kinds of evidence."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    @property
    def is_aligned(self) -> bool:
        """Whether row v is the same node at every holder."""
        return self.settings.is_aligned

    def view(self, party: PartyId) -> View:
        """A party's recorded view (``load_view``), read once; ``RunError``: none was recorded."""
        return self.once(("view", party), lambda: load_view(self.run, party))

    def graph(self, party: PartyId) -> PartyGraph:
        """A holder's graph on the nodes that all holders have or, if not aligned, its own; ``DataError``: no holder."""
        if party not in self.settings.data.names:
            raise DataError(f"{party} is no holder, and has no data of its own")
        return self.once(("graph", party), lambda: self.whole_graph(party).common_part())

    def whole_graph(self, party: PartyId) -> PartyGraph:
        """A holder's graph as it was saved, with the nodes that ``graph`` leaves out."""
        return load_party(self.run.party(party).graph_path)

    def model(self, party: PartyId) -> Mapping[str, Tensor]:
        """The weights of the trained model that a party saved, by name."""
        return load_tensors(self.run.party(party).model_path)[0]

    def ledger(self, party: PartyId) -> list[dict[str, Any]]:
        """The entries of a holder's ledger; a ``DataError`` where that is not here."""
        return [from_json(line) for line in self._ledger_file(party, LEDGER).splitlines()[1:]]

    def ledger_summary(self, party: PartyId) -> dict[str, Any]:
        """The summary of a holder's ledger, its total ε included; a ``DataError`` where that is not here."""
        return cast(dict[str, Any], from_json(self._ledger_file(party, LEDGER_SUMMARY)))

    def _ledger_file(self, party: PartyId, name: str) -> str:
        path = self.run.party_path(party) / name
        if not path.is_file():
            raise DataError("its ledger is not here")
        return path.read_text(encoding="utf-8")

    def canary_key(self, party: PartyId) -> bytes | None:
        """The secret key that places a holder's canaries; None where it has none."""
        return None if (kept := self.run.party(party).canaries()) is None else kept.key

    def links(self, target: PartyId, adversary: PartyId) -> KnownPairs:
        """At most 1,000 linked and as many other pairs of the target's nodes, none of them linked at the adversary."""
        graph, others = self.graph(target), self.own_edges(adversary)
        edges, count = graph.edge_index.numpy(), graph.num_nodes
        hidden = edges[:, ~np.isin(pair_codes(edges.T, count), pair_codes(others.T, count)) & (edges[0] != edges[1])]
        links = min(len(np.unique(pair_codes(hidden.T, count))), 1000) or None
        return sample_pairs(hidden, count, seed=self.seed, links=links, left_out=others)

    def alike(self, target: PartyId) -> KnownPairs:
        """4,000 random pairs of the target's nodes; true: the 5 % whose features have the largest inner products."""
        features = self.graph(target).features.to_dense().numpy()
        return alike_pairs(features, 4000, share=ALIKE, seed=self.seed)

    def symbols(self, target: PartyId, told: Mapping[str, int]) -> tuple[Nodes, Nodes]:
        """Rows of a holder's nodes that others know by id, [n], and the class that each of them was ``told``, [n]."""
        rows = {name: row for row, name in enumerate(self.run.party(target).ids() or ())}
        known = [(rows[name], symbol) for name, symbol in told.items() if name in rows]
        nodes, classes = np.array(known, dtype=np.int64).reshape(-1, 2).T
        return nodes, classes

    def members(self, target: PartyId) -> Flags:
        """The training nodes of a holder with labels, [N] bool."""
        return np.isin(np.arange(self.graph(target).num_nodes), self.labels(target)[1])

    def classmates(self, target: PartyId, steps: Sequence[Floats]) -> tuple[Nodes, KnownPairs]:
        """At most 2,000 training nodes, and pairs of places among them, half of one class. ``steps`` is not read."""
        labels, train, _, _ = self.labels(target)
        random = np.random.default_rng(self.seed)
        nodes = train[labels[train] >= 0]
        if len(nodes) > _MOST_CLASSMATES:
            nodes = random.choice(nodes, size=_MOST_CLASSMATES, replace=False)
        first, second = np.triu_indices(len(nodes), k=1)
        same = labels[nodes[first]] == labels[nodes[second]]
        kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
        size = min(1000, *map(len, kinds))
        if not size:
            raise DataError(f"{len(nodes)} training nodes have no two of one class, or none of two; give more")
        chosen = np.concatenate([random.choice(kind, size=size, replace=False) for kind in kinds])
        return nodes, KnownPairs(np.stack([first[chosen], second[chosen]], axis=1), same[chosen])

    def class_names(self, target: PartyId, nodes: Nodes) -> tuple[Nodes, int] | None:
        """The class of each of ``nodes``, and the number of classes; None where the truth is not at hand."""
        labels, _, _, classes = self.labels(target)
        return labels[nodes], classes

    def own_rows(self, adversary: PartyId, target: PartyId) -> Floats | None:
        """``own_parts`` side by side, [N, d]: what the adversary has without any message; None if nothing."""
        parts = self.own_parts(adversary, target)
        return side_by_side(parts) if parts else None

    def own_parts(self, adversary: PartyId, target: PartyId) -> Parts:
        """The adversary's features [N, d] and, if it has labels, posteriors [N, C] of a network on its data alone."""
        holders = self.holders_of(adversary) if self.is_aligned or adversary == target else ()
        if not holders:
            return ()
        features = self.once(
            ("own", adversary),
            lambda: np.concatenate([narrowed(self.graph(each).features, self.seed) for each in holders], axis=1),
        )
        labelled = self.settings.data.label_party
        if labelled not in holders or not self.source.trains_alone:
            return (features,)
        mask = self.graph(labelled).train_mask
        return features, self.once(("alone", adversary), lambda: self._train_posteriors(labelled, mask, names=holders))

    def beside_own(self, evidence: Evidence, adversary: PartyId, target: PartyId) -> Evidence:
        """Put ``own_parts`` beside the rows of evidence of sort ``beside``; return other evidence unchanged."""
        own = self.own_parts(adversary, target)
        if evidence.sort != "beside" or evidence.rows is None or not own:
            return evidence
        parts = (*own, evidence.rows)
        return replace(evidence, rows=side_by_side(parts), parts=parts)

    def own_edges(self, adversary: PartyId) -> Nodes:
        """The adversary's own edges [2, E]; none in a job whose holders do not have the same nodes."""
        holders = self.holders_of(adversary) if self.is_aligned else ()
        found = [self.graph(each).edge_index.numpy() for each in holders]
        return np.concatenate([np.empty((2, 0), dtype=np.int64), *found], axis=1)

    def holders_of(self, adversary: PartyId) -> tuple[PartyId, ...]:
        """The holders among those whose views an adversary has."""
        members = members_of(adversary)
        return tuple(name for name in self.settings.data.names if name in members)

    def pooled_rows(self, target: PartyId, without: Sequence[int] = ()) -> Floats | None:
        """All holders' features of the target's nodes, each ``narrowed``, but not columns ``without`` of the target."""

        def make() -> Floats | None:
            narrow = []
            for party in self.settings.data.names if self.is_aligned else (target,):
                features = self.graph(party).features
                kept = np.setdiff1d(np.arange(features.shape[1]), without if party == target else ())
                if len(kept):
                    block = to_scipy(features) if is_sparse(features) else features
                    narrow.append(narrowed(block[:, kept], self.seed))
            return np.concatenate(narrow, axis=1) if narrow else None

        return self.once(("pooled", target, *map(str, without)), make)

    def labels(self, holder: PartyId) -> tuple[Nodes, Nodes, Nodes, int]:
        """A holder's labels [N], −1 where unknown, its training and its test nodes, and the number of classes."""
        graph = self.graph(holder)
        if graph.labels is None or graph.train_mask is None or graph.num_classes is None:
            raise DataError(f"{holder} has no labels; attacks on labels are about a holder that has")
        test = graph.test_mask if graph.test_mask is not None else ~graph.train_mask & (graph.labels >= 0)
        training, asked = (mask.nonzero()[:, 0].numpy() for mask in (graph.train_mask, test))
        return graph.labels.numpy(), training, asked, graph.num_classes

    def free_nodes(self, holder: PartyId) -> Flags:
        """Nodes with a label that are neither training nor test nodes, [N] bool."""
        labels, training, test, _ = self.labels(holder)
        free = labels >= 0
        free[training] = free[test] = False
        return free

    def pooled_posteriors(self, holder: PartyId) -> Floats | None:
        """Posteriors [N, C] of a network on all holders' plaintext and this one's labels; None if not aligned."""
        if not self.is_aligned:
            return None
        mask = self.graph(holder).train_mask
        return self.once(("posteriors", holder), lambda: self._train_posteriors(holder, mask))

    def shadow_models(self, holder: PartyId) -> Models:
        """Train ``shadows`` plaintext networks on random ``free_nodes``; ``DataError``: too few nodes have a label."""

        def make() -> Models:
            free, training = np.flatnonzero(self.free_nodes(holder)), len(self.labels(holder)[1])
            size = min(training, len(free) // 2)
            if size < _FEWEST:
                found = f"{training} training nodes and {len(free)} other nodes with a label that are not test nodes"
                raise DataError(f"{found}: shadow models need at least {_FEWEST} and {2 * _FEWEST}", party=holder)
            random = np.random.default_rng(self.seed)
            learned = (random.choice(free, size=size, replace=False) for _ in range(self.shadows))
            return self._train_models(holder, learned, random)

        return self.once(("shadows", holder), make)

    def paired_models(self, holder: PartyId, targets: Nodes) -> Models:
        """Train networks in pairs, on a random half of ``targets`` and on the other; give their posteriors of these.

        ``free_nodes`` fill the training sets up to the size of the run's own.
        """
        random, free, count = np.random.default_rng(self.seed), np.flatnonzero(self.free_nodes(holder)), len(targets)
        size = min(len(free), max(0, len(self.labels(holder)[1]) - count // 2))

        def learned() -> Iterator[Nodes]:
            for _ in range(self.shadows):
                half = random.permutation(count) < count // 2
                more = random.choice(free, size=size, replace=False)
                yield from (np.concatenate([targets[chosen], more]) for chosen in (half, ~half))

        members, posteriors = self._train_models(holder, learned(), random)
        return members[:, targets], posteriors[:, targets]

    def _train_models(self, holder: PartyId, learned: Iterable[Nodes], random: np.random.Generator) -> Models:
        """Train a network on each set of nodes in ``learned``, with a seed drawn from ``random`` after the set."""
        members, posteriors = list[Flags](), list[Floats]()
        for nodes in learned:
            members.append(np.isin(np.arange(self.graph(holder).num_nodes), nodes))
            seed = int(random.integers(2**31))
            posteriors.append(self._train_posteriors(holder, torch.from_numpy(members[-1]), seed=seed))
        return np.stack(members), np.stack(posteriors)

    def _train_posteriors(
        self,
        holder: PartyId,
        train_mask: Tensor | None,
        seed: int | None = None,
        names: Sequence[PartyId] | None = None,
    ) -> Floats:
        """Train a network like the run's, as long, on plaintext of ``names`` (None: all); its posteriors [N, C]."""
        settings, summary = self.settings, self.run.summary or {}
        everybody = settings.data.names if self.is_aligned else (holder,)
        everything = pool([self.graph(name) for name in names or everybody], holder)
        nobody = torch.zeros(everything.num_nodes, dtype=torch.bool)
        everything = replace(everything, train_mask=train_mask, val_mask=nobody, test_mask=nobody)
        epochs = max(1, int(summary.get("best_epoch") or settings.train.epochs))
        # Nobody validates, so no epoch is chosen: AUC, which needs validation nodes of every class, is not asked.
        train = settings.train.model_copy(update={"select_by": LOSS})
        like = settings.model_copy(update={"train": train} | ({} if seed is None else {"seed": seed}))
        return np.asarray(self.source.posteriors(like, everything, epochs).numpy())


class Beside(TypedDict):
    """Baselines of an attack's scores: those from the adversary's own data, and from all holders' features."""

    without: Floats | None
    pooled: Floats | None


@dataclass(frozen=True)
class Scene:
    """The arguments of one mounted attack: the evidence, the audited run, the adversary and its target."""

    evidence: Evidence
    case: AuditContext
    adversary: PartyId
    target: PartyId

    def links(self) -> KnownPairs:
        """Pairs of nodes that an attack on edges is scored on, half of them linked at the target."""
        return self.case.links(self.target, self.adversary)

    def own_rows(self) -> Floats | None:
        """The adversary's own data on the target's nodes, [N, d]; None where it has none."""
        return self.case.own_rows(self.adversary, self.target)

    def beside(self, score: Callable[[Floats], Floats]) -> Beside:
        """Apply an attack's ``score`` to the adversary's own rows, and to all holders' features."""
        pooled = scored(score, self.case.pooled_rows(self.target))
        return Beside(without=scored(score, self.own_rows()), pooled=pooled)


Mount = Callable[[Evidence, AuditContext, PartyId, PartyId], Outcome]
"""(evidence, case, adversary, target) → what the attack says; ``DataError`` where there is too little to say it."""


@dataclass(frozen=True)
class Attack:
    """An attack of the catalogue: the function that mounts it, and what it needs.

    Attributes:
        secret: what it infers.
        sorts: kinds of evidence that it is mounted on.
        of_labels: whether the target must have labels.
        blind: whether it needs nothing but the view, so that it can be mounted where no truth is.
        of_all_pairs: whether it compares each node with each, which takes few nodes.
    """

    secret: Secret
    sorts: tuple[Sort, ...]
    mount: Mount
    of_labels: bool = False
    blind: bool = False
    of_all_pairs: bool = False


ATTACKS: Final[Registry[Attack]] = _REGISTERED
"""The attacks by name. Settings check names against the same registry, which they hold untyped to import no audit."""


def attack(
    secret: Secret, *sorts: Sort, blind: bool = False, of_all_pairs: bool = False
) -> Callable[[Callable[[Scene], Outcome]], Attack]:
    """Decorator: make an ``Attack`` of a function. Attacks on labels or membership need a target with labels."""

    def made(function: Callable[[Scene], Outcome]) -> Attack:
        def mount(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
            return function(Scene(evidence, case, adversary, target))

        return Attack(secret, sorts, mount, secret in ("labels", "membership"), blind, of_all_pairs)

    return made


def scored(score: Callable[[Floats], Floats], rows: Floats | None) -> Floats | None:
    """Return ``score(rows)``; None where there are no rows."""
    return None if rows is None else score(rows)


def narrowed(features: object, seed: int) -> Floats:
    """A feature matrix [N, F] as at most 128 dense columns that keep most of it (truncated SVD)."""
    matrix: Any = to_numbers(features) if isinstance(features, Tensor) else features
    if matrix.shape[1] > _WIDTH:
        return np.asarray(TruncatedSVD(_WIDTH, n_iter=3, random_state=seed).fit_transform(matrix))
    dense = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    return np.asarray(dense, dtype=np.float64)


def side_by_side(parts: Parts) -> Floats:
    """Concatenate blocks [N, d], each centred and scaled to rows of length 1 on average; one alone stays as it is."""
    if len(parts) == 1:
        return parts[0]
    centred = [rows - rows.mean(axis=0) for rows in parts]
    return np.concatenate([rows / (np.sqrt((rows**2).sum(axis=1).mean()) or 1.0) for rows in centred], axis=1)


def some_of_each(nodes: Nodes, labels: Nodes, most: int, seed: int) -> Nodes:
    """Draw at most ``most`` of ``nodes`` [T], evenly over classes as far as these reach; ``labels`` [N] are of all."""
    if len(nodes) <= most:
        return nodes
    mixed = np.random.default_rng(seed).permutation(nodes)
    classes = labels[mixed]
    rank = np.empty(len(mixed), dtype=np.int64)  # the place of each among those of its class
    for each in np.unique(classes):
        rank[classes == each] = np.arange(int((classes == each).sum()))
    return np.asarray(mixed[np.argsort(rank, kind="stable")[:most]])
