"""The networks of sealed jobs, by the name that ``model.network`` has: a file and a line each.

With ``privacy`` a linear one is ``Voting``.
"""

from __future__ import annotations

from typing import Final

from veilgraph.paradigms.sealed.networks.coupled import Appnp, Gcn
from veilgraph.paradigms.sealed.networks.decoupled import Linear, Mlp, Sign, Voting
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.plan import Plan

NETWORKS: Final[dict[str, type[Network]]] = {
    "linear": Linear,
    "mlp": Mlp,
    "sign": Sign,
    "gcn": Gcn,
    "appnp": Appnp,
}


def network_of(plan: Plan) -> type[Network]:
    """That of a job."""
    return NETWORKS[plan.network] if plan.votes is None else Voting
