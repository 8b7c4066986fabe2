"""The publisher of a session, with its ledgers open: what pays for each release, and what is sent again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import DataError, RunError
from veilgraph.core.files import locked, private_folder
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.ledger import Ledger, delta_at
from veilgraph.privacy.lifetime_costs import EVERYBODY, Keys
from veilgraph.privacy.lifetime_ledger import Account, Lifetime
from veilgraph.privacy.local_features import feature_mechanism
from veilgraph.privacy.local_publisher import LabelPublisher, LocalPublisher
from veilgraph.privacy.plan import Plan, SampledPlan
from veilgraph.privacy.publisher import OPEN, NoisedPublisher, Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import FOLDER, LifetimeCache, ReleaseCache, RunCache
from veilgraph.privacy.sampled import SampledPublisher
from veilgraph.privacy.settings import FeatureReleaseSettings, LabelPrivacySettings
from veilgraph.protocol.canaries import Inserted, LabelCanaries, NodeCanaries, TrainedCanaries
from veilgraph.protocol.job import JobSettings, perturbed_splits, perturbing
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import RELEASE, depends_on, nodes_perturbed, released_labels
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import PartyStore

_NO_DELTA: Final = 1e-12
"""Of ledgers in which every ε is pure: a ledger has a δ, and these hold at any."""


@contextmanager
def publisher_of(
    store: PartyStore,
    settings: JobSettings,
    graph: PartyGraph | None,
    limit: float | None,
    *,
    begun: bool,
    alignment: str = "",
    lasting: LifetimeAccount | None = None,
) -> Iterator[Publisher]:
    """A holder's publisher with its ledger open; an open door where nothing has a price, and at the server.

    Args:
        store: of the party.
        settings: the job.
        graph: the party's; None at the server.
        limit: the largest total ε that the party itself accepts, beside the job's budget.
        begun: whether the run has begun before, so that a ledger must be there if anything was kept of it.
        alignment: identity of the alignment that gave the rows their order; empty where there was none.
        lasting: what the party has beyond the run: its ledger of all jobs, which is paid first; None for none.

    Raises:
        RunError: a ledger, or the holder's canaries, are missing or damaged, or the ledger is of another job.
        ConfigError: the job wants more canaries than there are rows, or the mechanism cannot release so many columns.
        DataError: the data do not say how many classes there are, or which nodes are trained with.
    """
    if graph is None:
        yield OPEN
        return
    holder = _Holder(store, settings, graph, limit, begun, alignment, lasting)
    release, labels, training = settings.noise.feature_release, settings.label_privacy, settings.training_plan
    if release is not None and graph.party not in settings.duties.summing:
        opened = holder.perturbed_features(release)
    elif labels is not None:
        opened = holder.perturbed_labels(labels)
    elif training is not None:
        opened = holder.sampled_gradients(training)
    else:
        opened = holder.noised_rows(paradigm_of(settings).privacy.plan(settings, graph.party, graph.common))
    with opened as door:
        yield door


@dataclass(frozen=True)
class _Holder:
    """Whose door is opened; the attributes are the arguments of ``publisher_of``."""

    store: PartyStore
    settings: JobSettings
    graph: PartyGraph
    limit: float | None
    begun: bool
    alignment: str
    lasting: LifetimeAccount | None

    @contextmanager
    def noised_rows(self, plan: Plan | None) -> Iterator[Publisher]:
        """The door of embeddings, gradients and sums."""
        if plan is None:
            yield OPEN
            return
        store, graph, lasting, privacy = self.store, self.graph, self.lasting, plan.settings
        expected = (self.begun and _has_trained(store)) or _has_released(store)
        canaries = None
        if privacy.canaries_in == "rows":
            canaries = _canaries_of(store, plan, graph.common, expected=expected)
        if plan.multiplier == 0 and plan.releases:  # ε = ∞: nothing that a ledger could hold
            with NoisedPublisher(plan, None, system_secrets, canaries) as publisher:
                yield publisher
            return
        delta, summed, order = self._delta(plan), privacy.aggregation is not None, None
        if lasting is not None and privacy.once and not (summed and privacy.canaries):  # watched rows stay in place
            order = order_of(lasting.each_key(graph.num_nodes), graph.common)
        account = self._account(delta)
        with (
            self._ledger(delta, privacy.epsilon_total, expected=expected, account=account) as ledger,
            NoisedPublisher(
                plan, ledger, system_secrets, canaries, self._row_cache(plan, ledger, account, order)
            ) as door,
        ):
            door.order = order
            yield door

    def _row_cache(
        self, plan: Plan, ledger: Ledger, account: Account | None, order: Tensor | None
    ) -> ReleaseCache | None:
        """Of what is released once; None: nothing is kept of what is in one sum and in no other."""
        graph, lasting = self.graph, self.lasting
        if not plan.releases or not plan.settings.once or plan.joint is not None:
            return None
        if account is None or lasting is None:
            return RunCache(ledger, self.store.keeper, depends_on(self.alignment, graph))
        each = lasting.each_key(graph.num_nodes)
        if order is not None and plan.settings.aggregation is not None:
            each = each[order.numpy()]
        classes = graph.num_classes if graph.party in self.settings.duties.summing else None
        return cached_rows(
            account, ledger, self.settings, plan, lasting, each[: graph.common], self.store.canaries(), classes
        )

    @contextmanager
    def perturbed_features(self, release: FeatureReleaseSettings) -> Iterator[Publisher]:
        """The door of features that nodes perturb, and of labels where these are released too."""
        store, settings, graph, lasting = self.store, self.settings, self.graph, self.lasting
        if graph.party not in settings.duties.releasing:
            yield OPEN
            return
        mechanism, labels = feature_mechanism(release, graph.num_features), settings.noise.label_release
        response = known = label_cache = None
        if labels is not None and labels.holder == graph.party and graph.num_classes is not None:
            response = LabelResponse(labels.epsilon, graph.num_classes)
            *_, known = released_labels(graph.common_part())
        account, delta = self._account(release.delta), _NO_DELTA if release.delta is None else release.delta
        with self._ledger(delta, None, expected=_has_released(store), account=account) as ledger:
            cache: ReleaseCache
            if account is None or lasting is None:
                cache = RunCache(ledger, store.keeper, depends_on(self.alignment, graph, known))
            else:
                each, canaries = lasting.each_key(graph.num_nodes), store.canaries()
                rows = each if graph.party in settings.duties.learning else each[: graph.common]
                scaling = settings.data.feature_scaling
                cache = cached_values(account, ledger, settings, lasting, rows, canaries, scaling)
                if known is not None:
                    rows = each[: graph.common][known.numpy()]
                    label_cache = cached_values(account, ledger, settings, lasting, rows, canaries)
            yield LocalPublisher(mechanism, response, ledger, system_secrets, cache, label_cache)

    @contextmanager
    def perturbed_labels(self, private: LabelPrivacySettings) -> Iterator[Publisher]:
        """The door of who learns from perturbed labels; an open one where there are no labels."""
        store, settings, graph, lasting = self.store, self.settings, self.graph, self.lasting
        if graph.party not in perturbing(settings) or graph.labels is None:
            yield OPEN
            return
        common = graph.common_part()
        nodes = nodes_perturbed(common, perturbed_splits(settings))
        if common.labels is None or common.num_classes is None:
            raise DataError(
                f"party {graph.party!r}: num_classes: label_privacy needs to know how many classes there are"
            )
        response, labels = LabelResponse(private.epsilon, common.num_classes), common.labels[nodes]
        account, expected = self._account(None), self.begun and _has_trained(store)
        with self._ledger(_NO_DELTA, None, expected=expected, account=account) as ledger:
            cache: ReleaseCache
            if account is None or lasting is None:
                cache = RunCache(ledger, store.keeper, depends_on(self.alignment, graph, nodes))
            else:
                each = lasting.each_key(graph.num_nodes)[nodes.numpy()]
                cache = cached_values(account, ledger, settings, lasting, each, store.canaries())
            yield LabelPublisher(response, labels, ledger, system_secrets, cache)

    @contextmanager
    def sampled_gradients(self, plan: SampledPlan) -> Iterator[Publisher]:
        """The door of private training (``averaging.privacy``); an open one where there are no labels."""
        if self.graph.labels is None:
            yield OPEN
            return
        expected = self.begun and _has_trained(self.store)
        with self._ledger(plan.delta, plan.settings.epsilon_total, expected=expected, account=None) as ledger:
            yield SampledPublisher(plan, ledger, system_secrets, self._account(plan.delta))

    def _account(self, delta: float | None) -> Account | None:
        return None if self.lasting is None else self.lasting.account(self.settings, delta)

    @contextmanager
    def _ledger(
        self, delta: float, budget: float | None, *, expected: bool, account: Account | None
    ) -> Iterator[Ledger]:
        """The run's, within the job's budget and the party's limit."""
        budgets = [each for each in (budget, self.limit) if each is not None]
        with Ledger.open(
            self.store.path / LEDGER,
            delta,
            min(budgets, default=None),
            job=self.settings.hash(),
            expected=expected,
            lifetime=account,
        ) as ledger:
            yield ledger

    def _delta(self, plan: Plan) -> float:
        """δ of the ledger: the job's, or else that which it was begun with, when other nodes may have been common.

        Raises:
            RunError: there are so many more of them by now that it is 1/N or more.
        """
        path, nodes = self.store.path / LEDGER, self.graph.common
        kept = delta_at(path)
        if plan.settings.delta is not None or kept is None:
            return plan.delta
        if kept * nodes >= 1:
            raise RunError(
                f"{path}: its δ is {kept:g}, and with the {nodes} common nodes of now it must be below "
                f"{1 / nodes:.3g}; begin a new run"
            )
        return kept


