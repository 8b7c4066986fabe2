import struct

import pytest
import torch
from torch import Tensor

from tests.errors import About, refused
from veilgraph.core.errors import LinkError, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link import codec as stream
from veilgraph.link.codec import HEADER_BYTES, decode, decode_header, encode

TAG = Tag(Kind.SHARE, 3, 1)
LIMIT = 1 << 20


def joined(tag: Tag, tensor: Tensor) -> bytes:
    header, data = encode(tag, tensor)
    return header + bytes(data)


def header(**changes: object) -> bytes:
    """A header of int64 [2, 3], with some fields changed."""
    fields: dict[str, object] = {
        "magic": b"VEIL",
        "version": 1,
        "kind": 8,
        "dtype": 3,
        "ndim": 2,
        "step": 3,
        "round": 1,
    }
    fields |= {"dims": (2, 3, 0, 0), "payload": 48} | changes
    *front, dims, payload = fields.values()
    assert isinstance(dims, tuple)
    return struct.pack("<4sBBBBQI4QQ", *front, *dims, payload)


def test_the_wire_format_is_pinned() -> None:
    assert joined(TAG, torch.tensor([[1, 2, 3], [-1, -2, -3]])) == header() + struct.pack("<6q", 1, 2, 3, -1, -2, -3)
    assert HEADER_BYTES == 60


def test_a_decoded_tensor_is_writable_and_its_own() -> None:
    encoded = bytearray(joined(TAG, torch.zeros(3)))
    _, tensor = decode(encoded)
    tensor += 1
    assert encoded == joined(TAG, torch.zeros(3))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"magic": b"\x80\x04\x95\x00"}, About(code="not-a-message")),
        ({"version": 2}, About(code="wire-version", value=2)),
        ({"kind": 0}, About(code="kind", value=0)),
        ({"kind": max(Kind) + 1}, About(code="kind", value=max(Kind) + 1)),
        ({"dtype": 0}, About(code="dtype", value=0)),
        ({"dtype": 7}, About(code="dtype", value=7)),
        ({"ndim": 5}, About(code="dimensions", value=5)),
        ({"ndim": 1}, About(code="dims")),
        ({"dims": (2, 4, 0, 0)}, About(code="data-size", value=48)),
        ({"dims": (2**33, 2**31, 0, 0), "payload": 0}, About(code="data-size", value=0)),
        ({"dims": (0, 2**62, 0, 0), "payload": 0}, About(code="too-large")),
        ({"dims": (2**32, 0, 2**32, 2**32), "ndim": 4, "payload": 0}, About(code="too-large")),
        ({"dims": (2**61, 8, 0, 0), "payload": 2**64 - 1}, About(code="too-large", value=HEADER_BYTES + 2**64 - 1)),
    ],
)
def test_a_header_that_breaks_a_rule(changes: dict[str, object], rule: About) -> None:
    with refused(ProtocolError, **rule):
        decode_header(header(**changes), LIMIT)


@pytest.mark.parametrize("cut", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 47])
def test_truncated(cut: int) -> None:
    code, came = ("header-size", cut) if cut < HEADER_BYTES else ("data-size", cut - HEADER_BYTES)
    with refused(ProtocolError, code=code, value=came):
        decode(joined(TAG, torch.ones(2, 3, dtype=torch.int64))[:cut])


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (
            joined(TAG, torch.ones(2, 3, dtype=torch.int64)) + b"\0",
            About(code="data-size", key="share/step 3/round 1", value=49),
        ),
        (
            joined(TAG, torch.ones(3, dtype=torch.bool))[:-1] + b"\2",
            About(code="bool", key="share/step 3/round 1", value=2),
        ),
    ],
    ids=["trailing", "bool"],
)
def test_data_that_break_a_rule(data: bytes, rule: About) -> None:
    with refused(ProtocolError, **rule):
        decode(data)


class Source:
    """A stream that ends after ``data`` zeros beyond the header; remembers how much was asked for."""

    def __init__(self, head: bytes, data: int) -> None:
        self.head, self.left, self.asked = head, data, 0

    def fill(self, view: memoryview) -> None:
        if self.head:
            view[:], self.head = self.head, b""
            return
        self.asked = max(self.asked, len(view))
        if len(view) > self.left:
            raise EOFError
        self.left -= len(view)


def test_a_lying_length_allocates_little() -> None:
    gigabytes = 3 << 30
    source = Source(header(dims=(gigabytes // 8, 1, 0, 0), payload=gigabytes), data=1000)
    with pytest.raises(EOFError):
        stream.read_message(source.fill)
    assert source.asked == stream.TRUSTED_BYTES


def test_no_memory_is_a_link_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> Tensor:
        raise RuntimeError("can't allocate memory")

    source = Source(header(), data=48)
    monkeypatch.setattr(torch, "empty", no_memory)
    with refused(LinkError, code="memory", key="share/step 3/round 1", value=48):
        stream.read_message(source.fill)
