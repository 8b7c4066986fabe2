"""A wire between threads, as another package has it: docs/guides/extending.md says how."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import LinkError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES, decode, encode
from veilgraph.link.factory import LinkFactory, Network
from veilgraph.link.mailbox import Mailbox


class BytesLink:
    """Every message is encoded, and decoded into the other end's mailbox."""

    def __init__(self, party: PartyId, boxes: Mapping[PartyId, Mailbox], timeout_s: float, limit: int) -> None:
        self._party, self._boxes, self._timeout_s, self._limit = party, boxes, timeout_s, limit
        self._closed = False
        self.ends: Mapping[PartyId, BytesLink] = {}

    @property
    def party(self) -> PartyId:
        return self._party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if to not in self._boxes or to == self._party:
            raise ProtocolError(f"{self._party} has no link with {to!r}")
        header, data = encode(tag, tensor, self._limit)
        if self._closed:
            raise LinkError(f"{self._party} has closed its link")
        if self.ends[to]._closed:
            raise PeerFailed(f"{to} closed its link")
        if not self._boxes[to].wait_for_room(self._party, self._timeout_s):
            raise LinkTimeout(f"{to} took nothing for {self._timeout_s:g} s")
        self._boxes[to].put(self._party, *decode(header + bytes(data), self._limit))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        return self._boxes[self._party].take(sender, tag, self._timeout_s)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        return self._boxes[self._party].comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        self._boxes[self._party].expect(unread_bytes)

    def close(self) -> None:
        self._closed = True
        for name, box in self._boxes.items():
            if name == self._party:
                box.close()
            else:
                box.fail(self._party, PeerFailed(f"{self._party} closed its link"))


class BytesFactory(LinkFactory):
    @override
    def network(
        self, parties: Sequence[PartyId], timeout_s: float, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> Network:
        boxes = {name: Mailbox(name, [other for other in parties if other != name]) for name in parties}
        ends = {name: BytesLink(name, boxes, timeout_s, max_message_bytes) for name in parties}
        for end in ends.values():
            end.ends = ends
        return Network(ends)


BYTES = BytesFactory()