def _canaries_of(store: PartyStore, of: Plan, nodes: int, *, expected: bool) -> Canaries | None:
    """A holder's canaries, the same in all sessions of a run: on the disk before the first release."""
    if not of.canaries:
        return None
    kept = store.canaries()
    if kept is None:
        if expected:
            raise RunError(f"{store.canaries_path}: missing, though the run has begun; restore it, or begin a new run")
        kept = Canaries.draw(of.canaries, nodes, system_secrets)
        store.save_canaries(kept)
    return kept


def with_canaries(
    store: PartyStore, settings: JobSettings, graph: PartyGraph, *, begun: bool
) -> tuple[PartyGraph, Tensor | None]:
    """A holder's data with canaries in them, the same in all sessions of a run, where the job has such.

    Returns:
        The graph, and the rows that canaries take whose releases are watched, None for none.

    Raises:
        RunError: they are missing or damaged, or of another number of nodes.
        ConfigError: there are too few common nodes for so many.
    """
    privacy, release = settings.privacy, settings.noise.feature_release
    of_nodes = release is not None and release.canaries > 0 and graph.party in settings.duties.releasing
    labels = settings.label_privacy
    of_labels = labels is not None and labels.canaries > 0 and graph.party in perturbing(settings)
    of_labels = of_labels and graph.labels is not None
    trained = settings.training_plan
    of_gradients = trained is not None and trained.settings.canaries > 0 and graph.labels is not None
    if not (of_nodes or of_labels or of_gradients) and (privacy is None or privacy.canaries_in != "data"):
        return graph, None
    kept = store.canaries()
    if kept is None and begun and (_has_trained(store) or _has_released(store)):
        raise RunError(f"{store.canaries_path}: missing, though the run has begun; restore it, or begin a new run")
    key = None if kept is None else kept.key
    made: NodeCanaries | Inserted | LabelCanaries | TrainedCanaries
    if of_gradients:
        made = TrainedCanaries.of(settings, graph, system_secrets, key)
    elif of_labels:
        made = LabelCanaries.of(settings, graph, system_secrets, key)
    elif of_nodes:
        made = NodeCanaries.of(settings, graph.common, system_secrets, key)
    else:
        made = Inserted.of(settings, graph.party, graph.common, system_secrets, key)
    if kept is None:
        store.save_canaries(Canaries(made.count, made.nodes, made.key))
    if isinstance(made, Inserted):
        return made.into(graph), made.everywhere
    if isinstance(made, TrainedCanaries):
        return made.into(graph), made.places.flatten()
    if isinstance(made, LabelCanaries):
        return made.into(graph), None
    with_labels = settings.noise.label_release is not None and settings.noise.label_release.holder == graph.party
    return (graph if release is None else made.into(graph, release.low, release.high, labels=with_labels)), None


