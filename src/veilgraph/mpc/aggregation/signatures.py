"""What holders sign for one another, so that the server, which passes it on, cannot change it or say it twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import exchange

SIGNATURE_BYTES = 64


class Signatures:
    """One holder's signing key of a session, and the keys that the other holders' signatures are checked with.

    Args:
        party: the holder.
        private: its own key.
        publics: of every holder, its own among them.
    """

    def __init__(self, party: PartyId, private: Ed25519PrivateKey, publics: Mapping[PartyId, Ed25519PublicKey]) -> None:
        self._party, self._private, self._publics = party, private, publics

    @classmethod
    def agree(cls, link: Link, holders: Sequence[PartyId], secrets: SecretSource, *, round_: int) -> Signatures:
        """Every holder tells every other one a new key, by their own link and past the server.

        Args:
            link: of this holder.
            holders: all of them.
            secrets: source of its key.
            round_: of the messages, another one each time in a session.

        Raises:
            LinkError: as ``exchange``.
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
        """This holder's signature, of ``SIGNATURE_BYTES``.

        Args:
            what: is signed, in which round of which session; nothing else is ever signed under the same words.
            content: of the message.
        """
        return self._private.sign(_framed(what, self._party, content))

    def check(self, party: PartyId, what: str, content: bytes, signature: bytes) -> None:
        """Holds another's signature to what it should have signed.

        Raises:
            ProtocolError: it signed something else, or nothing.
        """
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
    """No two messages look alike: each part has its length before it."""
    parts = (b"veilgraph aggregation 1", what.encode(), party.encode(), content)
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
