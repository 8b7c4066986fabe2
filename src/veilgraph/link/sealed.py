"""A wrapper of any link that seals what holders send each other, so that whoever carries it can neither read nor
change it. Messages with other parties (the server) pass unchanged.

Handshake, once per pair, over ``Kind.SEAL``. Each side sends in each round, and waits for the other's:

    round 0   hello     b"VSEA", version, nonce[32], ephemeral X25519 public key[32], certificate: in the clear
    round 1   proof     a signature by the certificate's key over (label, from, to, transcript), sealed
    round 2   verdict   nothing: accepted, sealed

    transcript = SHA-256(label, job, both names, both hellos);  keys = HKDF-SHA256(X25519 secret, transcript, direction)

This is the SIGMA pattern (Krawczyk, 2003): the signature covers both fresh keys and both names, so that a recorded,
reflected or redirected handshake is worth nothing, and it arrives under keys that only the two can derive. Whoever
refuses says so in its next round, in the clear, so that both ends stop with the reason.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from veilgraph.core.errors import ConfigError, LinkError, ProtocolError
from veilgraph.core.randomness import SEED_BYTES, SecretSource, derive_key, system_secrets
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.codec import MAX_MESSAGE_BYTES
from veilgraph.link.identity import Identity
from veilgraph.link.sealer import SEALING_BYTES, Opener, Sealer, joined

MAX_HANDSHAKE_BYTES: Final = 64 << 10
"""Limit of a hello, and of a refusal, before anything in it is read."""

_LABEL: Final = b"veilgraph seal 1"
_MAGIC: Final = b"VSEA"
_VERSION: Final = 1
_HELLO: Final = struct.Struct("<4sB32s32s")
_REFUSAL: Final = b"refused: "
_HELLO_ROUND, _PROOF_ROUND, _VERDICT_ROUND = range(3)


class SealedLink:
    """A ``Link`` whose messages with other holders only they can read or change.

    The handshake is made by ``establish``, or by the first send or receive with anyone, the server included: so every
    holder makes it before it waits for anything else, and it needs nobody but the peers.

    Args:
        link: carries the messages; it must allow messages longer by ``SEALING_BYTES``. Owned from now on.
        identity: of this party.
        peers: the other holders, each with a ``SealedLink`` of its own to this party.
        job: names the job and the session; the same at all parties.
        secrets: gives the ephemeral key and the nonce.
        max_message_bytes: limit of one message before it is sealed, header included.

    Raises:
        ConfigError: a peer is this party itself, or named twice.
    """

    def __init__(
        self,
        link: Link,
        identity: Identity,
        peers: Sequence[PartyId],
        job: str,
        secrets: SecretSource = system_secrets,
        max_message_bytes: int = MAX_MESSAGE_BYTES - SEALING_BYTES,
    ) -> None:
        if len({link.party, *peers}) < 1 + len(peers):
            raise ConfigError(f"peers {', '.join(peers)} of {link.party}: name every other holder once")
        self._link = link
        self._identity = identity
        self._peers = tuple(peers)
        self._job = job
        self._secrets = secrets
        self._max_message_bytes = max_message_bytes
        self._establishing = threading.Lock()
        self._failure: LinkError | None = None
        self._established = False
        self._rounds_sent = dict.fromkeys(self._peers, 0)
        self._sealers: dict[PartyId, Sealer] = {}
        self._openers: dict[PartyId, Opener] = {}

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._link.party

    def establish(self) -> None:
        """Agrees on keys with every peer, once; later calls do nothing, or fail as the first did.

        Raises:
            ProtocolError: a peer is not who it must be, runs another job, or refused this party; says which.
            LinkError: as ``Link.send`` and ``Link.receive``.
        """
        if self._established:
            return
        with self._establishing:
            if self._failure is not None:
                raise type(self._failure)(str(self._failure)) from self._failure
            if self._established:
                return
            try:
                self._shake_hands()
            except LinkError as error:
                self._failure = error
                self._refuse(error)
                raise
            self._established = True

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Seals, if ``to`` is a peer, and sends. Errors as the wrapped link's and as ``establish``."""
        self.establish()
        sealer = self._sealers.get(to)
        self._link.send(to, tag, tensor if sealer is None else sealer.seal(tag, tensor))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receives and, if ``sender`` is a peer, opens. Errors as the wrapped link's and as ``establish``.

        Raises:
            ProtocolError: what came is not what the peer sealed under this tag.
        """
        self.establish()
        frame = self._link.receive(sender, tag)
        return self._open(sender, tag, frame) if sender in self._openers else frame

    def expect(self, unread_bytes: int) -> None:
        """As the wrapped link."""
        self._link.expect(unread_bytes)

    def close(self) -> None:
        """Closes the wrapped link."""
        self._link.close()

    def _shake_hands(self) -> None:
        private = X25519PrivateKey.from_private_bytes(self._secrets(SEED_BYTES))
        mine = _Hello(
            self._secrets(SEED_BYTES), private.public_key().public_bytes_raw(), self._identity.certificate_pem
        )
        for peer in self._peers:
            self._tell(peer, _bytes_tensor(mine.encoded()))
        hellos = {peer: _Hello.decoded(self._hear(peer, _HELLO_ROUND), peer) for peer in self._peers}
        transcripts = {peer: self._agree(private, mine, peer, hello) for peer, hello in hellos.items()}
        for peer, transcript in transcripts.items():
            proof = self._identity.sign(_proof_message(self.party, peer, transcript))
            self._tell(peer, self._sealers[peer].seal(_tag(_PROOF_ROUND), _bytes_tensor(proof)))
        for peer, transcript in transcripts.items():
            self._check_proof(peer, hellos[peer].certificate, transcript)
        for peer in self._peers:
            self._tell(peer, self._sealers[peer].seal(_tag(_VERDICT_ROUND), torch.empty(0)))
        for peer in self._peers:
            self._open(peer, _tag(_VERDICT_ROUND), self._hear(peer, _VERDICT_ROUND))

    def _agree(self, private: X25519PrivateKey, mine: _Hello, peer: PartyId, theirs: _Hello) -> bytes:
        """Makes the keys with ``peer``; returns the hash of all that both know of the handshake."""
        hellos = {self.party: mine.encoded(), peer: theirs.encoded()}
        first, second = sorted(hellos)
        known = (_LABEL, self._job.encode(), first.encode(), second.encode(), hellos[first], hellos[second])
        transcript = hashlib.sha256(joined(*known)).digest()
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(theirs.public))
        except ValueError as error:
            raise ProtocolError(f"{peer} sent {self.party} an invalid X25519 public key: {error}") from error

        def key(sender: PartyId) -> bytes:
            direction = "first to second" if sender == first else "second to first"
            return derive_key(secret, f"{_LABEL.decode()}/{transcript.hex()}/{direction}")

        def context(sender: PartyId, receiver: PartyId) -> bytes:
            return joined(self._job.encode(), sender.encode(), receiver.encode())

        self._sealers[peer] = Sealer(key(self.party), context(self.party, peer), self._max_message_bytes)
        self._openers[peer] = Opener(key(peer), context(peer, self.party), self._max_message_bytes)
        return transcript

    def _check_proof(self, peer: PartyId, certificate: bytes, transcript: bytes) -> None:
        frame = self._hear(peer, _PROOF_ROUND)
        try:
            signature = self._open(peer, _tag(_PROOF_ROUND), frame).numpy().tobytes()
        except ProtocolError as error:
            raise ProtocolError(f"{error}; does {peer} run the same job and release?") from error
        message = _proof_message(peer, self.party, transcript)
        self._identity.verify_peer(peer, certificate, signature, message, datetime.now(UTC))

    def _open(self, sender: PartyId, tag: Tag, frame: Tensor) -> Tensor:
        try:
            return self._openers[sender].open(tag, frame)
        except ProtocolError as error:
            raise ProtocolError(f"{self.party} cannot open {tag} from {sender}: {error}") from error

    def _tell(self, peer: PartyId, frame: Tensor) -> None:
        """Sends the next round of the handshake."""
        self._link.send(peer, _tag(self._rounds_sent[peer]), frame)
        self._rounds_sent[peer] += 1

    def _hear(self, peer: PartyId, round_: int) -> Tensor:
        """Receives a round of the handshake, unless ``peer`` refuses in it."""
        frame = self._link.receive(peer, _tag(round_))
        if frame.dtype != torch.uint8 or frame.ndim != 1 or frame.numel() > MAX_HANDSHAKE_BYTES:
            raise ProtocolError(
                f"{peer} sent {frame.dtype} {list(frame.shape)} as round {round_} of the handshake, "
                f"expected at most {MAX_HANDSHAKE_BYTES} bytes"
            )
        content = frame.numpy().tobytes()
        if content.startswith(_REFUSAL):
            # Nobody vouches for this text: shown as quoted, and short.
            raise ProtocolError(f"{peer} refused {self.party}'s handshake: {content[len(_REFUSAL) :][:300]!r}")
        return frame

    def _refuse(self, error: LinkError) -> None:
        """Tells every peer that still waits why there will be no keys."""
        for peer, sent in self._rounds_sent.items():
            if sent <= _VERDICT_ROUND:
                with suppress(LinkError):  # a peer that is gone need not be told
                    self._tell(peer, _bytes_tensor(_REFUSAL + str(error).encode()[:300]))


@dataclass(frozen=True, slots=True)
class _Hello:
    nonce: bytes
    public: bytes
    certificate: bytes

    def encoded(self) -> bytes:
        return _HELLO.pack(_MAGIC, _VERSION, self.nonce, self.public) + self.certificate

    @classmethod
    def decoded(cls, frame: Tensor, peer: PartyId) -> _Hello:
        content = frame.numpy().tobytes()
        if len(content) <= _HELLO.size:
            raise ProtocolError(f"{peer} sent a hello of {len(content)} bytes, without a certificate")
        magic, version, nonce, public = _HELLO.unpack_from(content)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ProtocolError(
                f"{peer}'s hello begins with {magic!r}, {version}, expected {_MAGIC!r}, {_VERSION}: "
                "install one release at all parties"
            )
        return cls(nonce, public, content[_HELLO.size :])


def _tag(round_: int) -> Tag:
    return Tag(Kind.SEAL, 0, round_)


def _bytes_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _proof_message(sender: PartyId, receiver: PartyId, transcript: bytes) -> bytes:
    return joined(_LABEL + b" proof", sender.encode(), receiver.encode(), transcript)
