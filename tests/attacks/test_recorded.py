"""Somebody who records a channel today, and breaks X25519 (with a quantum computer) or ML-KEM later.

The recorder derives keys by code of its own, from what crossed and the secrets that it broke. Beside each attack it is
made on a channel whose keys come of the broken exchange alone, and succeeds.
"""

import hashlib
import hmac
import struct
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.errors import refused
from tests.link.channels import BANK, SESSION, SHOP
from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import derive_key, system_secrets
from veilgraph.link import channel as channels
from veilgraph.link.channel import FRAME_BYTES, Channel, FrameKind

TOLD = b"revoked: nobody, and what else every peer is told"
CONTENT = b"a piece of a message"
GUESS = bytes(32)
"""In place of a secret that was not broken; any other is as good."""

# Of a hello and a first frame, written down here again.
KEM_KEY, X25519_KEY, BODY_HEAD, CIPHERTEXT = slice(5, 1189), slice(1189, 1221), 1289, slice(21, 1109)


def joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def hkdf(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 without salt, of 32 bytes (RFC 5869)."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\1", "sha256")


def signed_part(hello: bytes) -> bytes:
    (certificate_bytes,) = struct.unpack_from("<I", hello, BODY_HEAD - 4)
    return hello[: BODY_HEAD + certificate_bytes]


class Drawn:
    """The ephemeral secrets of an end, as its source of secrets gave them: X25519's, then ML-KEM's seed."""

    def __init__(self) -> None:
        self.secrets: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.secrets.append(system_secrets(size))
        return self.secrets[-1]


@dataclass(frozen=True)
class Recording:
    """What crossed between bank and shop, and the secrets that a break would give."""

    hellos: dict[str, bytes]
    confirmations: dict[str, bytes]
    pieces: dict[str, bytes]
    receipts: dict[str, bytes]
    x25519: bytes
    kem: dict[str, bytes]
    """Sender → what it encapsulated."""

    def read(self, sender: str, x25519: bytes, kem: bytes) -> tuple[bytes, bytes]:
        """What the sender's confirmation and piece say under keys of two secrets; ``InvalidTag``: not under these."""
        return self.read_under(sender, kem + x25519)

    def read_under(self, sender: str, secret: bytes) -> tuple[bytes, bytes]:
        receiver = "shop" if sender == "bank" else "bank"
        confirmation, piece = self.confirmations[sender], self.pieces[sender]
        ciphertext = confirmation[CIPHERTEXT]
        bodies = [signed_part(self.hellos[name]) for name in ("bank", "shop")]
        said = joined(b"veilgraph seal 3", b"job", b"bank", b"shop", *bodies, ciphertext)
        label = f"veilgraph seal 3/{hashlib.sha256(said).hexdigest()}/{sender}/"

        def opened(frame: bytes, purpose: str, start: int) -> bytes:
            number, index = struct.unpack_from("<QI", frame, 1)
            known = joined(b"job", sender.encode(), receiver.encode()) + frame[:21]
            cipher = AESGCM(hkdf(secret, (label + purpose).encode()))
            return cipher.decrypt(struct.pack("<QI", number, index), frame[start:], known)

        read = opened(confirmation, "controls", CIPHERTEXT.stop), opened(piece, "pieces", 21)
        key = hkdf(secret, (label + "receipts").encode())
        assert self.receipts[sender] == hmac.digest(key, piece[:21], "sha256")[:16]
        return read


def recorded() -> Recording:
    drawn = {"bank": Drawn(), "shop": Drawn()}
    ends = {
        "bank": Channel(BANK, "bank", "shop", SESSION, extra=TOLD, secrets=drawn["bank"]),
        "shop": Channel(SHOP, "shop", "bank", SESSION, extra=TOLD, secrets=drawn["shop"]),
    }
    other = {"bank": "shop", "shop": "bank"}
    for name, end in ends.items():
        end.hear(ends[other[name]].hello)
    confirmations = {name: end.confirmation() for name, end in ends.items()}
    for name, end in ends.items():
        end.open(confirmations[other[name]])
    pieces = {name: bytes(end.seal_piece(end.next_message(), 0, len(CONTENT), CONTENT)) for name, end in ends.items()}
    receipts = {name: ends[other[name]].receipt(ends[other[name]].open(piece)) for name, piece in pieces.items()}
    broken = X25519PrivateKey.from_private_bytes(drawn["bank"].secrets[0])
    shop_key = X25519PublicKey.from_public_bytes(ends["shop"].hello[X25519_KEY])
    kem = {
        name: MLKEM768PrivateKey.from_seed_bytes(drawn[other[name]].secrets[1]).decapsulate(frame[CIPHERTEXT])
        for name, frame in confirmations.items()
    }
    hellos = {name: end.hello for name, end in ends.items()}
    return Recording(hellos, confirmations, pieces, receipts, broken.exchange(shop_key), kem)


@pytest.mark.parametrize("sender", ["bank", "shop"])
def test_both_secrets_and_what_crossed_give_the_keys(sender: str) -> None:
    recording = recorded()
    assert recording.read(sender, recording.x25519, recording.kem[sender]) == (TOLD, CONTENT)
    assert recording.kem["bank"] != recording.kem["shop"]


