"""The secrets of a holder in one round of a sum, what two holders share, and what holders sign for one another.

The server passes signed messages on: it can neither change one nor say it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource, derive_key
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import exchange, gather
from veilgraph.mpc.mask import derive_shared_key
from veilgraph_averaging.aggregation import shamir

SIGNATURE_BYTES = 64


class Signatures:
    """One holder's signing key of a session, and the keys of all holders that others' signatures are checked with."""

    def __init__(self, party: PartyId, private: Ed25519PrivateKey, publics: Mapping[PartyId, Ed25519PublicKey]) -> None:
        self._party, self._private, self._publics = party, private, publics

    @classmethod
    def agree(cls, link: Link, holders: Sequence[PartyId], secrets: SecretSource, *, round_: int) -> Signatures:
        """Make a signing key, and exchange public keys with all holders directly; errors as ``exchange``.

        ``round_``, of the messages' tags, must differ between calls of a session.
        """
        private = Ed25519PrivateKey.from_private_bytes(secrets(SEED_BYTES))
        own = private.public_key()
        mine = torch.frombuffer(bytearray(own.public_bytes_raw()), dtype=torch.uint8)
        others = exchange(link, [each for each in holders if each != link.party], Tag(Kind.KEY, 0, round_), mine)
        found = {
            party: Ed25519PublicKey.from_public_bytes(content.numpy().tobytes()) for party, content in others.items()
        }
        return cls(link.party, private, {**found, link.party: own})

    def sign(self, what: str, content: bytes) -> bytes:
        """Sign ``content`` with this holder's key: ``SIGNATURE_BYTES``; ``what``, its kind and round, is signed too."""
        return self._private.sign(_framed(what, self._party, content))

    def check(self, party: PartyId, what: str, content: bytes, signature: bytes) -> None:
        """Verify the signature of ``party`` over ``what`` and ``content``; ``ProtocolError`` if it does not fit."""
        try:
            self._publics[party].verify(signature, _framed(what, party, content))
        except InvalidSignature as error:
            raise ProtocolError(
                f"{self._party} got {what} with a signature that is not {party}'s of the same; the server, which "
                "passed it on, may show holders different things: ask who runs it",
                code="bad-signature",
                party=party,
            ) from error


def _framed(what: str, party: PartyId, content: bytes) -> bytes:
    """Encode what is signed, each part behind its length, so that different parts never give the same bytes."""
    parts = (b"veilgraph aggregation 1", what.encode(), party.encode(), content)
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


class PairSecrets:
    """What one holder shares with each holder in a session: 32 bytes, told past the server, of a holder itself its own.

    All keys of a round depend on them and on X25519. So a server that keeps what it passed on, and breaks X25519 later
    with a quantum computer, opens nothing: the holders' own channels stand against that (``link.channel``).
    """

    def __init__(self, secrets: Mapping[PartyId, bytes]) -> None:
        self._secrets = secrets

    @classmethod
    def agree(cls, link: Link, holders: Sequence[PartyId], secrets: SecretSource, *, round_: int) -> PairSecrets:
        """Send each other holder a half of the pair's secret directly, and take its half; errors as ``exchange``.

        ``round_``, of the messages' tags, must differ between calls of a session.
        """
        peers, tag = [each for each in holders if each != link.party], Tag(Kind.KEY, 0, round_)
        halves = {holder: secrets(SEED_BYTES) for holder in holders}
        for peer in peers:
            link.send(peer, tag, torch.frombuffer(bytearray(halves[peer]), dtype=torch.uint8))
        found = {link.party: derive_key(halves[link.party], "own")}
        for peer, half in gather(link, peers, tag, (SEED_BYTES,), torch.uint8).items():
            both = sorted([(link.party, halves[peer]), (peer, half.numpy().tobytes())])
            found[peer] = derive_key(b"".join(each for _, each in both), "pair")
        return cls(found)

    def key(self, peer: PartyId, purpose: str) -> bytes:
        """Derive what this holder and ``peer`` alone have for a purpose: KEY_BYTES."""
        return derive_key(self._secrets[peer], purpose)


KEY_BYTES: Final = 32
# two public keys, what the own mask is held to, and the signature of these
OFFER_BYTES: Final = 3 * KEY_BYTES + SIGNATURE_BYTES
PAIR_BYTES: Final = 2 * shamir.ELEMENT_BYTES  # a share of the mask key and one of the own mask
SEALED_BYTES: Final = PAIR_BYTES + 16  # with AES-GCM's tag
SHARED_BYTES: Final = SEALED_BYTES + KEY_BYTES  # and, for the server alone, the pair's key under a pad
_NO_NONCE: Final = bytes(12)  # every key seals one message


