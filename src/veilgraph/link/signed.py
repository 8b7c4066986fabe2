"""Messages that their sender cannot deny later: a signature follows each, and the receiver keeps it with a digest.

Every party first sends the public half of a fresh Ed25519 key (RFC 8032), signed with the key of its certificate. A
signature covers the keys of all parties, sender, receiver, tag and the message as on the wire. So it counts in
one session, in one direction, and for one message. The private half stays in memory: who gives an auditor all that a
session left cannot give it away.

    SIGNATURE 0, 0                       a ``SessionKey`` as JSON
    SIGNATURE step, 256·round + kind     the signature of the message with that tag: uint8 [64]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.channel import length_prefixed
from veilgraph.link.codec import encode
from veilgraph.link.collectives import broadcast, receive_as, receive_model, text_tensor
from veilgraph.link.identity import Identity, Trust
from veilgraph.link.statement import SessionKey
from veilgraph.link.wrapper import Wrapper

SIGNATURE_BYTES: Final = 64
DIGEST_BYTES: Final = 32
_LABEL: Final = b"veilgraph signed message 1"
_KEY: Final = Tag(Kind.SIGNATURE)
_MOST_KEY_BYTES: Final = 1 << 15
_KINDS: Final = 256


class Signed(NamedTuple):
    """What a receiver keeps of a message: SHA-256 of it as on the wire, and the sender's signature."""

    digest: bytes
    signature: bytes


def digest_of(tag: Tag, tensor: Tensor) -> bytes:
    """SHA-256 of a message as on the wire."""
    header, data = encode(tag, tensor)
    found = hashlib.sha256(header)
    found.update(data)
    return found.digest()


def signature_tag(tag: Tag) -> Tag:
    """The tag of a message's signature."""
    return Tag(Kind.SIGNATURE, tag.step, tag.round * _KINDS + tag.kind)


class Signers:
    """The keys of a session's parties, which check their signatures."""

    def __init__(self, keys: Sequence[SessionKey]) -> None:
        self._session = hashlib.sha256(length_prefixed(*(each.content() for each in keys))).digest()
        self._keys = {each.party: Ed25519PublicKey.from_public_bytes(bytes.fromhex(each.key)) for each in keys}

    def content(self, sender: PartyId, receiver: PartyId, tag: Tag, digest: bytes) -> bytes:
        """Return the bytes to sign of a message; with the tag, or its receiver could say that it had another."""
        return length_prefixed(_LABEL, self._session, sender.encode(), receiver.encode(), str(tag).encode(), digest)

    def has_signed(self, sender: PartyId, receiver: PartyId, tag: Tag, message: Signed) -> bool:
        """Whether the sender signed a message with this tag and digest for the receiver, in this session."""
        try:
            self._keys[sender].verify(message.signature, self.content(sender, receiver, tag, message.digest))
        except InvalidSignature:
            return False
        return True


class SignedLink(Wrapper):
    """A link on which every message is signed, and refused without a signature.

    Attributes:
        keys: of all parties, in an order that all share.
        received: sender and tag → what this party keeps of each message that it took.
    """

    def __init__(self, link: Link, key: Ed25519PrivateKey, keys: Sequence[SessionKey]) -> None:
        super().__init__(link)
        self._key, self._signers, self.keys = key, Signers(keys), tuple(keys)
        self.received: dict[tuple[PartyId, Tag], Signed] = {}

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Send a message and its signature."""
        super().send(to, tag, tensor)
        signature = self._key.sign(self._signers.content(self.party, to, tag, digest_of(tag, tensor)))
        super().send(to, signature_tag(tag), torch.frombuffer(bytearray(signature), dtype=torch.uint8))

    @override
    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receive a message and keep its signature; ``ProtocolError``: it is not the sender's."""
        tensor = super().receive(sender, tag)
        signature = receive_as(self._link, sender, signature_tag(tag), (SIGNATURE_BYTES,), torch.uint8)
        message = Signed(digest_of(tag, tensor), signature.numpy().tobytes())
        if not self._signers.has_signed(sender, self.party, tag, message):
            raise ProtocolError(
                f"{sender} sent {self.party} {tag} under a signature that is not its own; nothing was computed from "
                f"it; ask {sender} what it runs",
                code="signature",
                key=tag,
                party=sender,
            )
        self.received[sender, tag] = message
        return tensor


def sign_messages(
    link: Link, parties: Sequence[PartyId], run: str, identity: Identity | None, server_name: str
) -> SignedLink:
    """Exchange session keys with all other ``parties``, and return the link that signs; ``run`` is the job's hash.

    ``identity`` is None on one machine, where no certificate vouches for a key. Raises ``ProtocolError``: a party's key
    is not signed with that of its certificate, in which that of party ``server`` has ``server_name``.
    """
    trust = Trust() if identity is None else Trust(identity.roots, identity.revoked, server_name)
    private = Ed25519PrivateKey.generate()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    own = SessionKey(run=run, time=now, party=link.party, key=private.public_key().public_bytes_raw().hex())
    own = own.signed(identity)
    others = [party for party in parties if party != link.party]
    broadcast(link, others, _KEY, text_tensor(own.model_dump_json()))
    found = {link.party: own}
    for party in others:
        found[party] = receive_model(link, party, _KEY, SessionKey, _MOST_KEY_BYTES)
        found[party].check(party, run, trust)
    return SignedLink(link, private, [found[party] for party in parties])
