"""The seam of several machines of one holder: ``veilgraph-machines`` computes its local part on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from torch import nn

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Registry
from veilgraph.core.types import PartyId
from veilgraph.nn.local.model import LocalSettings
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.party_settings import MachineSettings

Machines = MachineSettings | int
"""What a party file names; or how many processes of this machine."""

_NAME: Final = "machines"
_SPREADINGS: Final[Registry[Spreading]] = Registry("veilgraph.machines", {}, "veilgraph.protocol.spreading:Spreading")


@dataclass(frozen=True, eq=False)
class LocalPart:
    """What several machines can compute for a holder.

    Attributes:
        local: the rounds' local models, each of which may be replaced by one with the same weights.
        settings: ``model.local`` of the job.
        holders: P.
    """

    local: nn.ModuleList
    adjacency: Adjacency
    settings: LocalSettings
    dim: int
    holders: int


class Spreading(ABC):
    """Computes a holder's local part on several machines."""

    @abstractmethod
    def spread(
        self, part: LocalPart, machines: Machines, party: PartyId, timeout_s: float
    ) -> AbstractContextManager[None]:
        """A block within which the part, whose models are replaced, is computed on all machines of the holder.

        Raises:
            ConfigError: the local model does not run on several machines.
            LinkError: a machine did not come within ``timeout_s``, or is gone.
        """


def installed_spreading() -> Spreading:
    """The installed implementation; raises ``ConfigError`` where there is none."""
    if _NAME not in _SPREADINGS:
        raise ConfigError(
            "machines: the distribution veilgraph-machines is not installed, which computes on several; install it "
            "(in a checkout: packages/machines), or leave machines out",
            code="not-installed",
            key="machines",
        )
    return _SPREADINGS[_NAME]
