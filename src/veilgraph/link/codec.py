"""Tagged tensors as bytes: a fixed header, then the raw little-endian data. Nothing received is ever executed.

Header, 60 bytes, little-endian, no padding:

    magic              4 bytes   b"VEIL"
    version            u8        1
    kind               u8        of the tag
    dtype              u8        a code of DTYPES
    ndim               u8        0 to 4
    step               u64       of the tag
    round              u32       of the tag
    dims               4 × u64   unused ones are 0
    payload            u64       bytes of data that follow

Every legal message has exactly one encoding, and ``decode`` accepts nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import LinkError, ProtocolError
from veilgraph.core.types import Kind, Tag

MAGIC: Final = b"VEIL"
VERSION: Final = 1
MAX_DIMS: Final = 4
MAX_MESSAGE_BYTES: Final = 4 << 30
"""Default limit of a whole message, header included, in bytes."""
TRUSTED_BYTES: Final = 64 << 20
"""Memory that is set aside on the word of a header alone."""
DTYPES: Final[dict[int, torch.dtype]] = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int64,
    4: torch.uint8,
    5: torch.bool,
    6: torch.int32,
}
"""Code on the wire → dtype; no other dtype may be sent."""
_WIRE_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    code: np.dtype(wire) for code, wire in enumerate(("<f4", "<f8", "<i8", "u1", "?", "<i4"), start=1)
}
_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
_HEADER: Final = struct.Struct("<4sBBBBQI4QQ")
HEADER_BYTES: Final = _HEADER.size

Fill = Callable[[memoryview], None]
"""Fills the whole view with the next bytes of the stream, or raises."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header that keeps every rule: the shape, the dtype and the number of data bytes agree."""

    tag: Tag
    code: int
    shape: tuple[int, ...]
    payload_bytes: int


def encoded_size(tensor: Tensor) -> int:
    """Bytes that ``tensor`` takes on the wire: header and data."""
    return HEADER_BYTES + tensor.numel() * tensor.element_size()


def _require(holds: bool, code: str, words: str, value: object, key: Tag | None = None) -> None:
    if not holds:
        raise ProtocolError(words, code=code, key=key, value=value)


