"""A party's privacy ledger in its part of a run: opened for a piece of work, and summed up after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from torch import Tensor

from veilgraph.core.errors import DataError, RunError
from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.ledger_file import LedgerFile
from veilgraph.privacy.local.features import feature_mechanism
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.privacy.local.publish_labels import LabelPublisher
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.publish import NoisedPublisher
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.protocol.inserted import Inserted
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.label_canaries import LabelCanaries
from veilgraph.protocol.label_release import nodes_perturbed, released_labels
from veilgraph.protocol.node_canaries import NodeCanaries
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import RELEASE, OwnRelease, depends_on
from veilgraph.protocol.trained_canaries import TrainedCanaries
from veilgraph.run import names
from veilgraph.run.lifetimes import Lasting, order_of, sent_rows, sent_values
from veilgraph.run.run_directory import PartyStore
from veilgraph.run.sampled_ledgers import sampled_publisher_of

LEDGER: Final = names.LEDGER
LEDGER_SUMMARY: Final = "ledger.json"
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
    lasting: Lasting | None = None,
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
        ConfigError: the job wants more canaries than there are rows.
    """
    if (other := _other_publisher_of(store, settings, graph, limit, alignment, lasting, begun=begun)) is not None:
        with other as door:
            yield door
        return
    plan_ = None if graph is None else paradigm_of(settings).plan(settings, graph.party, graph.common)
    if graph is None or plan_ is None:
        yield OPEN
        return
    trained = begun and bool(store.epochs() or store.model_path.is_file())
    released = _has_released(store)
    canaries = None
    if plan_.settings.canaries_in == "rows":
        canaries = _canaries_of(store, plan_, graph.common, expected=trained or released)
    if plan_.multiplier == 0 and plan_.releases:  # ε = ∞: nothing that a ledger could hold
        with NoisedPublisher(plan_, None, system_secrets, canaries) as publisher:
            yield publisher
    else:
        budgets = [budget for budget in (plan_.settings.epsilon_total, limit) if budget is not None]
        kept = sent = account = order = None
        delta = _delta_of(store, plan_, graph.common)
        summed, once = plan_.settings.aggregation is not None, plan_.settings.once
        if lasting is not None:
            account, each = lasting.account(settings, delta), lasting.each_key(graph.num_nodes)
            if once and not (summed and plan_.settings.canaries):  # watched rows stay where they are
                order = order_of(each, graph.common)
        if not plan_.releases or not once or plan_.joint is not None:
            pass  # with once, the label holder; or what is in one sum, and in no other
        elif account is not None and lasting is not None:
            keys = each if order is None or not summed else each[order.numpy()]
            classes = graph.num_classes if graph.party in settings.summing else None
            sent = sent_rows(account, settings, plan_, lasting, keys[: graph.common], store.canaries(), classes)
        else:
            kept = OwnRelease(store.keeper, depends_on(alignment, graph))
        with (
            Ledger.open(
                store.path / LEDGER,
                delta,
                min(budgets, default=None),
                job=settings.hash(),
                expected=trained or released,
                lifetime=account,
            ) as ledger,
            NoisedPublisher(plan_, ledger, system_secrets, canaries, kept, sent) as publisher,
        ):
            publisher.order = order
            yield publisher


def _other_publisher_of(
    store: PartyStore,
    settings: JobSettings,
    graph: PartyGraph | None,
    limit: float | None,
    alignment: str,
    lasting: Lasting | None,
    *,
    begun: bool,
) -> AbstractContextManager[Publisher] | None:
    """Of a job that releases something else than rows; None where it does not."""
    if settings.feature_release is not None and (graph is None or graph.party not in settings.summing):
        return _local_publisher_of(store, settings, graph, limit, alignment, lasting)
    if settings.label_privacy is not None:
        return _label_publisher_of(store, settings, graph, limit, alignment, lasting, begun=begun)
    if (plan := settings.training_plan) is not None:
        return sampled_publisher_of(store, store.path / LEDGER, settings, plan, graph, limit, lasting, begun=begun)
    return None


