"""Reading messages from a byte stream whose sender may lie about their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import LinkError
from veilgraph.core.types import Tag
from veilgraph.link.codec import HEADER_BYTES, MAX_MESSAGE_BYTES, build_tensor, decode_header

TRUSTED_BYTES: Final = 64 << 20
"""Memory that is set aside on the word of a header alone."""

Fill = Callable[[memoryview], None]
"""Fills the whole view with the next bytes of the stream, or raises."""


def read_message(fill: Fill, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Tag, Tensor]:
    """Reads the next message.

    Raises:
        ProtocolError: the bytes are not a legal message.
        LinkError: this machine has no memory for it.
        Exception: whatever ``fill`` raises.
    """
    head = bytearray(HEADER_BYTES)
    fill(memoryview(head))
    header = decode_header(head, max_message_bytes)
    try:
        data = _read_payload(fill, header.payload_bytes)
    except (MemoryError, RuntimeError) as error:  # torch reports a failed allocation as a RuntimeError
        raise LinkError(
            f"no memory for {header.tag} of {header.payload_bytes} bytes ({error})",
            code="memory",
            key=header.tag,
            value=header.payload_bytes,
        ) from error
    return header.tag, build_tensor(header, data)


def _read_payload(fill: Fill, length: int) -> Tensor:
    """Reads ``length`` bytes into a buffer that grows to at most twice what arrived, or ``TRUSTED_BYTES`` more."""
    data = torch.empty(min(length, TRUSTED_BYTES), dtype=torch.uint8)
    fill(data.numpy().data)
    while (arrived := data.numel()) < length:
        larger = torch.empty(min(length, arrived + max(arrived, TRUSTED_BYTES)), dtype=torch.uint8)
        larger[:arrived] = data
        data = larger
        fill(data.numpy().data[arrived:])
    return data
