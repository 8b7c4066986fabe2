"""What nodes perturbed is released before the learner learns: all that the holders send."""

from __future__ import annotations

from pathlib import Path

from veilgraph.core.errors import ProtocolError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp.learner import Bystander, LocalLearner, own_features
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.protocol.feature_release import exchange_releases, released_features
from veilgraph.protocol.released import agreed, damaged
from veilgraph.protocol.role import Role, Session


def local_role(session: Session, folder: Path, graph: PartyGraph | None, publisher: LocalPublisher | None) -> Role:
    """Agrees on the release with all other parties, and gives the party its role in what follows (paradigm local).

    Args:
        session: of the party.
        folder: of its files, where the release is kept.
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
    releases = agreed(session, folder, graph, publisher)
    if not learns:
        return Bystander(session)
    try:
        features, labels = released_features(session, releases, graph.common), releases.labels(graph.common)
    except (KeyError, ProtocolError) as error:
        raise damaged(folder, error) from error
    return LocalLearner(session, graph, [own_features(graph), *features], labels, is_new=releases.is_new)
