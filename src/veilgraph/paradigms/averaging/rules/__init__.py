"""What holders train for, and what the server makes of the sum: one file each, one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from veilgraph.paradigms.averaging.rules.fedadam import FedAdamSettings
from veilgraph.paradigms.averaging.rules.fedavg import FedAvgSettings
from veilgraph.paradigms.averaging.rules.fedprox import FedProxSettings
from veilgraph.paradigms.averaging.rules.fedsgd import FedSgdSettings

AnyRuleSettings = Annotated[
    FedAvgSettings | FedProxSettings | FedSgdSettings | FedAdamSettings, Field(discriminator="name")
]
"""Of whichever rule they name."""
