"""Paradigm local before anybody learns: what nodes perturbed is released, or what was kept of it used again."""

from __future__ import annotations

from veilgraph.core.errors import RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.releases import KeptRelease
from veilgraph.paradigms.run_directory import PartyStore
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.roles.feature_release import exchange_releases, released_features
from veilgraph.roles.local_learner import Bystander, LocalLearner, own_features
from veilgraph.roles.role import Role, Session


def local_role(session: Session, store: PartyStore, graph: PartyGraph | None, publisher: LocalPublisher | None) -> Role:
    """Agrees on the release with all other parties, and gives the party its role in what follows.

    Args:
        session: of the party.
        store: its files, which keep the release.
        graph: its own, validated; None at the server.
        publisher: of a holder that releases.

    Raises:
        BudgetSpent: a new release is needed, and a holder's budget has no room for it.
        ProtocolError: what came is no release of this job.
        DataError: a feature lies outside the declared range.
    """
    if graph is None:
        exchange_releases(session, None, 0, {}, None)
        return Bystander(session)
    learns = session.link.party == session.settings.data.label_party
    of_labels = (graph.labels, graph.train_mask, graph.val_mask) if publisher and publisher.response else ()
    kept = KeptRelease(store, session.alignment, graph.common, () if learns else (graph.features, *of_labels))
    releases = exchange_releases(session, graph, kept.number, kept.tensors, publisher)
    if releases.is_new:
        kept.replace(releases.number, releases.tensors)
    if not learns:
        return Bystander(session)
    try:
        features, labels = released_features(session, releases, graph.common), releases.labels(graph.common)
    except KeyError as error:
        raise RunError(
            f"{store.path}: the kept release lacks {error}; delete release.safetensors, and the holders release anew"
        ) from error
    return LocalLearner(session, graph, [own_features(graph), *features], labels)
