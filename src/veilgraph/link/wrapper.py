"""A link around another one: a base for what does more when a message passes, and one that traces."""

from __future__ import annotations

from torch import Tensor

from veilgraph.core.trace import Trace
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.codec import encoded_size


class Wrapper:
    """A ``Link`` that does what the wrapped one does, with its errors."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.party = link.party
        """Name of the party on this end."""

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Sends over the wrapped link."""
        self._link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives over the wrapped link."""
        return self._link.receive(sender, tag)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Ask the wrapped link whether a message or its failure comes within ``timeout_s`` seconds; takes nothing."""
        return self._link.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """Set the wrapped link's limit of bytes that one sender may have unread."""
        self._link.expect(unread_bytes)

    def close(self) -> None:
        """Closes the wrapped link."""
        self._link.close()


class TracedLink(Wrapper):
    """A ``Link`` whose sends and receives are spans of a trace: tags, peers, bytes and times, and no values."""

    def __init__(self, link: Link, trace: Trace) -> None:
        super().__init__(link)
        self._trace = trace

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Send over the wrapped link in a span, with the tail of an arrow to the receive."""
        name = f"send {tag.kind.name.lower()} to {to}"
        with self._trace.span(name, "send", tag=str(tag), bytes=encoded_size(tensor)):
            self._trace.flow_begins(f"{self.party} to {to}: {tag}")
            self._link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receive over the wrapped link in a span as long as it waits, with the head of the send's arrow."""
        name = f"wait for {tag.kind.name.lower()} from {sender}"
        with self._trace.span(name, "wait", tag=str(tag)) as facts:
            tensor = self._link.receive(sender, tag)
            facts["bytes"] = encoded_size(tensor)
            self._trace.flow_ends(f"{sender} to {self.party}: {tag}")
            return tensor
