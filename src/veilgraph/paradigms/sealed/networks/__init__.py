"""The networks of sealed jobs: one on hops over all holders' edges, and with ``privacy`` one on votes."""

from __future__ import annotations

from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.voting import Voting
from veilgraph.paradigms.sealed.plan import Plan


def network_of(plan: Plan) -> type[Network]:
    """Return the network class of a plan: ``Voting`` where it has votes, else ``Network``."""
    return Network if plan.votes is None else Voting
