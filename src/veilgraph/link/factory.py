"""The seam of wires: what joins the parties of a job that all run on one machine.

``LINKS`` finds one by its name. A package adds its own, an instance of a subclass of ``LinkFactory``, by an entry point
of the group ``veilgraph.links``; ``veilgraph.testing.link`` holds it to what all links promise. Across organisations it
is always ``FlareLink``, which the engine's job process makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from veilgraph.core.errors import ConfigError, LinkError
from veilgraph.core.registry import Registry
from veilgraph.core.types import Link, PartyId
from veilgraph.link.codec import MAX_MESSAGE_BYTES


class Network:
    """All ends of one wire, in one process.

    Args:
        links: party → its end.
    """

    def __init__(self, links: Mapping[PartyId, Link]) -> None:
        self._links = links

    def link(self, party: PartyId) -> Link:
        """The end of a party, the same at every call."""
        return self._links[party]

    def fail(self, party: PartyId, error: BaseException) -> None:
        """Ends the job for everyone because a party failed: the others' receives raise ``PeerFailed``."""
        with suppress(LinkError):
            self.link(party).close()


class _Inherited(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Invitation:
    """What a party's process needs to join.

    Attributes:
        arguments: of its command line.
        inherited: what it inherits from this process, which closes it once that runs.
    """

    arguments: Sequence[str]
    inherited: Sequence[_Inherited] = ()


class LinkFactory(ABC):
    """A wire between parties on one machine: threads of a process or, where it says so, processes."""

    @abstractmethod
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        """Joins parties that are threads.

        Args:
            parties: names, each once.
            timeout_s: longest wait of a receive, in seconds.
            max_message_bytes: limit of one message as it is encoded, header included.
        """

    def invitations(self, parties: Sequence[PartyId]) -> dict[PartyId, Invitation]:
        """For each party what it joins with in a process of its own.

        Raises:
            ConfigError: it joins threads alone.
        """
        joins = (name for name, each in LINKS.items() if type(each).invitations is not LinkFactory.invitations)
        raise ConfigError(f"link: {type(self).__name__} joins no processes; choose one of {', '.join(joins)}")

    def join(self, party: PartyId, arguments: Sequence[str], timeout_s: float) -> Link:
        """The end of a party, in its own process.

        Args:
            party: who joins.
            arguments: of its invitation.
            timeout_s: longest wait of a receive, in seconds.
        """
        raise NotImplementedError


LINKS: Final[Registry[LinkFactory]] = Registry(
    "veilgraph.links",
    {"memory": "veilgraph.link.memory:MEMORY", "sockets": "veilgraph.link.sockets:SOCKETS"},
    kind="veilgraph.link.factory:LinkFactory",
)
"""The wires by name."""
IN_THREADS: Final = "memory"
IN_PROCESSES: Final = "sockets"
