"""One sealed message between two parties that share a key.

It travels under its own tag as one uint8 vector:

    counter                 u64, little-endian; never used twice under a key
    sealed header           the codec's 60 bytes, and 16 of GCM tag
    sealed data, if any     in segments of up to 1 GiB, each with 16 bytes of GCM tag

AES-256-GCM; nonce = segment number (u32) and counter (u64); associated data = job, from, to, tag and counter.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final

import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Tag
from veilgraph.link.codec import HEADER_BYTES, MAX_MESSAGE_BYTES, build_tensor, decode_header, encode

SEGMENT_BYTES: Final = 1 << 30
"""Data sealed by one call; AES-GCM of ``cryptography`` takes less than 2 GiB."""

_GCM_TAG_BYTES: Final = 16
_COUNTER_BYTES: Final = 8
_NO_DATA_BYTES: Final = _COUNTER_BYTES + HEADER_BYTES + _GCM_TAG_BYTES

SEALING_BYTES: Final = HEADER_BYTES + _COUNTER_BYTES + _GCM_TAG_BYTES * (2 + MAX_MESSAGE_BYTES // SEGMENT_BYTES)
"""The most that sealing adds to a message on the wire."""


class Sealer:
    """Seals one direction between two parties. Any number of threads may use it.

    Args:
        key: 32 bytes, of this direction alone.
        context: what every message is bound to besides its tag: job, sender, receiver, as ``joined`` makes it.
        max_message_bytes: limit of one message before it is sealed, header included.
    """

    def __init__(self, key: bytes, context: bytes, max_message_bytes: int) -> None:
        self._cipher = AESGCM(key)
        self._context = context
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._next_counter = 0

    def seal(self, tag: Tag, tensor: Tensor) -> Tensor:
        """Seals one message.

        Returns:
            Tensor[bytes] uint8, to be sent under the same tag.

        Raises:
            ProtocolError: the tag or the tensor has no encoding.
        """
        header, data = encode(tag, tensor, self._max_message_bytes)
        with self._lock:
            counter = self._next_counter
            self._next_counter += 1
        frame = torch.empty(_frame_bytes(data.nbytes), dtype=torch.uint8)
        view = memoryview(frame.numpy().data)
        view[:_COUNTER_BYTES] = counter.to_bytes(_COUNTER_BYTES, "little")
        associated = _associated(self._context, tag, counter)
        start = _COUNTER_BYTES
        for number, segment in enumerate(chain([memoryview(header)], _segments(data))):
            end = start + len(segment) + _GCM_TAG_BYTES
            self._cipher.encrypt_into(_nonce(number, counter), segment, associated, view[start:end])
            start = end
        return frame


class Opener:
    """Opens what the ``Sealer`` of the same key and context sealed, each message once, in any order."""

    def __init__(self, key: bytes, context: bytes, max_message_bytes: int) -> None:
        self._cipher = AESGCM(key)
        self._context = context
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._seen = _Numbers()

    def open(self, tag: Tag, frame: Tensor) -> Tensor:
        """Opens one message; nothing of it is returned, or kept, unless all of it is as it was sealed.

        Args:
            tag: under which the frame arrived.
            frame: what arrived; not changed.

        Raises:
            ProtocolError: it was not sealed for this place, was changed, or was opened before.
        """
        if frame.dtype != torch.uint8 or frame.ndim != 1 or frame.numel() < _NO_DATA_BYTES:
            raise ProtocolError(f"{frame.dtype} {list(frame.shape)} came, a sealed message was expected")
        view = memoryview(frame.contiguous().numpy().data)
        counter = int.from_bytes(view[:_COUNTER_BYTES], "little")
        associated = _associated(self._context, tag, counter)
        head = bytearray(HEADER_BYTES)
        self._decrypt(_nonce(0, counter), view[_COUNTER_BYTES:_NO_DATA_BYTES], associated, memoryview(head))
        header = decode_header(head, self._max_message_bytes)
        if header.tag != tag or len(view) != _frame_bytes(header.payload_bytes):
            raise ProtocolError(f"{len(view)} bytes came that hold {header.tag} of {header.payload_bytes} bytes")
        data = torch.empty(header.payload_bytes, dtype=torch.uint8)
        start = _NO_DATA_BYTES
        for number, segment in enumerate(_segments(memoryview(data.numpy().data)), start=1):
            end = start + len(segment) + _GCM_TAG_BYTES
            self._decrypt(_nonce(number, counter), view[start:end], associated, segment)
            start = end
        with self._lock:
            if not self._seen.add(counter):
                raise ProtocolError(f"message number {counter} came again")
        return build_tensor(header, data)

    def _decrypt(self, nonce: bytes, sealed: memoryview, associated: bytes, into: memoryview) -> None:
        try:
            self._cipher.decrypt_into(nonce, sealed, associated, into)
        except InvalidTag as error:
            raise ProtocolError("it was sealed with another key or for another place, or changed on the way") from error


def joined(*parts: bytes) -> bytes:
    """The parts, each after its length: no two lists of parts give the same bytes."""
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


class _Numbers:
    """A set of numbers, kept as the bounds of its runs: small as long as few are missing in between."""

    def __init__(self) -> None:
        self._bounds: list[int] = []  # first, last + 1, first, last + 1, ...

    def add(self, number: int) -> bool:
        """Adds ``number``; False if it was there."""
        bounds = self._bounds
        at = bisect_right(bounds, number)
        if at % 2:
            return False
        # A run that touches the number loses the bound between them.
        after = at < len(bounds) and bounds[at] == number + 1
        before = at > 0 and bounds[at - 1] == number
        bounds[at - before : at + after] = [number] * (not before) + [number + 1] * (not after)
        return True


def _associated(context: bytes, tag: Tag, counter: int) -> bytes:
    return context + struct.pack("<BQIQ", tag.kind, tag.step, tag.round, counter)


def _nonce(segment: int, counter: int) -> bytes:
    return struct.pack("<IQ", segment, counter)


def _segments(data: memoryview) -> Iterator[memoryview]:
    return (data[start : start + SEGMENT_BYTES] for start in range(0, len(data), SEGMENT_BYTES))


def _frame_bytes(data_bytes: int) -> int:
    segments = -(-data_bytes // SEGMENT_BYTES)
    return _NO_DATA_BYTES + data_bytes + segments * _GCM_TAG_BYTES
