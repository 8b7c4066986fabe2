"""A wrapper of any link that notes when its party sends and when it waits for a message, with arrows between them."""

from __future__ import annotations

from torch import Tensor

from veilgraph.core.trace import Trace
from veilgraph.core.types import Link, PartyId, Tag
from veilgraph.link.codec import encoded_size
from veilgraph.link.wrapper import Wrapper


class TracedLink(Wrapper):
    """A ``Link`` whose sends and receives are spans of a trace: tags, peers, bytes on the wire, times, and no values.

    Args:
        link: the link that does the work.
        trace: of the party.
    """

    def __init__(self, link: Link, trace: Trace) -> None:
        super().__init__(link)
        self._trace = trace

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Sends over the wrapped link: a span and an arrow's tail. Errors as the wrapped link's."""
        name = f"send {tag.kind.name.lower()} to {to}"
        with self._trace.span(name, "send", tag=str(tag), bytes=encoded_size(tensor)):
            self._trace.flow_begins(_arrow(self.party, to, tag))
            self._link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives over the wrapped link: a span as long as it waits, and an arrow's head. Errors as that link's."""
        name = f"wait for {tag.kind.name.lower()} from {sender}"
        with self._trace.span(name, "wait", tag=str(tag)) as facts:
            tensor = self._link.receive(sender, tag)
            facts["bytes"] = encoded_size(tensor)
            self._trace.flow_ends(_arrow(sender, self.party, tag))
            return tensor


def _arrow(sender: PartyId, receiver: PartyId, tag: Tag) -> str:
    return f"{sender} to {receiver}: {tag}"
