"""A party's view of a session: a link that records what crosses it, and the file of all messages, in their order.

Of a long session a view may keep the first messages of each kind and the newest alone. The file is a sequence of
entries, each of them

    names        u16, then so many bytes   sender and receiver, UTF-8, parted by a zero byte
    message      as on the wire            (link.codec): the header says how long it is

It grows while the session runs. A kill leaves at most its last entry torn, which is not read.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, ProtocolError, RunError
from veilgraph.core.files import new_file, os_errors_as
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import HEADER_BYTES, Header, build_tensor, decode_header, encode, encoded_size
from veilgraph.link.wrapper import Wrapper


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What ``sender`` gave ``receiver`` under ``tag``.

    The two names do not travel: a connection belongs to one pair of parties, so neither end can claim another name.
    """

    sender: PartyId
    receiver: PartyId
    tag: Tag
    tensor: Tensor


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

    ``keep`` is given every message, one at a time, whichever thread it crosses in; it must not change it. With
    ``keep_transcript`` a copy is kept too.
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
        """Record what a tag's message hides, as a message to itself; ``make`` is called only where a view is kept."""
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
        """The party's view: all that it sent and received, in order; ``ConfigError`` without ``keep_transcript``."""
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


_NAMES: Final = struct.Struct("<H")
_MOST_NAMES: Final = 256
_BUFFER_BYTES: Final = 1 << 20

_Series = tuple[PartyId, PartyId, Kind, int, tuple[int, ...]]
"""Sender, receiver, kind, round and shape of messages that come once a pass."""


class ViewFile:
    """The file of a view: ``RecordedLink(link, keep=file.append)``; raises ``RunError`` where it cannot be written.

    Of each sender, receiver, kind, round and shape, so many of the ``first`` are kept and the newest, at the end; None
    keeps all. Of a file of more than ``most_bytes`` it is ``least``.
    """

    def __init__(self, path: Path, first: int | None = None, most_bytes: int | None = None, least: int = 0) -> None:
        self._path, self._first = path, first
        self._most_bytes, self._least, self._bytes = most_bytes, least, 0
        self._kept: Counter[_Series] = Counter()
        self._newest: dict[_Series, Message] = {}
        with self._write_errors():
            self._file = new_file(path, buffering=_BUFFER_BYTES)

    def append(self, message: Message) -> None:
        """Adds a message; callers take turns."""
        shape = tuple(message.tensor.shape)
        series = (message.sender, message.receiver, message.tag.kind, message.tag.round, shape)
        if self._most_bytes is not None and self._bytes > self._most_bytes and self._first is not None:
            self._first = min(self._first, self._least)
        if self._first is not None and self._kept[series] >= self._first:
            self._newest.pop(series, None)  # so that the newest are written in the order in which they came
            self._newest[series] = message
            return
        self._kept[series] += 1
        self._write(message)

    def _write(self, message: Message) -> None:
        names = b"\0".join((message.sender.encode(), message.receiver.encode()))
        header, data = encode(message.tag, message.tensor)
        with self._write_errors():
            self._file.writelines((_NAMES.pack(len(names)), names, header, data))
            self._bytes += _NAMES.size + len(names) + len(header) + len(data)

    def close(self) -> None:
        """Writes what is left to the file."""
        for message in self._newest.values():
            self._write(message)
        self._newest.clear()
        with self._write_errors():
            self._file.close()

    def _write_errors(self) -> AbstractContextManager[None]:
        return os_errors_as(RunError, f"{self._path}: cannot be written", "free some space, or train without views")


@dataclass(frozen=True, slots=True)
class ViewEntry:
    """One message of a view; its tensor is read when asked for."""

    sender: PartyId
    receiver: PartyId
    tag: Tag
    shape: tuple[int, ...]
    session: int
    """Counts the sessions of a run: a tag is used once in each."""
    _path: Path
    _header: Header
    _start: int

    def tensor(self) -> Tensor:
        """Read the message's tensor from the file; ``RunError`` where that changed since."""
        with os_errors_as(RunError, f"{self._path}: cannot be read", "record the view again", ProtocolError):
            with self._path.open("rb") as file:
                file.seek(self._start)
                data = torch.empty(self._header.payload_bytes, dtype=torch.uint8)
                if file.readinto(data.numpy().data) != len(data):
                    raise ProtocolError("it is shorter than it was")
            return build_tensor(self._header, data)


def read_view(path: Path, session: int = 0) -> list[ViewEntry]:
    """The messages of a view, without their tensors; ``RunError`` where the file cannot be read, or is no view."""
    found: list[ViewEntry] = []
    with os_errors_as(RunError, f"{path}: no readable view", "record it again", ProtocolError, ValueError):
        size = path.stat().st_size
        if size == 0:
            return found
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            place = 0
            while place + _NAMES.size <= size:
                (length,) = _NAMES.unpack_from(view, place)
                if length > _MOST_NAMES:  # or rubbish would pass for a torn end
                    raise ProtocolError(f"names of {length} bytes")
                start = place + _NAMES.size + length
                if start + HEADER_BYTES > size:
                    break
                names = view[place + _NAMES.size : start].split(b"\0")
                header = decode_header(view[start : start + HEADER_BYTES])
                place = start + HEADER_BYTES + header.payload_bytes
                if place > size:
                    break
                sender, receiver = (name.decode() for name in names)
                found.append(
                    ViewEntry(sender, receiver, header.tag, header.shape, session, path, header, start + HEADER_BYTES)
                )
    return found
