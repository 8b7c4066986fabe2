"""The publisher of a session, with its ledgers open: what pays for each release, and what is sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError, RunError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import Canaries, check_nodes
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.ledger import Ledger, delta_at
from veilgraph.privacy.lifetime_costs import EVERYBODY, Keys
from veilgraph.privacy.lifetime_ledger import Account, Lifetime
from veilgraph.privacy.publisher import OPEN, HolderLedgers, Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import LifetimeCache, ReleaseCache, RunCache
from veilgraph.privacy.settings import LabelPrivacySettings
from veilgraph.protocol.canaries import canaries_in_data
from veilgraph.protocol.job import JobSettings, perturbing
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import RELEASE, depends_on, labels_perturbed
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import PartyStore

_NO_DELTA: Final = 1e-12  # of ledgers in which every ε is pure: a ledger has a δ, and these hold at any


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
    """A holder's publisher with its ledger open; ``OPEN`` where nothing has a price, and at the server.

    A ledger must be there if anything was kept of a run that has ``begun`` before. ``limit`` is the largest total ε
    that the party accepts, beside the job's budget; ``alignment`` gave the rows their order. ``lasting`` is its ledger
    of all jobs, which is paid first.

    Raises:
        RunError: a ledger, or the holder's canaries, are missing or damaged, or the ledger is of another job.
        ConfigError: the job wants more canaries than there are rows, or the mechanism cannot release so many columns.
        DataError: the data do not say how many classes there are, or which nodes are trained with.
    """
    with ExitStack() as opened:
        if graph is None:
            yield OPEN
        else:
            yield _SessionLedgers(store, settings, graph, limit, begun, alignment, lasting, opened).publisher()


@dataclass(frozen=True)
class _SessionLedgers(HolderLedgers):
    """A holder's ledgers; the attributes are arguments of ``publisher_of``, and ``opened`` closes what it opens."""

    store: PartyStore
    settings: JobSettings
    graph: PartyGraph
    limit: float | None
    begun: bool
    alignment: str
    lasting: LifetimeAccount | None
    opened: ExitStack

    def publisher(self) -> Publisher:
        """The publisher of what the job has this holder release; ``OPEN`` if that is nothing."""
        settings, graph, duties = self.settings, self.graph, self.settings.duties
        release, labels, training = settings.noise.feature_release, settings.label_privacy, settings.training_plan
        if release is not None and graph.party not in duties.summing:
            return release.publisher(self) if graph.party in duties.releasing else OPEN
        if labels is not None:
            learns = graph.party in perturbing(settings) and graph.labels is not None
            return self._label_publisher(labels) if learns else OPEN
        if training is not None:
            return training.publisher(self)
        plan = paradigm_of(settings).privacy.plan(settings, graph.party, graph.common)
        return OPEN if plan is None else plan.publisher(self)

    def _label_publisher(self, private: LabelPrivacySettings) -> Publisher:
        """The publisher of perturbed labels; ``DataError``: the number of classes is not known."""
        common = self.graph.common_part()
        if common.labels is None or common.num_classes is None:
            raise DataError(
                f"party {common.party!r}: num_classes: label_privacy needs to know how many classes there are"
            )
        nodes, labels = labels_perturbed(self.settings, common)
        response = LabelResponse(private.epsilon, common.num_classes)
        ledger = self._open_ledger(_NO_DELTA, None, self.account(None), expected=self._has_trained)
        cache = self._open_cache(ledger, self._row_keys[nodes.numpy()], nodes=nodes)
        return LabelPublisher(response, labels, ledger, system_secrets, cache, self.settings.noise.others_label)

    @override
    def ledger(
        self, delta: float | None, budget: float | None = None, *, follows: bool = False, lasting: bool = True
    ) -> Ledger:
        expected = self._has_trained or _has_released(self.store)
        if delta is None:
            return self._open_ledger(_NO_DELTA, budget, self.account(None), expected=expected)
        path, nodes = self.store.path / LEDGER, self.graph.common
        kept = delta_at(path) if follows else None
        if kept is not None and kept * nodes >= 1:
            raise RunError(
                f"{path}: its δ is {kept:g}, and with the {nodes} common nodes of now it must be below "
                f"{1 / nodes:.3g}; begin a new run"
            )
        delta = delta if kept is None else kept
        return self._open_ledger(delta, budget, self.account(delta) if lasting else None, expected=expected)

    @override
    def caches(self, ledger: Ledger, labelled: Tensor | None) -> tuple[ReleaseCache, ReleaseCache]:
        keys = self._row_keys[: self.graph.common]
        cache = self._open_cache(ledger, keys, self.settings.data.feature_scaling, nodes=labelled)
        if labelled is None or self.lasting is None:
            return cache, cache
        return cache, self._open_cache(ledger, keys[labelled.numpy()])

    @override
    def ordered(self, ledger: Ledger, *follows: object) -> tuple[Tensor | None, ReleaseCache]:
        keys, order, common = self._row_keys, None, self.graph.common
        if self.lasting is not None:
            order = order_by_key(keys, common)
            keys, order = keys[order.numpy()], order[:common]
        return order, self._open_cache(ledger, keys[:common], self.settings.data.feature_scaling, *follows, whole=True)

    @property
    def _has_trained(self) -> bool:
        return self.begun and _has_trained(self.store)

    @cached_property
    def _row_keys(self) -> Keys:
        """Key of each row in the lifetime ledger, or its row number without one: uint64[N]."""
        count = self.graph.num_nodes
        return np.arange(count, dtype=np.uint64) if self.lasting is None else self.lasting.each_key(count)

    @override
    def account(self, delta: float | None) -> Account | None:
        return None if self.lasting is None else self.lasting.account(self.settings, delta)

    def _open_ledger(self, delta: float, budget: float | None, account: Account | None, *, expected: bool) -> Ledger:
        """Open the run's ledger; its largest total ε is the lesser of ``budget`` and the party's limit."""
        most, job = min((each for each in (budget, self.limit) if each is not None), default=None), self.settings.hash()
        return self.opened.enter_context(
            Ledger.open(self.store.path / LEDGER, delta, most, job=job, expected=expected, lifetime=account)
        )

    def _open_cache(
        self, ledger: Ledger, keys: Keys, *follows: object, nodes: Tensor | None = None, whole: bool = False
    ) -> ReleaseCache:
        """Cache of releases: this run's, of ``nodes`` or all; with a lifetime ledger every job's, by ``keys``."""
        if (account := ledger.account) is None or self.lasting is None:
            return RunCache(ledger, self.store.keeper, depends_on(self.alignment, self.graph, nodes))
        canaries = self.store.canaries()  # which no other run is sent
        named = [self.settings.snapshot, "" if canaries is None else canaries.key.hex(), *map(repr, follows)]
        snapshot = json.dumps(named) if any(named) else ""
        by_place = self.lasting.ids is None
        return LifetimeCache(account, keys, ledger, snapshot=snapshot, whole=whole, by_place=by_place)


