"""The paradigms by name, for modules that the seam of paradigms itself is made of: ``paradigm.PARADIGMS`` is typed."""

from __future__ import annotations

from typing import Any, Final

from veilgraph.core.settings import Registry

PARADIGMS: Final[Registry[Any]] = Registry(
    "veilgraph.paradigms",
    {
        "vertical": "veilgraph.paradigms.vertical.paradigm:VERTICAL",
        "horizontal": "veilgraph.paradigms.horizontal.paradigm:HORIZONTAL",
        "node-dp": "veilgraph.paradigms.node_dp.paradigm:NODE_DP",
        "sealed": "veilgraph.paradigms.sealed.paradigm:SEALED",
        "averaging": "veilgraph.paradigms.averaging.paradigm:AVERAGING",
    },
    kind="veilgraph.protocol.paradigm:Paradigm",
)