def _has_trained(store: PartyStore) -> bool:
    return bool(store.epochs() or store.model_path.is_file())


def _has_released(store: PartyStore) -> bool:
    """Whether a holder that releases once, and so has no checkpoints, has kept anything of it.

    Its own bytes alone do not say so: they are kept before they are paid for.
    """
    return store.keeper.path(RELEASE).is_file()


_BUSY: Final = (
    "another training pays from the same ledger for life in every step, and both might end without a model where "
    "limits.max_epsilon is spent: go on with this one (resume) when that has ended"
)


@dataclass(frozen=True)
class LifetimeAccount:
    """What a party has beyond a run.

    Attributes:
        ledger: of all its jobs.
        ids: of all rows of its graph; None where nobody told its nodes apart.
    """

    ledger: Lifetime
    ids: Sequence[str] | None

    def each_key(self, nodes: int) -> Keys:
        """What each row goes by: its node's key, or its place; of so many."""
        return np.arange(nodes, dtype=np.uint64) if self.ids is None else self.ledger.each_key(self.ids)

    def account(self, settings: JobSettings, delta: float | None) -> Account:
        """What a job pays from.

        Args:
            settings: the job.
            delta: of the job's ε; None where each is pure.

        Raises:
            RunError: another ledger is about the same people.
        """
        keys = EVERYBODY
        if self.ids is not None:
            self.ledger.lines.check_people(self.ids)
            keys = self.ledger.keys(self.ids)
        return Account(self.ledger, keys, delta, settings.hash(), settings.name)