Break = Callable[[Recording, str], bytes]
BREAKS: Final[dict[str, tuple[slice, Break, Break]]] = {
    "X25519": (slice(32, 64), lambda it, _: it.x25519, lambda it, _: GUESS + it.x25519),
    "ML-KEM": (slice(0, 32), lambda it, sender: it.kem[sender], lambda it, sender: it.kem[sender] + GUESS),
}
"""What is broken → its part of the secret, that part alone, and with a guess for the other."""


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("sender", ["bank", "shop"])
def test_who_breaks_one_exchange_reads_nothing(broken: str, sender: str) -> None:
    _, alone, guessed = BREAKS[broken]
    recording = recorded()
    for secret in (alone, guessed):
        with pytest.raises(InvalidTag):
            recording.read_under(sender, secret(recording, sender))


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("sender", ["bank", "shop"])
def test_who_breaks_the_only_exchange_reads_all(broken: str, sender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. Up to version 2 the keys of a channel were of X25519 alone."""
    part, alone, _ = BREAKS[broken]
    monkeypatch.setattr(channels, "derive_key", lambda secret, purpose: derive_key(secret[part], purpose))
    recording = recorded()
    assert recording.read_under(sender, alone(recording, sender)) == (TOLD, CONTENT)


def test_what_one_sender_encapsulated_does_not_read_the_other() -> None:
    recording = recorded()
    with pytest.raises(InvalidTag):
        recording.read("bank", recording.x25519, recording.kem["shop"])


def test_a_flipped_byte_anywhere_in_a_hello_ends_it() -> None:
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    for at in range(len(bank.hello)):
        changed = bytearray(bank.hello)
        changed[at] ^= 1 << at % 8
        with pytest.raises(ProtocolError):
            shop.hear(changed)
        assert not shop.agreed, at
    assert shop.hear(bank.hello), "the true one is heard after it"


@pytest.mark.parametrize("kind", [FrameKind.CONFIRMATION, FrameKind.STOPPED])
def test_a_flipped_byte_anywhere_in_a_first_frame_gives_no_keys(kind: FrameKind) -> None:
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    bank.hear(shop.hello)
    shop.hear(bank.hello)
    frame = bank.seal(kind, TOLD)
    assert len(frame) == FRAME_BYTES + 1088 + len(TOLD)

    def every_change_is_refused() -> None:
        for at in range(len(frame)):
            changed = bytearray(frame)
            changed[at] ^= 1 << at % 8
            with pytest.raises(ProtocolError) as refusal:
                shop.open(changed)
            if CIPHERTEXT.start <= at:
                assert refusal.value.code == "not-sealed"

    every_change_is_refused()
    with refused(ProtocolError, code="no-keys"):
        shop.open(bytes(bank.seal_piece(1, 0, 1, b"x")))
    assert shop.open(frame).content == TOLD, "the true one is opened after them"
    every_change_is_refused()


@pytest.mark.parametrize("length", [0, 20, 21, FRAME_BYTES, FRAME_BYTES + 1087])
def test_a_first_frame_that_was_cut_is_refused(length: int) -> None:
    bank, shop = Channel(BANK, "bank", "shop", SESSION), Channel(SHOP, "shop", "bank", SESSION)
    bank.hear(shop.hello)
    shop.hear(bank.hello)
    with refused(ProtocolError, code="short-frame"):
        shop.open(bank.confirmation()[:length])


def said_by_the_bank(**changed: bytes) -> bytes:
    """A hello that the bank signed, some of whose keys it did not make."""
    body = bytearray(signed_part(Channel(BANK, "bank", "shop", SESSION).hello))
    for name, key in changed.items():
        body[{"kem": KEM_KEY, "x25519": X25519_KEY}[name]] = key
    return bytes(body) + BANK.sign(channels.signed_bytes("bank", "shop", SESSION, bytes(body)))


@pytest.mark.parametrize(
    "keys",
    [
        {"x25519": bytes(32)},
        {"x25519": b"\1" + bytes(31)},
        {"x25519": b"\xec" + b"\xff" * 30 + b"\x7f"},  # -1, a point of order 4
        {"kem": b"\xff" * 1184},  # coefficients of 4095, and q is 3329
        {"kem": b"\1\x0d" + bytes(1182)},  # the first coefficient is q
    ],
    ids=["zero", "order 1", "order 4", "coefficients", "one coefficient"],
)
def test_a_key_that_is_none_is_the_peers_fault(keys: dict[str, bytes]) -> None:
    shop = Channel(SHOP, "shop", "bank", SESSION)
    with refused(ProtocolError, code="bad-public-key", party="bank"):
        shop.hear(said_by_the_bank(**keys))
    assert not shop.agreed
    assert shop.hear(said_by_the_bank()), "the control"


def test_no_other_version_of_a_hello_is_heard() -> None:
    """As an attacker would have it who has the peer's signing key, but wants the keys of X25519 alone."""
    made = said_by_the_bank()
    for old in (made[:4] + b"\2" + made[X25519_KEY.start :], made[:4] + b"\2" + made[5:], made[:4] + b"\4" + made[5:]):
        signed = old[: len(signed_part(made)) - len(made)]
        hello = signed + BANK.sign(channels.signed_bytes("bank", "shop", SESSION, signed))
        with pytest.raises(ProtocolError, match="install one release at all parties"):
            Channel(SHOP, "shop", "bank", SESSION).hear(hello)


# The first of the known answers for FIPS 203 in github.com/post-quantum-cryptography/KAT, as in cryptography's vectors
SEED = bytes.fromhex(
    "6dbbc4375136df3b07f7c70e639e223e177e7fd53b161b3f4d57791794f12624"
    "f696484048ec21f96cf50a56d0759c448f3779752f0383d37449690694cf7a68"
)
PUBLIC_SHA256 = "4bec4730f26273c6319ef7387dd4758315240a9394cd89264b148b9113060b61"
SECRET = "b408d5d115713f0a93047dbbea832e4340787686d59a9a2d106bd662ba0aa035"
ENCAPSULATED = b64decode("""
FqYf+EeH/UpfGcpZs2V9s6EGpzKeLWJ0ei74UUkWMQm+//a8sz32YjC49nJc5xn1j3EZbolb78l1TZ8EJJRkjIim7UxM8T8vr59lHeedrgd3M8
sjX53ORIl3/ULVSGt9/fbXvZFysUJHZV008QUk1GlHjZqWOfNNKs3m48BI1Sswi2YkX+mijN55g7nRTAOzdxX+OXDNNXNHca3XqptYz7Ct+MYT
3q+ysx9uXINk1DNOk6+OSUP6lHzGdmdEfP/QNiNa+up/YDyy6id7l9rfgup0b2snOW3QjIXP+TBKLlzgVx/eLpJnFryfjk1HS06P00sNwoN2IE
6jBtMOmm3YglC3mCPncxny7zp3cE9And6L622xvkqfJa4uFZOd7fGxGlqlH8/wQGi0bUL7uv0kmCZMyk+3iw8qsWLH71aYdaExSLmksLnaF4fK
CnAz4+yhNHHby74V408rUGW5lf4iHCt6wVAzTRTmjtxeBJZj3jYvro014kwgLF+tIVPNBE6pYqOI8DDNxd7Bw0Ixg7Fzwysi9YAK5F6OicjuRh
fOJOYPJ4v9HqD4+pJIa2+EkSfamb575MZh4romZp1qz2GaMwVoCWg+JKLynjO+f1+axmhpfllIjpuGhZVs2Ht8RxCdYDICwgFHLsgp6mSSLk0O
rdSktaj7BuD0vyWlnO1UVXOI3NkbOHy2FIWX7fhKIllYAYUcpLnp4Jb9/JbyRErJ8SR6XmQHh/yiPj6yHsEFnEKmWANEHfASeQE8RI38Pu38M1
Xu4fUQCGoRX4VMNtt5eoXt4ZpHOjPnmoD29/ZGfhsNhm/g5XqKvTeZNKampJL18yWU1D3i7C7qgUh5gbtjlL+m31SY10xtsiAqY0ijJfvJBrjo
ILsAZZou4SdAsUsuNvTF2rQRwM0JbF5juk1Iqp6Ssx9E3JfA/vZhvPTbiV8XRhPZ1e2eg2ZXdF7J3ux68nPOyH7w6vgF2hvIQBYIgQuKhvlSxj
JtCfyNHX/YO06GLgUFjod8BWzFRl7DGSsDpMM8xrFlWNJILV+EUYy7xSaq5uiEAxfvs6GYLD0XGe8V0Q+LB3xcaGgL5tPZLoaqpus3jPBVnUky
VxR7VXMPSaBCMlrwZrT5dBuf/11Hly1ayvUra+pOnjVO+USLYvbSoTF2daki4U4xV41sq1oJpxqycNhlFRuKtMYStf1dzJfkVBmhz7a4ua7GD2
JgIJj5HwfCOBhmV5Qcehjk1+4iDwItX//SkYU7nAY+VhtxdveiNc5FvIbORxgIbflTbFpfCr8EwKhNgr32lVKt4xNUM8EKG6adaIlp5tnc5U07
Oq46fyq5BOZX4/sFJB+sEQqgfmLMOZHX0NYym1q51p1zNsDRSFiMnwkhMluF31/TDbgKVqNyQ3IVNkGWGqfgQr8mRv9GAiwFnVeUw6S3+QxBDe
caUjHdm4O70Oa9qxv55i8=
""")


def test_ml_kem_gives_the_answers_of_fips_203() -> None:
    key = MLKEM768PrivateKey.from_seed_bytes(SEED)
    assert hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest() == PUBLIC_SHA256
    assert key.decapsulate(ENCAPSULATED).hex() == SECRET
    # Implicit rejection: J(z ‖ ciphertext), where J is SHAKE256 (FIPS 203, algorithm 18)
    changed = ENCAPSULATED[:-1] + bytes([ENCAPSULATED[-1] ^ 1])
    assert key.decapsulate(changed) == hashlib.shake_256(SEED[32:] + changed).digest(32)
