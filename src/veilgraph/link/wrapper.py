"""A link around another one, to be derived from by what does more when a message passes."""

from __future__ import annotations

from torch import Tensor

from veilgraph.core.types import Link, PartyId, Tag


class Wrapper:
    """A ``Link`` that does what the wrapped one does, with its errors.

    Args:
        link: the link that does the work; closed with this one.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._link.party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Sends over the wrapped link."""
        self._link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives over the wrapped link."""
        return self._link.receive(sender, tag)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """As the wrapped link."""
        return self._link.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """As the wrapped link."""
        self._link.expect(unread_bytes)

    def close(self) -> None:
        """Closes the wrapped link."""
        self._link.close()