def sendable(tag: Tag, tensor: Tensor, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Tensor:
    """Return the tensor detached and contiguous, uncopied where it is; ``ProtocolError``: no message can carry it."""
    dtype, layout, size = tensor.dtype, tensor.layout, encoded_size(tensor)
    if not (0 <= tag.step < 2**64 and 0 <= tag.round < 2**32):
        words = f"cannot send {tag}: step must lie in [0, 2^64) and round in [0, 2^32)"
        raise ProtocolError(words, code="tag-range", key=tag)
    if dtype not in _CODES:
        words = f"cannot send {tag}: a tensor of {dtype}; convert it to one of {', '.join(map(str, _CODES))}"
        raise ProtocolError(words, code="dtype", value=str(dtype))
    if layout != torch.strided or tensor.device.type != "cpu":
        words = f"cannot send {tag}: a {layout} tensor on {tensor.device}; send a dense tensor on the CPU"
        raise ProtocolError(words, code="not-dense", value=str(layout))
    if tensor.ndim > MAX_DIMS:
        words = f"cannot send {tag}: {tensor.ndim} dimensions, {MAX_DIMS} are allowed; reshape it first"
        raise ProtocolError(words, code="dimensions", value=tensor.ndim)
    if size > max_message_bytes:
        words = (
            f"cannot send {tag}: {size} bytes, the limit is {max_message_bytes}; split it or raise max_message_bytes"
        )
        raise ProtocolError(words, code="too-large", value=size)
    return tensor.detach().contiguous().resolve_neg()


def encode(tag: Tag, tensor: Tensor, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[bytes, memoryview]:
    """Encodes one message: the header, and a view of the data as bytes, where contiguous of the tensor's own memory.

    Raises ``ProtocolError``: the tag or the tensor has no encoding.
    """
    tensor = sendable(tag, tensor, max_message_bytes)
    code = _CODES[tensor.dtype]
    values = tensor.reshape(-1).numpy()
    data = values.astype(_WIRE_DTYPES[code], copy=False).view(np.uint8).data
    dims = (*tensor.shape, *(0,) * (MAX_DIMS - tensor.ndim))
    header = _HEADER.pack(MAGIC, VERSION, tag.kind, code, tensor.ndim, tag.step, tag.round, *dims, data.nbytes)
    return header, data


def decode_header(header: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Header:
    """Read and check a message's first ``HEADER_BYTES`` bytes; ``ProtocolError`` says which field is wrong."""
    words = f"a header of {len(header)} bytes came, {HEADER_BYTES} were expected"
    _require(len(header) == HEADER_BYTES, "header-size", words, len(header))
    magic, version, kind, code, ndim, step, round_, *dims, payload_bytes = _HEADER.unpack(header)
    words = f"a message begins with {magic!r}, {MAGIC!r} was expected: is the peer this software?"
    _require(magic == MAGIC, "not-a-message", words, None)
    words = f"wire version {version} came, {VERSION} was expected: install one release at all parties"
    _require(version == VERSION, "wire-version", words, version)
    words = f"dtype code {code} came, one of {', '.join(map(str, DTYPES))} was expected"
    _require(code in DTYPES, "dtype", words, code)
    words = f"a tensor of {ndim} dimensions came, at most {MAX_DIMS} are allowed"
    _require(ndim <= MAX_DIMS, "dimensions", words, ndim)
    _require(not any(dims[ndim:]), "dims", f"dims {dims} came with ndim {ndim}: dims beyond ndim must be 0", dims)
    _check_size(tuple(dims[:ndim]), _WIRE_DTYPES[code].itemsize, payload_bytes, max_message_bytes)
    try:
        tag = Tag(Kind(kind), step, round_)
    except ValueError:
        words = f"kind {kind} came, one of 1 to {max(Kind)} was expected"
        raise ProtocolError(words, code="kind", value=kind) from None
    return Header(tag, code, tuple(dims[:ndim]), payload_bytes)


def _check_size(shape: tuple[int, ...], item_bytes: int, payload_bytes: int, limit: int) -> None:
    """Raise ``ProtocolError`` where a message is above the limit, or its shape does not make its data bytes."""
    size = HEADER_BYTES + payload_bytes
    _require(size <= limit, "too-large", f"a message of {size} bytes came, the limit is {limit}", size)
    words = f"shape {list(shape)} of {item_bytes}-byte elements came with {payload_bytes} bytes of data"
    _require(prod(shape) * item_bytes == payload_bytes, "data-size", words, payload_bytes)
    # Without data (a dim of 0) the other dims could still be too large for a tensor's strides.
    fits = prod(max(dim, 1) for dim in shape) * item_bytes <= limit
    _require(fits, "too-large", f"shape {list(shape)} came, too large for the limit of {limit} bytes", list(shape))


def build_tensor(header: Header, data: Tensor) -> Tensor:
    """Makes the tensor that ``header`` describes out of its data, Tensor[bytes] uint8, contiguous, without a copy.

    Raises ``ProtocolError``: the length is wrong, or a bool is neither 0 nor 1.
    """
    tag, raw = header.tag, data.numpy()
    words = f"{tag}: {raw.size} bytes of data came, {header.payload_bytes} were announced"
    _require(raw.size == header.payload_bytes, "data-size", words, raw.size, tag)
    if DTYPES[header.code] == torch.bool and raw.size:
        largest = int(raw.max())
        _require(largest <= 1, "bool", f"{tag}: a bool of value {largest} came, 0 or 1 was expected", largest, tag)
    wire = _WIRE_DTYPES[header.code]
    values = raw.view(wire).astype(wire.newbyteorder("="), copy=False)
    return torch.from_numpy(values.reshape(header.shape))


def decode(encoded: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Tag, Tensor]:
    """Decode one whole message into memory of its own; ``ProtocolError``: it is not exactly one legal message."""
    header = decode_header(encoded[:HEADER_BYTES], max_message_bytes)
    payload = memoryview(encoded)[HEADER_BYTES:]
    data = torch.empty(payload.nbytes, dtype=torch.uint8)
    data.numpy().data[:] = payload
    return header.tag, build_tensor(header, data)


def read_message(fill: Fill, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Tag, Tensor]:
    """Read the next message from a byte stream whose sender may lie about its length.

    Raises ``ProtocolError``: it is not a legal message; ``LinkError``: there is no memory for it; or as ``fill``.
    """
    head = bytearray(HEADER_BYTES)
    fill(memoryview(head))
    header = decode_header(head, max_message_bytes)
    try:
        data = _read_payload(fill, header.payload_bytes)
    except (MemoryError, RuntimeError) as error:  # torch reports a failed allocation as a RuntimeError
        words = f"no memory for {header.tag} of {header.payload_bytes} bytes ({error})"
        raise LinkError(words, code="memory", key=header.tag, value=header.payload_bytes) from error
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
