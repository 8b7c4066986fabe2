"""The handshake of a channel against who carries it: what it reads, swaps or makes up gives nobody any keys."""

import pytest

from tests.errors import refused
from tests.link.certificates import DAY, NOW, Project, fresh_key
from tests.link.channels import BANK, PROJECT, SESSION, SHOP, pair
from veilgraph.core.errors import ProtocolError
from veilgraph.link import channel as channels
from veilgraph.link.channel import HEAD_BYTES, MAX_HELLO_BYTES, Channel, ChannelContext, FrameKind
from veilgraph.link.identity import Identity

SECRET = b"".join(number.to_bytes(8, "little") for number in range(4096))
EPHEMERAL = slice(5, 1221)
"""Of a hello: the public keys of the session."""


def test_what_crosses_is_ciphertext() -> None:
    bank, _ = pair()
    frames = [bytes(bank.seal_piece(bank.next_message(), 0, len(SECRET), SECRET))[HEAD_BYTES:] for _ in range(2)]
    for frame in frames:
        assert not any(SECRET[start : start + 8] in frame for start in range(64, len(SECRET), 64))
        ones = sum(byte.bit_count() for byte in frame) / (8 * len(frame))
        assert 0.49 < ones < 0.51, "ciphertext looks uniform"
    assert sum(one == other for one, other in zip(*frames, strict=True)) < 0.01 * len(SECRET)


@pytest.mark.parametrize(
    ("shop", "code"),
    [
        (Project().identity("shop"), "other-project"),
        (PROJECT.identity("shop", start=NOW - 3 * DAY, end=NOW - DAY), "expired"),
        (PROJECT.identity("shap"), "other-name"),
        (Identity(SHOP.certificate, fresh_key(), SHOP.roots), "signature"),
    ],
)
def test_who_is_not_the_peer_is_refused(shop: Identity, code: str) -> None:
    bank = Channel(BANK, "bank", "shop", SESSION)
    with refused(ProtocolError, code=code, party="shop"):
        bank.hear(Channel(shop, "shop", "bank", SESSION).hello)
    assert not bank.agreed


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (ChannelContext("another", SESSION.parties), "is of another job"),
        (ChannelContext("job", SESSION.parties, "other settings"), "with other settings, or other parties"),
        (ChannelContext("job", (*SESSION.parties, "third")), "with other settings, or other parties"),
    ],
)
def test_another_session_gives_no_keys(other: ChannelContext, said: str) -> None:
    bank = Channel(BANK, "bank", "shop", SESSION)
    with pytest.raises(ProtocolError, match=said):
        bank.hear(Channel(SHOP, "shop", "bank", other).hello)
    assert not bank.agreed


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (b"", "a hello of 0 bytes"),
        (bytes(1289), "a hello of 1289 bytes"),
        (bytes(1300), "install one release at all parties"),
        (bytes(MAX_HELLO_BYTES + 1), f"a hello of {MAX_HELLO_BYTES + 1} bytes"),
        (b"VSEA\3" + bytes(1284) + b"certificate", "is of another job"),
        (Channel(BANK, "bank", "shop", SESSION).hello, "is for 'bank', not 'shop'"),
    ],
    ids=["empty", "short", "release", "long", "job", "reflected"],
)
def test_a_hello_that_is_none(hello: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        Channel(BANK, "bank", "shop", SESSION).hear(hello)


def test_a_recorded_hello_gives_keys_that_nobody_has() -> None:
    recorded, _ = pair()
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    bank.hear(shop.hello)
    shop.hear(recorded.hello)
    for end in (bank, recorded):
        with refused(ProtocolError, code="not-sealed", party="bank"):
            shop.open(end.confirmation())


# One in the middle


def in_the_middle(own: Identity | None = None) -> tuple[Channel, Channel, Channel, Channel]:
    """The ends of bank and shop, and those that somebody between them has towards either, who has none of their keys.

    Its hellos are theirs with ephemeral keys of its own, or of a certificate of its own.
    """
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    as_bank, as_shop = (own or Identity(of.certificate, fresh_key(), of.roots) for of in (BANK, SHOP))
    to_bank, to_shop = Channel(as_shop, "shop", "bank", SESSION), Channel(as_bank, "bank", "shop", SESSION)
    to_bank.hear(bank.hello)
    to_shop.hear(shop.hello)
    return bank, shop, to_bank, to_shop


def swapped(hello: bytes, by: Channel) -> bytes:
    """A hello with another's ephemeral keys, and all else genuine."""
    changed = hello[: EPHEMERAL.start] + by.hello[EPHEMERAL] + hello[EPHEMERAL.stop :]
    assert changed != hello
    return changed


def test_one_in_the_middle_that_swaps_both_ephemeral_keys_is_refused() -> None:
    """Their signatures are over these keys."""
    bank, shop, to_bank, to_shop = in_the_middle()
    with refused(ProtocolError, code="signature", party="shop"):
        bank.hear(swapped(shop.hello, to_bank))
    with refused(ProtocolError, code="signature", party="bank"):
        shop.hear(swapped(bank.hello, to_shop))


def test_the_one_in_the_middle_would_read_all_if_signatures_left_the_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above tests the signatures, and not an attack that does not work."""
    signed = channels.signed_bytes
    monkeypatch.setattr(
        channels, "signed_bytes", lambda one, other, session, body: signed(one, other, session, body[:5] + body[1221:])
    )
    bank, shop, to_bank, to_shop = in_the_middle()
    bank.hear(swapped(shop.hello, to_bank))
    shop.hear(swapped(bank.hello, to_shop))
    read = to_bank.open(bank.seal(FrameKind.STOPPED, SECRET)).content
    assert read == SECRET
    assert shop.open(to_shop.seal(FrameKind.STOPPED, read)).content == SECRET


def test_one_in_the_middle_with_a_certificate_of_its_own_is_refused() -> None:
    """It signs its own keys, with a certificate of the project that is of no name of theirs."""
    bank, shop, to_bank, to_shop = in_the_middle(PROJECT.identity("middle"))
    with pytest.raises(ProtocolError, match="is for 'middle', not 'shop'"):
        bank.hear(to_bank.hello)
    with pytest.raises(ProtocolError, match="is for 'middle', not 'bank'"):
        shop.hear(to_shop.hello)
