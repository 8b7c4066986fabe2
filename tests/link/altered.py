"""Somebody in the middle of a link."""

from collections.abc import Callable

from torch import Tensor

from veilgraph.core.types import Link, PartyId, Tag

Alter = Callable[[Tag, Tensor], Tensor]


class AlteredLink:
    """A link on which somebody in the middle changes what arrives, and keeps what is sent."""

    def __init__(self, link: Link, alter: Alter) -> None:
        self.link, self.alter = link, alter
        self.sent: dict[Tag, Tensor] = {}

    @property
    def party(self) -> PartyId:
        return self.link.party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self.sent[tag] = tensor
        self.link.send(to, tag, tensor)

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        return self.alter(tag, self.link.receive(sender, tag))

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        return self.link.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        self.link.expect(unread_bytes)

    def close(self) -> None:
        self.link.close()


def unaltered(tag: Tag, tensor: Tensor) -> Tensor:
    return tensor
