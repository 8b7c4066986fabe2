"""Which role a party plays in a job."""

from __future__ import annotations

from typing import Final

from veilgraph.nn.network import CustomModel
from veilgraph.paradigms.local_release import local_role, with_released_features
from veilgraph.paradigms.organisation import Aligned
from veilgraph.paradigms.releases import KeptRelease
from veilgraph.paradigms.run_directory import PartyStore
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.roles.data_holder import DataHolder
from veilgraph.roles.horizontal_holder import HorizontalHolder
from veilgraph.roles.horizontal_server import HorizontalServer
from veilgraph.roles.label_holder import LabelHolder
from veilgraph.roles.once import LearningHolder, OnceRole, ReleaseServer, ReleasingHolder
from veilgraph.roles.role import Role, Session
from veilgraph.roles.server import Server

_ROWS: Final = "released"


class Cast:
    """One party's role, and what it keeps of a single release beside its weights.

    Args:
        session: of the party.
        store: its files.
        aligned: its data.
        custom: for ``model.local.model: custom``.
        local: publisher of perturbed values, of a holder whose nodes release them.

    Attributes:
        role: not yet set up.
        begins_anew: whether it works with perturbed features that were released in this session, so that no checkpoint
            is of them.
    """

    def __init__(
        self,
        session: Session,
        store: PartyStore,
        aligned: Aligned,
        custom: CustomModel | None,
        local: LocalPublisher | None = None,
    ) -> None:
        graph = aligned.graph
        privacy, labelled = session.settings.privacy, session.link.party == session.settings.data.label_party
        self._kept: KeptRelease | None = None
        self.begins_anew = False
        self.role: Role
        if session.settings.paradigm == "local":
            self.role = local_role(session, store, graph, local)
        elif session.settings.paradigm == "horizontal":
            ids = aligned.ids or ()
            self.role = HorizontalServer(session) if graph is None else HorizontalHolder(session, graph, ids)
        elif privacy is None or not privacy.once:
            if session.settings.feature_release is not None:
                graph, self.begins_anew = with_released_features(session, store, graph, local)
            kind = LabelHolder if labelled else DataHolder
            self.role = Server(session) if graph is None else kind(session, graph, custom)
        elif graph is None:
            self.role = ReleaseServer(session)
        else:
            self._kept = KeptRelease(store, session.settings, session.alignment, graph)
            held, rows = self._kept.number, self._kept.tensors.get(_ROWS)
            self.role = (
                LearningHolder(session, graph, held, rows) if labelled else ReleasingHolder(session, graph, held)
            )

    def keep(self) -> None:
        """Once the role is set up: keeps a release that was made, before anything is computed from it."""
        role = self.role
        if self._kept is not None and isinstance(role, OnceRole) and role.is_new:
            rows = role.released if isinstance(role, LearningHolder) else None
            self._kept.replace(role.release_number, {} if rows is None else {_ROWS: rows})