def _load_canaries(store: PartyStore, *, expected: bool) -> Canaries | None:
    """Load the run's canaries, None where there are none; ``RunError`` where they are ``expected`` and missing."""
    kept = store.canaries()
    if kept is None and expected:
        raise RunError(f"{store.canaries_path}: missing, though the run has begun; restore it, or begin a new run")
    return kept


def with_canaries(
    store: PartyStore, settings: JobSettings, graph: PartyGraph, *, begun: bool
) -> tuple[PartyGraph, Tensor | None]:
    """A holder's data with a run's canaries in them, and the rows among these whose releases are watched.

    Raises ``RunError`` where they are missing, damaged or of other nodes, ``ConfigError`` where nodes are too few.
    """
    kept = store.canaries()
    made = canaries_in_data(settings, graph, lambda: system_secrets(SEED_BYTES) if kept is None else kept.key)
    if made is None:
        return graph, None
    if kept is not None:
        check_nodes(kept.nodes, made.nodes)
    elif _load_canaries(store, expected=begun and (_has_trained(store) or _has_released(store))) is None:
        store.save_canaries(Canaries(made.count, made.nodes, made.key))
    return made.into(graph), made.watched


def _has_trained(store: PartyStore) -> bool:
    return bool(store.epochs() or store.model_path.is_file())


def _has_released(store: PartyStore) -> bool:
    """Whether a single release is complete here: a holder's own part alone is on disk before it is paid for."""
    return store.keeper.path(RELEASE).is_file()


@dataclass(frozen=True)
class LifetimeAccount:
    """A party's lifetime ledger, and the ids of its graph's rows; None where they have none."""

    ledger: Lifetime
    ids: Sequence[str] | None

    def each_key(self, nodes: int) -> Keys:
        """Key of each row, uint64[nodes]: a keyed hash of its id or, without ids, its number."""
        return np.arange(nodes, dtype=np.uint64) if self.ids is None else self.ledger.each_key(self.ids)

    def account(self, settings: JobSettings, delta: float | None) -> Account:
        """The account a job pays from at ``delta``, None for pure ε; ``RunError``: another ledger has these people."""
        keys = EVERYBODY
        if self.ids is not None:
            self.ledger.lines.check_people(self.ids)
            keys = self.ledger.keys(self.ids)
        return Account(self.ledger, keys, delta, settings.hash(), settings.name)


def order_by_key(each: Keys, common: int) -> Tensor:
    """Return the nodes by their keys, common ones first, which is the same order in every job: Tensor[N] int64."""
    return torch.from_numpy(np.lexsort((each, np.arange(len(each)) >= common)))
