"""Hostile bytes at every door: a typed error or the exact original, never anything else, and never much memory.

``VEILGRAPH_FUZZ_CASES`` sets the cases per property; those that sign or open sockets take a part of it.
"""

import base64
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import nightly
from tests.link.certificates import NOW, Project
from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link import codec as stream
from veilgraph.link.channel import MAX_HELLO_BYTES, Channel, ChannelContext
from veilgraph.link.codec import DTYPES, HEADER_BYTES, decode, encode
from veilgraph.link.factory import SocketLink, socket_mesh

CASES = int(os.environ.get("VEILGRAPH_FUZZ_CASES", "400"))
LIMIT = 1 << 16
TAG = Tag(Kind.SHARE, 3, 1)
PROJECT = Project()
PARTIES = ("bank", "shop")
BANK, SHOP = PROJECT.identity("bank"), PROJECT.identity("shop")

fuzz = settings(
    max_examples=CASES,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

slow_fuzz = settings(fuzz, max_examples=max(1, CASES // 2))


def joined(tag: Tag, tensor: Tensor) -> bytes:
    header, data = encode(tag, tensor)
    return header + bytes(data)


LEGAL = [joined(TAG, torch.zeros(2, 3).to(dtype)) for dtype in DTYPES.values()] + [
    joined(Tag(Kind.SEED, 2**64 - 1, 2**32 - 1), torch.tensor(1.5, dtype=torch.float64)),
    joined(TAG, torch.zeros(0, 5)),
    joined(TAG, torch.arange(240).reshape(2, 3, 4, 10)),
]
LENGTHS = (0, 1, 2, 6, 24, 48, LIMIT, 2**31, 2**32, 2**33, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

Edit = Callable[[bytearray], None]


def edits() -> st.SearchStrategy[Edit]:
    """One change of some bytes: a bit, a byte, a length field, a piece cut out, put in, or moved."""
    where, byte = st.integers(0, 2000), st.integers(0, 255)

    def flip(at: int, bit: int) -> Edit:
        return lambda data: data.__setitem__(at % len(data), data[at % len(data)] ^ 1 << bit) if data else None

    def put(at: int, value: int) -> Edit:
        return lambda data: data.__setitem__(at % len(data), value) if data else None

    def length(field: int, value: int) -> Edit:
        return lambda data: data.__setitem__(slice(20 + 8 * field, 28 + 8 * field), struct.pack("<Q", value))

    def cut(start: int, size: int) -> Edit:
        return lambda data: data.__delitem__(slice(start % (len(data) + 1), start % (len(data) + 1) + size))

    def insert(at: int, piece: bytes) -> Edit:
        return lambda data: data.__setitem__(slice(at % (len(data) + 1), at % (len(data) + 1)), piece)

    return st.one_of(
        st.builds(flip, where, st.integers(0, 7)),
        st.builds(put, st.integers(0, HEADER_BYTES - 1), byte),
        st.builds(length, st.integers(0, 4), st.sampled_from(LENGTHS)),
        st.builds(cut, where, st.sampled_from((1, 2, 16, 2000))),
        st.builds(insert, where, st.binary(min_size=1, max_size=20)),
    )


def edited(original: bytes, changes: list[Edit]) -> bytes:
    data = bytearray(original)
    for change in changes:
        change(data)
    return bytes(data)


def hostile(originals: list[bytes]) -> st.SearchStrategy[bytes]:
    mutated = st.builds(edited, st.sampled_from(originals), st.lists(edits(), min_size=1, max_size=4))
    return st.one_of(mutated, mutated, mutated, st.binary(max_size=150))


@contextmanager
def memory_within(limit: Callable[[], int]) -> Iterator[None]:
    """Fails when more elements than the limit are set aside at once."""
    empty = torch.empty

    def guarded(size: int, dtype: torch.dtype) -> Tensor:
        assert size <= limit(), f"{size} elements set aside, the limit is {limit()}"
        return empty(size, dtype=dtype)

    with mock.patch.object(torch, "empty", guarded):
        yield


@fuzz
@given(hostile(LEGAL))
@example(LEGAL[0])
def test_a_decoder_takes_exactly_what_an_encoder_makes(data: bytes) -> None:
    with memory_within(lambda: min(LIMIT, len(data))):
        try:
            tag, tensor = decode(data, LIMIT)
        except ProtocolError:
            assert data not in LEGAL
        else:
            assert joined(tag, tensor) == data


class Bytes:
    """A stream of given bytes whose sender then leaves."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fill(self, view: memoryview) -> None:
        if self.at + len(view) > len(self.data):
            self.at = len(self.data)
            raise PeerFailed("the stream ended")
        view[:] = self.data[self.at : self.at + len(view)]
        self.at += len(view)


@fuzz
@given(hostile(LEGAL), hostile(LEGAL), st.booleans())
def test_a_stream_gives_exactly_its_messages(first: bytes, second: bytes, small: bool) -> None:
    source = Bytes(first + second)
    trusted = 32
    with (
        mock.patch.object(stream, "TRUSTED_BYTES", trusted),
        memory_within(lambda: max(trusted, 2 * (source.at - HEADER_BYTES))),
    ):
        start = 0
        try:
            while True:
                tag, tensor = stream.read_message(source.fill, *([LIMIT] if small else []))
                assert joined(tag, tensor) == source.data[start : source.at]
                start = source.at
        except LinkError:
            pass


def fixed_secrets(byte: int) -> Callable[[int], bytes]:
    return lambda size: bytes([byte]) * size


def ends(job: str) -> tuple[Channel, Channel]:
    """Bank's and shop's ends before their hellos, with fixed keys: the bank's part fits any session of the shop."""
    context = ChannelContext(job, PARTIES)
    return (
        Channel(BANK, "bank", "shop", context, secrets=fixed_secrets(1)),
        Channel(SHOP, "shop", "bank", context, secrets=fixed_secrets(2)),
    )


def agreed(job: str) -> tuple[Channel, Channel]:
    bank, shop = ends(job)
    bank.hear(shop.hello)
    shop.hear(bank.hello)
    shop.open(bank.confirmation())
    return bank, shop


BANK_END, SHOP_END = agreed("job")
OTHER_END, _ = agreed("another job")


@fuzz
@given(
    st.sampled_from(("edited", "reflected", "other job", "made up", "as sent")),
    st.lists(edits(), min_size=1, max_size=3),
    st.binary(max_size=300),
)
def test_only_what_the_peer_sealed_is_opened(attack: str, changes: list[Edit], content: bytes) -> None:
    sender = {"reflected": SHOP_END, "other job": OTHER_END}.get(attack, BANK_END)
    frame = bytes(sender.seal_piece(3, 1, 1000, content))
    arriving = {"edited": edited(frame, changes), "made up": content}.get(attack, frame)
    try:
        opened = SHOP_END.open(arriving)
    except ProtocolError:
        assert attack != "as sent"
    else:
        assert (attack in ("edited", "as sent"), arriving) == (True, frame)
        assert (opened.number, opened.index, opened.total, opened.content) == (3, 1, 1000, content)


@pytest.mark.parametrize("size", [0, 2])
def test_no_bit_of_a_frame_can_change(size: int) -> None:
    frame = BANK_END.seal_piece(3, 1, 1000, bytes(size))
    for position in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(ProtocolError):
            SHOP_END.open(changed)
    assert SHOP_END.open(frame).content == bytes(size)


@slow_fuzz
@given(st.one_of(st.lists(edits(), min_size=1, max_size=3), st.binary(max_size=2000), st.sampled_from(LEGAL)))
@example([])
@example(OTHER_END.hello)
@example(SHOP_END.hello)
@example(BANK_END.hello + bytes(MAX_HELLO_BYTES))
def test_a_changed_hello_gives_no_keys(attack: list[Edit] | bytes) -> None:
    changed = attack if isinstance(attack, bytes) else edited(BANK_END.hello, attack)
    _, shop = ends("job")
    if changed != BANK_END.hello:
        with pytest.raises(ProtocolError):
            shop.hear(changed)
        assert not shop.agreed
        with pytest.raises(ProtocolError):
            shop.seal_piece(1, 0, 1, b"")
    assert shop.hear(BANK_END.hello), "the true one is heard after it"


def one_put(at: int, value: int) -> list[Edit]:
    return [lambda data: data.__setitem__(at, value)]


@nightly
@slow_fuzz
@given(
    st.lists(edits(), max_size=3), st.lists(edits(), max_size=3), st.lists(edits(), max_size=2), st.binary(max_size=99)
)
@example(one_put(15, 0x80), [], [], b"")  # a negative serial number, of which the library warns
def test_no_changed_certificate_or_signature_passes(
    inside: list[Edit], outside: list[Edit], signature: list[Edit], message: bytes
) -> None:
    der = BANK.certificate.public_bytes(Encoding.DER)
    text = base64.encodebytes(edited(der, inside))
    certificate = edited(b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n", outside)
    signed = BANK.sign(message)
    changed = edited(signed, signature)
    try:
        SHOP.verify_peer("bank", certificate, changed, message, NOW)
    except ProtocolError:
        assert inside or outside or signature
    else:
        # Text around the base64 may change; the certificate and the signature may not.
        assert x509.load_pem_x509_certificate(certificate) == BANK.certificate
        assert changed == signed


@settings(fuzz, max_examples=max(1, CASES // 40))
@given(hostile(LEGAL))
def test_garbage_on_a_socket_drops_the_connection(data: bytes) -> None:
    mesh = socket_mesh(["A", "B"])
    link = SocketLink("B", mesh["B"], timeout_s=5.0, max_message_bytes=LIMIT)
    peer = mesh["A"]["B"]
    try:
        peer.sendall(data + b"\xff" * HEADER_BYTES)
        peer.shutdown(socket.SHUT_WR)
        # Whether garbage came or a message cut short, the reader ends the connection: our end reads its end.
        peer.settimeout(5.0)
        assert not peer.recv(1)
        with pytest.raises((ProtocolError, PeerFailed)):
            link.receive("A", Tag(Kind.HELLO, 99))
        with pytest.raises(LinkError):
            link.send("A", TAG, torch.ones(1))
    finally:
        link.close()
        peer.close()
