"""A wrapper of any link that counts what crosses it and, if asked, keeps it: the party's view."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import encoded_size
from veilgraph.link.message import Message
from veilgraph.link.wrapper import Wrapper

Direction = Literal["sent", "received"]


@dataclass(frozen=True, slots=True)
class TrafficEntry:
    """What ``party`` sent to, or received from, ``peer`` under one kind of tag.

    ``bytes`` is the size on the wire, headers included, the same whichever link carries the messages.
    """

    party: PartyId
    peer: PartyId
    direction: Direction
    kind: Kind
    messages: int
    bytes: int


class RecordedLink(Wrapper):
    """A ``Link`` that counts messages and bytes as they are sent and as they are received.

    Args:
        link: the link that does the work.
        keep_transcript: keep a copy of every message too.
        keep: given every message, one at a time, whichever thread it crosses in; it must not change it.
    """

    def __init__(
        self, link: Link, keep_transcript: bool = False, keep: Callable[[Message], None] | None = None
    ) -> None:
        super().__init__(link)
        self._keep = keep
        self._lock = threading.Lock()
        self._counts: dict[tuple[Direction, PartyId, Kind], tuple[int, int]] = {}
        self._transcript: list[Message] | None = [] if keep_transcript else None

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Sends over the wrapped link; counted once it succeeded. Errors as the wrapped link's."""
        self._link.send(to, tag, tensor)
        self._record("sent", to, Message(self.party, to, tag, tensor))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives over the wrapped link; counted once a role took it. Errors as the wrapped link's."""
        tensor = self._link.receive(sender, tag)
        self._record("received", sender, Message(sender, self.party, tag, tensor))
        return tensor

    def note(self, tag: Tag, make: Callable[[], Tensor]) -> None:
        """Keeps what this party computed and hid before it sent it, as a message to itself, where a view is kept.

        Args:
            tag: of the message that it went into.
            make: gives it; called only then.
        """
        if self._keep is not None:
            message = Message(self.party, self.party, tag, make())
            with self._lock:
                self._keep(message)

    def traffic(self) -> list[TrafficEntry]:
        """The counts so far, sorted by direction, peer and kind."""
        with self._lock:
            counts = sorted(self._counts.items())
        return [
            TrafficEntry(self.party, peer, direction, kind, messages, size)
            for (direction, peer, kind), (messages, size) in counts
        ]

    def transcript(self) -> tuple[Message, ...]:
        """The party's view: everything it sent and received, in its order.

        Raises:
            ConfigError: the link was made without ``keep_transcript``.
        """
        if self._transcript is None:
            raise ConfigError(
                f"keep_transcript=False: the link of {self.party} keeps none; make it with keep_transcript=True"
            )
        with self._lock:
            return tuple(self._transcript)

    def _record(self, direction: Direction, peer: PartyId, message: Message) -> None:
        key = (direction, peer, message.tag.kind)
        with self._lock:
            messages, size = self._counts.get(key, (0, 0))
            self._counts[key] = (messages + 1, size + encoded_size(message.tensor))
            if self._keep is not None:
                self._keep(message)
            if self._transcript is not None:
                copy = message.tensor.detach().clone()
                self._transcript.append(Message(message.sender, message.receiver, message.tag, copy))
