"""The networks of sealed jobs, by the name that ``model.network`` has: a file and a line each."""

from __future__ import annotations

from typing import Final

from veilgraph.paradigms.sealed.networks.appnp import Appnp
from veilgraph.paradigms.sealed.networks.gcn import Gcn
from veilgraph.paradigms.sealed.networks.linear import Linear
from veilgraph.paradigms.sealed.networks.mlp import Mlp
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.sign import Sign

NETWORKS: Final[dict[str, type[Network]]] = {
    "linear": Linear,
    "mlp": Mlp,
    "sign": Sign,
    "gcn": Gcn,
    "appnp": Appnp,
}
