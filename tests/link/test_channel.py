from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.errors import refused
from tests.link.channels import BANK, SESSION, SHOP, pair
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.link import channel as channels
from veilgraph.link.channel import (
    FRAME_BYTES,
    MAX_EXTRA_BYTES,
    Channel,
    FrameKind,
)


def test_frames_arrive_as_they_were_sealed() -> None:
    bank, shop = pair(extra=b"for every peer")
    confirmation = shop.open(bank.confirmation())
    assert (confirmation.kind, confirmation.content) == (FrameKind.CONFIRMATION, b"for every peer")
    assert bank.confirmation() == bank.confirmation()
    assert bank.open(shop.confirmation()).content == b""
    piece = bank.seal_piece(bank.next_message(), 3, 1000, b"some of it")
    assert len(piece) == FRAME_BYTES + len(b"some of it")
    opened = shop.open(piece)
    assert (opened.kind, opened.number, opened.index, opened.total) == (FrameKind.PIECE, 1, 3, 1000)
    assert opened.content == b"some of it"
    assert shop.open(memoryview(piece)) == opened
    assert b"some of it" not in piece


def test_nothing_is_sealed_or_opened_before_the_handshake() -> None:
    bank = Channel(BANK, "bank", "shop", SESSION)
    assert not bank.agreed
    for act in (
        bank.confirmation,
        lambda: bank.seal(FrameKind.PING),
        lambda: bank.seal_piece(1, 0, 1, b""),
        lambda: bank.open(bytes(FRAME_BYTES)),
        lambda: bank.received(bytes(FRAME_BYTES), b""),
    ):
        with refused(ProtocolError, code="no-keys", party="shop"):
            act()


def test_a_hello_may_be_repeated_and_not_replaced() -> None:
    bank, shop = pair()
    assert not bank.hear(shop.hello)
    for other in (Channel(SHOP, "shop", "bank", SESSION).hello, shop.hello[:-1], bank.hello):
        with refused(ProtocolError, code="hello-again", party="shop"):
            bank.hear(other)
    assert bank.open(shop.seal(FrameKind.PING)).kind == FrameKind.PING


@pytest.mark.parametrize(("party", "peer"), [("bank", "bank"), ("bank", "clinic"), ("clinic", "shop")])
def test_ends_are_two_parties_of_the_job(party: str, peer: str) -> None:
    with refused(ConfigError, code="no-channel", key="peer", value=peer):
        Channel(BANK, party, peer, SESSION)


def test_extra_is_limited() -> None:
    pair(extra=bytes(MAX_EXTRA_BYTES))
    with refused(ConfigError, key="extra"):
        Channel(BANK, "bank", "shop", SESSION, extra=bytes(MAX_EXTRA_BYTES + 1))


def test_a_library_without_ml_kem_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``cryptography`` built with an OpenSSL before 3.5."""

    def lacking(seed: bytes) -> None:
        raise UnsupportedAlgorithm("ML-KEM-768 is not supported by this backend.")

    monkeypatch.setattr(channels, "MLKEM768PrivateKey", SimpleNamespace(from_seed_bytes=lacking))
    with refused(ConfigError, code="no-ml-kem"):
        Channel(BANK, "bank", "shop", SESSION)


def test_an_unknown_kind_of_frame_is_the_peers_fault() -> None:
    bank, shop = pair()
    with refused(ProtocolError, code="frame-kind", value=200, party="bank"):
        shop.open(bank.seal(cast(FrameKind, 200)))


def test_keys_are_of_the_hellos_as_they_were_heard() -> None:
    """X25519 gives the same secret with the top bit of a public key set: the transcript has the key itself."""
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    body = bytearray(shop._body)
    body[1220] ^= 0x80
    signed = channels.signed_bytes("shop", "bank", SESSION, bytes(body))
    assert bank.hear(bytes(body) + SHOP.sign(signed))
    assert shop.hear(bank.hello)
    for one, other in ((bank, shop), (shop, bank)):
        with refused(ProtocolError, code="not-sealed"):
            other.open(one.confirmation())


def test_every_channel_has_two_secrets_of_its_own_and_says_nothing_of_it() -> None:
    drawn: list[bytes] = []

    def source(length: int) -> bytes:
        drawn.append(system_secrets(length))
        return drawn[-1]

    ends = [
        Channel(identity, party, peer, SESSION, extra=b"extra", secrets=source)
        for identity, party, peer in ((BANK, "bank", "shop"), (SHOP, "shop", "bank"), (BANK, "bank", "server"))
    ]
    assert [len(secret) for secret in drawn] == [SEED_BYTES, 64] * len(ends)
    kem = [MLKEM768PrivateKey.from_seed_bytes(secret).public_key().public_bytes_raw() for secret in drawn[1::2]]
    public = [X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() for secret in drawn[::2]]
    assert [(end.hello[5:1189], end.hello[1189:1221]) for end in ends] == list(zip(kem, public, strict=True))
    bank, shop, _ = ends
    bank.hear(shop.hello)
    shop.hear(bank.hello)
    said = [end.hello for end in ends] + [
        bank.confirmation(),
        shop.confirmation(),
        bytes(bank.seal_piece(1, 0, 1, b"x")),
    ]
    assert not any(
        secret[start : start + 8] in each for secret in drawn for each in said for start in range(len(secret) - 7)
    )
