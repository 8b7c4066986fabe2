"""Which sites of a project are there, by when the server last heard of each.

FLARE's server lists a site for ten minutes after its last sign of life. What counts here is how long ago that was; the
server's process says so itself (`guard.commands.tell_ages`), for no two machines' clocks agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from nvflare.fuel.flare_api.flare_api import Session

from veilgraph.core.types import PartyId
from veilgraph.deploy.roles import Roles

LOST_S: Final = 30.0
"""A site gives a sign of life every 10 seconds; one of whom three are missing is lost."""

State = Literal["connected", "lost", "not connected"]


@dataclass(frozen=True)
class Presence:
    """A holder, or the dealer where that is no part of the server.

    Attributes:
        name: as in its certificate.
        heard_s: seconds since the server last heard of it; None: not for ten minutes, or not since the server began.
    """

    name: PartyId
    heard_s: float | None

    @property
    def state(self) -> State:
        """``lost``: it was there within ten minutes, and has fallen silent or left."""
        if self.heard_s is None:
            return "not connected"
        return "connected" if self.heard_s <= LOST_S else "lost"


def presences(session: Session, roles: Roles) -> tuple[Presence, ...]:
    """Every site of the project beside the server, holders first."""
    heard_s = {client.name: max(0.0, -client.last_connect_time) for client in session.get_system_info().client_info}
    names = roles.holders if roles.dealer is None else (*roles.holders, roles.dealer)
    return tuple(Presence(name, heard_s.get(name)) for name in names)