@contextmanager
def training_alone(lasting: LifetimeAccount | None, settings: JobSettings) -> Iterator[str]:
    """Holds the ledger for a training that pays in every step, under a limit; else two would spend it between them.

    Gives why the party refuses the job: another training holds it. Empty where none does, and where none has to.
    """
    privacy = settings.privacy
    with ExitStack() as held:
        busy = ""
        if lasting is not None and math.isfinite(lasting.ledger.budget.epsilon) and privacy and not privacy.once:
            try:
                held.enter_context(locked(private_folder(lasting.ledger.lines.folder / "training"), _BUSY))
            except RunError as error:
                busy = str(error)
        yield busy


def snapshot_of(settings: JobSettings, canaries: Canaries | None, *follows: object) -> str:
    """Return the name of a release: its snapshot, its canaries, and the settings that released values follow from.

    All are public, or drawn for the run. Of a release with canaries no other run is sent anything, nor the reverse.
    """
    named = [settings.snapshot, "" if canaries is None else canaries.key.hex(), *map(repr, follows)]
    return json.dumps(named) if any(named) else ""


def cached_rows(
    account: Account,
    ledger: Ledger,
    settings: JobSettings,
    plan: Plan,
    lasting: LifetimeAccount,
    each: Keys,
    canaries: Canaries | None,
    classes: int | None = None,
) -> LifetimeCache:
    """Return what a holder ever released of rows, or of sums over neighbours (``privacy.schedule: once``)."""
    privacy = plan.settings
    bounds = (privacy.unit, privacy.degree_bound, privacy.aggregation, privacy.sum_clip, plan.own_length)
    named = snapshot_of(settings, canaries, settings.data.feature_scaling, settings.noise.network, classes, *bounds)
    return LifetimeCache(
        account, each, ledger, snapshot=named, whole=privacy.unit != "row", by_place=lasting.ids is None
    )


def cached_values(
    account: Account,
    ledger: Ledger | None,
    settings: JobSettings,
    lasting: LifetimeAccount,
    each: Keys,
    canaries: Canaries | None,
    *follows: object,
) -> LifetimeCache:
    """Return what a holder ever released of labels, or of features that nodes perturb: each is its node's own.

    Args:
        account: what the job pays from.
        ledger: of the run; None where nothing is paid there.
        settings: the job.
        lasting: what the holder has beyond the run.
        each: of the released nodes, in their order.
        canaries: of the run.
        follows: settings beside the mechanism that released values follow from.
    """
    named = snapshot_of(settings, canaries, *follows)
    return LifetimeCache(account, each, ledger, snapshot=named, by_place=lasting.ids is None)


def order_of(each: Keys, common: int) -> Tensor:
    """Return the nodes by their keys, common ones first, which is the same order in every job: Tensor[N] int64."""
    return torch.from_numpy(np.lexsort((each, np.arange(len(each)) >= common)))


def release_streams(lifetime: Lifetime) -> LearningStreams:
    """Of the fixed random weights that rows are made with: the same in every job, so that rows are the same."""
    return LearningStreams(seed_of(lifetime.secret("projection")), lifetime.lines.header.party)


def keeper_of(account: Account, how: str) -> FolderKeeper:
    """Of what was released as a whole in one way, in a folder of its own."""
    folder = account.lifetime.lines.folder / FOLDER / sha256(how.encode()).hexdigest()
    return FolderKeeper(private_folder(folder))