@dataclass(frozen=True, slots=True)
class Round:
    """One sum: its session, number, holders P and threshold t. Everything derived or signed in it depends on its name.

    At least t holders must stay from beginning to end. Raises ``ConfigError`` where t is not above half of the holders:
    two halves could then be told different things.
    """

    session: str
    number: int
    holders: tuple[PartyId, ...]
    threshold: int

    def __post_init__(self) -> None:
        count = len(self.holders)
        if not count < 2 * self.threshold <= 2 * count:
            raise ConfigError(
                f"threshold={self.threshold} must be more than half of the {count} holders and no more than all: else "
                "two halves could be shown different survivors"
            )

    @property
    def name(self) -> str:
        """Name of the round, which keys and signatures are bound to."""
        return f"{self.session}/round {self.number}"

    def present(self, rows: Tensor) -> list[PartyId]:
        """Return the holders whose rows of a message [P, …] are not all zeros; zeros mean that a holder is absent."""
        return [holder for holder, row in zip(self.holders, rows, strict=True) if bool(row.any())]

    def row(self, rows: Tensor, party: PartyId) -> bytes:
        """Return a holder's row of a message [P, …] as bytes."""
        return rows[self.holders.index(party)].numpy().tobytes()

    def table(self, rows: Mapping[PartyId, Tensor], width: int) -> Tensor:
        """Stack holders' rows, uint8 [width], in the job's order: uint8 [P, width], zeros for absent holders."""
        found = torch.zeros(len(self.holders), width, dtype=torch.uint8)
        for holder, content in rows.items():
            found[self.holders.index(holder)] = content
        return found

    def enough(self, present: Collection[PartyId], what: str) -> None:
        """Raise ``ProtocolError`` if fewer holders than the threshold are ``present``; ``what`` names the message."""
        if len(present) < self.threshold:
            raise ProtocolError(
                f"{len(present)} of {len(self.holders)} holders are left in {self.name} ({what}), and the sum needs "
                f"{self.threshold}; wait for the others, or lower the threshold",
                code="too-few",
                key="threshold",
                value=len(present),
            )


class Secrets:
    """A holder's secrets of one round. The server may learn the mask key or the own mask's seed, never both."""

    def __init__(self, source: SecretSource) -> None:
        self.sealing = X25519PrivateKey.from_private_bytes(source(SEED_BYTES))
        self.mask_key = shamir.draw(source)
        self.own_mask = shamir.draw(source)

    def offer(self) -> bytes:
        """Return public keys for sealing and for masks, and a commitment to the own mask's seed: 3·KEY_BYTES."""
        publics = (self.sealing.public_key(), mask_private(self.mask_key).public_key())
        return b"".join(key.public_bytes_raw() for key in publics) + commitment(self.own_mask)


def mask_private(mask_key: int) -> X25519PrivateKey:
    """Derive the private X25519 key for agreeing on pairwise masks from ``mask_key``, a field element."""
    return X25519PrivateKey.from_private_bytes(derive_key(shamir.to_bytes(mask_key), "mask key"))


def commitment(own_mask: int) -> bytes:
    """Commit to the own mask's seed, a field element: hiding and binding, KEY_BYTES."""
    return derive_key(shamir.to_bytes(own_mask), "commitment")


class Sealing:
    """Encrypts a holder's shares for one other holder, and decrypts others' for it, with its private key of a round."""

    def __init__(self, round_: Round, own: PartyId, private: X25519PrivateKey, pairs: PairSecrets) -> None:
        self._round, self._own, self._private, self._pairs = round_, own, private, pairs

    def seal(self, to: PartyId, public: bytes, content: bytes) -> bytes:
        """Encrypt ``content`` [PAIR_BYTES] for ``to``, whose public key is ``public``: [SEALED_BYTES]."""
        return self._cipher(self._own, to, public, to).encrypt(_NO_NONCE, content, None)

    def open(self, sender: PartyId, public: bytes, sealed: bytes) -> bytes:
        """Decrypt what ``sender``, with the key ``public``, sealed for this holder; ``ProtocolError`` if changed."""
        try:
            return self._cipher(sender, self._own, public, sender).decrypt(_NO_NONCE, sealed, None)
        except InvalidTag as error:
            raise ProtocolError(
                f"{self._own} cannot open what should be {sender}'s shares of {self._round.name}; ask who runs the "
                "server what became of them",
                code="bad-shares",
                party=sender,
            ) from error

    def _cipher(self, sender: PartyId, receiver: PartyId, public: bytes, peer: PartyId) -> AESGCM:
        purpose = f"shares/{self._round.name}/{sender} to {receiver}"
        both = self._pairs.key(peer, purpose) + derive_shared_key(self._private, public, purpose, peer)
        return AESGCM(derive_key(both, purpose))


def own_mask(round_: Round, seed: int, size: int) -> Tensor:
    """Expand the seed of a holder's own mask, a field element, for one round: uniform int64 [size]."""
    return expand(shamir.to_bytes(seed), f"mask/{round_.name}", (size,))


def pair_purpose(round_: Round, holder: PartyId, peer: PartyId) -> str:
    """Name what two holders derive their pairwise mask of a round for."""
    return f"pair/{round_.name}/{'/'.join(sorted([holder, peer]))}"


def pad_pair_key(round_: Round, mask_key: int, peer: PartyId, pair_key: bytes) -> bytes:
    """Put a pair's key [KEY_BYTES] under a pad of a holder's ``mask_key``, or take it off again.

    Each holder gives the server its keys so. If it drops out, its mask key gives them back with its masks.
    """
    pad = derive_key(shamir.to_bytes(mask_key), f"pad/{round_.name}/{peer}")
    return bytes(one ^ other for one, other in zip(pad, pair_key, strict=True))


def pairwise_mask(
    round_: Round, holder: PartyId, private: X25519PrivateKey, peer: PartyId, public: bytes, pair_key: bytes, size: int
) -> Tensor:
    """Return the mask that ``holder`` adds for ``peer``: uniform int64 [size], minus the one that ``peer`` adds for it.

    ``private`` is the mask key of one of the two, ``public`` of the other's; ``pair_key`` is what they share for
    ``pair_purpose``.
    """
    purpose = pair_purpose(round_, holder, peer)
    key = derive_key(pair_key + derive_shared_key(private, public, purpose, peer), purpose)
    mask = expand(key, "mask", (size,))
    return mask if holder < peer else mask.neg_()