def _delta_of(store: PartyStore, of: Plan, nodes: int) -> float:
    """δ of the ledger: the job's, or else that which it was begun with, when other nodes may have been common.

    Raises:
        RunError: there are so many more of them by now that it is 1/N or more.
    """
    kept = LedgerFile.delta_at(store.path / LEDGER)
    if of.settings.delta is not None or kept is None:
        return of.delta
    if kept * nodes >= 1:
        raise RunError(
            f"{store.path / LEDGER}: its δ is {kept:g}, and with the {nodes} common nodes of now it must be below "
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
    privacy, release = settings.privacy, settings.feature_release
    of_nodes = release is not None and release.canaries > 0 and graph.party in settings.releasing
    labels = settings.label_privacy
    of_labels = labels is not None and labels.canaries > 0 and graph.party in settings.perturbing
    of_labels = of_labels and graph.labels is not None
    trained = settings.training_plan
    of_gradients = trained is not None and trained.settings.canaries > 0 and graph.labels is not None
    if not (of_nodes or of_labels or of_gradients) and (privacy is None or privacy.canaries_in != "data"):
        return graph, None
    kept = store.canaries()
    if kept is None and begun and (store.epochs() or store.model_path.is_file() or _has_released(store)):
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
    with_labels = settings.label_release is not None and settings.label_release.holder == graph.party
    return (graph if release is None else made.into(graph, release.low, release.high, labels=with_labels)), None


@contextmanager
def _local_publisher_of(
    store: PartyStore,
    settings: JobSettings,
    graph: PartyGraph | None,
    limit: float | None,
    alignment: str,
    lasting: Lasting | None,
) -> Iterator[Publisher]:
    """Of a holder whose nodes perturb their values; an open door at all other parties.

    Raises:
        RunError: the ledger is missing, damaged or of another job.
        ConfigError: the mechanism cannot release so many columns.
    """
    release, labels = settings.feature_release, settings.label_release
    if release is None or graph is None or graph.party not in settings.releasing:
        yield OPEN
        return
    mechanism, response = feature_mechanism(release, graph.num_features), None
    if labels is not None and labels.holder == graph.party and graph.num_classes is not None:
        response = LabelResponse(labels.epsilon, graph.num_classes)
    kept = account = sent = sent_labels = known = None
    if response is not None:
        *_, known = released_labels(graph.common_part())
    if lasting is None:
        kept = OwnRelease(store.keeper, depends_on(alignment, graph, known))
    else:
        account, each = lasting.account(settings, release.delta), lasting.each_key(graph.num_nodes)
        canaries = store.canaries()
        rows = each if graph.party in settings.learning else each[: graph.common]
        sent = sent_values(account, settings, lasting, rows, canaries, settings.data.feature_scaling)
        if known is not None:
            sent_labels = sent_values(account, settings, lasting, each[: graph.common][known.numpy()], canaries)
    with Ledger.open(
        store.path / LEDGER,
        _NO_DELTA if release.delta is None else release.delta,
        limit,
        job=settings.hash(),
        expected=_has_released(store),
        lifetime=account,
    ) as ledger:
        yield LocalPublisher(mechanism, response, ledger, system_secrets, kept, sent, sent_labels)


@contextmanager
def _label_publisher_of(
    store: PartyStore,
    settings: JobSettings,
    graph: PartyGraph | None,
    limit: float | None,
    alignment: str,
    lasting: Lasting | None,
    *,
    begun: bool,
) -> Iterator[Publisher]:
    """Of a holder that learns from perturbed labels; an open door at all other parties, and where there are no labels.

    Raises:
        RunError: the ledger is missing, damaged or of another job.
        DataError: it does not say how many classes there are, or which nodes are trained with.
    """
    private = settings.label_privacy
    if private is None or graph is None or graph.party not in settings.perturbing or graph.labels is None:
        yield OPEN
        return
    common = graph.common_part()
    nodes = nodes_perturbed(common, settings.perturbed_splits)
    if common.labels is None or common.num_classes is None:
        raise DataError(f"party {graph.party!r}: num_classes: label_privacy needs to know how many classes there are")
    response, labels = LabelResponse(private.epsilon, common.num_classes), common.labels[nodes]
    kept = sent = account = None
    if lasting is None:
        kept = OwnRelease(store.keeper, depends_on(alignment, graph, nodes))
    else:
        account, each = lasting.account(settings, None), lasting.each_key(graph.num_nodes)[nodes.numpy()]
        sent = sent_values(account, settings, lasting, each, store.canaries())
    with Ledger.open(
        store.path / LEDGER,
        _NO_DELTA,
        limit,
        job=settings.hash(),
        expected=begun and bool(store.epochs() or store.model_path.is_file()),
        lifetime=account,
    ) as ledger:
        yield LabelPublisher(response, labels, ledger, system_secrets, kept, sent)


def _has_released(store: PartyStore) -> bool:
    """Whether a holder that releases once, and so has no checkpoints, has kept anything of it.

    Its own bytes alone do not say so: they are kept before they are paid for.
    """
    return store.keeper.path(RELEASE).is_file()
