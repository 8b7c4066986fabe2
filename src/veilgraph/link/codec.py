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
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Tag

MAGIC: Final = b"VEIL"
VERSION: Final = 1
MAX_DIMS: Final = 4
MAX_MESSAGE_BYTES: Final = 4 << 30
"""Default limit of a whole message, header included, in bytes."""

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
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i8"),
    4: np.dtype("u1"),
    5: np.dtype("?"),
    6: np.dtype("<i4"),
}
_CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
_HEADER: Final = struct.Struct("<4sBBBBQI4QQ")
HEADER_BYTES: Final = _HEADER.size
_MAX_STEP: Final = 2**64 - 1
_MAX_ROUND: Final = 2**32 - 1


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


def sendable(tag: Tag, tensor: Tensor, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Tensor:
    """Checks that a message can be encoded, and cuts its tensor from the sender's autograd graph.

    Returns:
        The tensor, contiguous and detached; it shares the memory of ``tensor`` where that is contiguous.

    Raises:
        ProtocolError: the tag or the tensor has no encoding.
    """
    if not (0 <= tag.step <= _MAX_STEP and 0 <= tag.round <= _MAX_ROUND):
        raise ProtocolError(
            f"cannot send {tag}: step must lie in [0, 2^64) and round in [0, 2^32)", code="tag-range", key=tag
        )
    if tensor.dtype not in _CODES:
        legal = ", ".join(map(str, _CODES))
        raise ProtocolError(
            f"cannot send {tag}: a tensor of {tensor.dtype}; convert it to one of {legal}",
            code="dtype",
            value=str(tensor.dtype),
        )
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ProtocolError(
            f"cannot send {tag}: a {tensor.layout} tensor on {tensor.device}; send a dense tensor on the CPU",
            code="not-dense",
            value=str(tensor.layout),
        )
    if tensor.ndim > MAX_DIMS:
        raise ProtocolError(
            f"cannot send {tag}: {tensor.ndim} dimensions, {MAX_DIMS} are allowed; reshape it first",
            code="dimensions",
            value=tensor.ndim,
        )
    if encoded_size(tensor) > max_message_bytes:
        raise ProtocolError(
            f"cannot send {tag}: {encoded_size(tensor)} bytes, the limit is {max_message_bytes}; "
            "split it or raise max_message_bytes",
            code="too-large",
            value=encoded_size(tensor),
        )
    return tensor.detach().contiguous().resolve_neg()


def encode(tag: Tag, tensor: Tensor, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[bytes, memoryview]:
    """Encodes one message.

    Returns:
        The header, and a view of the data as bytes: the memory of ``tensor`` itself where that is contiguous.

    Raises:
        ProtocolError: the tag or the tensor has no encoding.
    """
    tensor = sendable(tag, tensor, max_message_bytes)
    code = _CODES[tensor.dtype]
    values = tensor.reshape(-1).numpy()
    data = values.astype(_WIRE_DTYPES[code], copy=False).view(np.uint8).data
    dims = (*tensor.shape, *(0,) * (MAX_DIMS - tensor.ndim))
    header = _HEADER.pack(MAGIC, VERSION, tag.kind, code, tensor.ndim, tag.step, tag.round, *dims, data.nbytes)
    return header, data


def decode_header(header: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Header:
    """Reads and checks the first ``HEADER_BYTES`` bytes of a message. Allocates nothing.

    Raises:
        ProtocolError: says which field came and what was expected.
    """
    if len(header) != HEADER_BYTES:
        raise ProtocolError(
            f"a header of {len(header)} bytes came, {HEADER_BYTES} were expected", code="header-size", value=len(header)
        )
    magic, version, kind, code, ndim, step, round_, *dims, payload_bytes = _HEADER.unpack(header)
    if magic != MAGIC:
        raise ProtocolError(
            f"a message begins with {magic!r}, {MAGIC!r} was expected: is the peer this software?", code="not-a-message"
        )
    if version != VERSION:
        raise ProtocolError(
            f"wire version {version} came, {VERSION} was expected: install one release at all parties",
            code="wire-version",
            value=version,
        )
    if code not in DTYPES:
        raise ProtocolError(
            f"dtype code {code} came, one of {', '.join(map(str, DTYPES))} was expected", code="dtype", value=code
        )
    if ndim > MAX_DIMS:
        raise ProtocolError(
            f"a tensor of {ndim} dimensions came, at most {MAX_DIMS} are allowed", code="dimensions", value=ndim
        )
    if any(dims[ndim:]):
        raise ProtocolError(f"dims {dims} came with ndim {ndim}: dims beyond ndim must be 0", code="dims", value=dims)
    shape = tuple(dims[:ndim])
    _check_size(shape, _WIRE_DTYPES[code].itemsize, payload_bytes, max_message_bytes)
    return Header(Tag(_kind(kind), step, round_), code, shape, payload_bytes)


def build_tensor(header: Header, data: Tensor) -> Tensor:
    """Makes the tensor that ``header`` describes out of its data, without a copy.

    Args:
        header: of the message.
        data: Tensor[header.payload_bytes] uint8, contiguous, used by nobody else.

    Raises:
        ProtocolError: the length is wrong, or a bool is neither 0 nor 1.
    """
    if data.numel() != header.payload_bytes:
        raise ProtocolError(
            f"{header.tag}: {data.numel()} bytes of data came, {header.payload_bytes} were announced",
            code="data-size",
            key=header.tag,
            value=data.numel(),
        )
    raw = data.numpy()
    if DTYPES[header.code] == torch.bool and raw.size and raw.max() > 1:
        raise ProtocolError(
            f"{header.tag}: a bool of value {raw.max()} came, 0 or 1 was expected",
            code="bool",
            key=header.tag,
            value=int(raw.max()),
        )
    wire = _WIRE_DTYPES[header.code]
    values = raw.view(wire).astype(wire.newbyteorder("="), copy=False)
    return torch.from_numpy(values.reshape(header.shape))


def decode(encoded: bytes | bytearray | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[Tag, Tensor]:
    """Decodes one whole message; the tensor owns its memory.

    Raises:
        ProtocolError: the bytes are not exactly one legal message.
    """
    header = decode_header(encoded[:HEADER_BYTES], max_message_bytes)
    payload = memoryview(encoded)[HEADER_BYTES:]
    if payload.nbytes != header.payload_bytes:
        raise ProtocolError(
            f"{header.tag}: {payload.nbytes} bytes of data came, {header.payload_bytes} were announced",
            code="data-size",
            key=header.tag,
            value=payload.nbytes,
        )
    data = torch.empty(header.payload_bytes, dtype=torch.uint8)
    data.numpy().data[:] = payload
    return header.tag, build_tensor(header, data)


def _kind(code: int) -> Kind:
    try:
        return Kind(code)
    except ValueError:
        raise ProtocolError(
            f"kind {code} came, one of 1 to {max(Kind)} was expected", code="kind", value=code
        ) from None


def _check_size(shape: tuple[int, ...], item_bytes: int, payload_bytes: int, max_message_bytes: int) -> None:
    if HEADER_BYTES + payload_bytes > max_message_bytes:
        raise ProtocolError(
            f"a message of {HEADER_BYTES + payload_bytes} bytes came, the limit is {max_message_bytes}",
            code="too-large",
            value=HEADER_BYTES + payload_bytes,
        )
    if prod(shape) * item_bytes != payload_bytes:
        raise ProtocolError(
            f"shape {list(shape)} of {item_bytes}-byte elements came with {payload_bytes} bytes of data",
            code="data-size",
            value=payload_bytes,
        )
    # Without data (a dim of 0) the other dims could still be too large for a tensor's strides.
    if prod(max(dim, 1) for dim in shape) * item_bytes > max_message_bytes:
        raise ProtocolError(
            f"shape {list(shape)} came, too large for the limit of {max_message_bytes} bytes",
            code="too-large",
            value=list(shape),
        )
