"""A channel between two parties of a job: a handshake, then sealed frames. Pure state; others carry what it makes.

Each side sends one hello, in the clear and signed by its certificate's key:

    magic, version     4s, u8   b"VSEA", 3
    public keys        1184s    ML-KEM-768 (FIPS 203), made for this session and dropped with it
                       32s      X25519, likewise
    job, terms         32s, 32s SHA-256 of the job's id; of the settings' hash and all parties' names
    certificate        u32 length, PEM
    signature          over (label, job's id, from, to, all of the above)

With the peer's hello, each side encapsulates a secret of its own for the peer's ML-KEM key. The ciphertext goes with
the first frame that the peer gets. So each direction has keys of two exchanges, and stays secret if one is broken:

    transcript = SHA-256(label, job, both names, both hellos without their signatures, the sender's ciphertext)
    keys       = HKDF-SHA256(ML-KEM secret ‖ X25519 secret, label / transcript / from / purpose)

There is one version and nothing to choose, so nobody can talk two parties out of either exchange.

The signature says for whom and for which job keys were made, so nobody else can offer one in the peer's name, and
whoever repeats a hello lacks its secret half. The keys depend on both hellos: only their two makers have them, which
the first frame of each, its confirmation, shows the other (authenticated Diffie-Hellman with key confirmation). What
is refused changes nothing, so forged hellos do not keep the true one out.

A frame is

    kind, number, index, total    u8, u64, u32, u64, little-endian, in the clear
    ciphertext                    1088s, in the clear; of a confirmation or a stop notice alone: either may come first
    content                       sealed: 16 bytes longer

AES-256-GCM; nonce = number and index; associated data = job, from, to and the fields in the clear. Pieces of messages
have one key, all other frames another, with numbers of their own. Whoever takes a frame gives a receipt for it: 16
bytes of HMAC-SHA256 over the fields in the clear, under a third key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.secrets import SEED_BYTES, SecretSource, derive_key, system_secrets
from veilgraph.core.types import PartyId
from veilgraph.link.identity import Identity

MAX_HELLO_BYTES: Final = 64 << 10
"""Limit of a hello before anything in it is read."""
MAX_EXTRA_BYTES: Final = 1 << 20
"""Limit of what a party may tell its peers with its confirmation."""
RECEIPT_BYTES: Final = 16

_LABEL: Final = b"veilgraph seal 3"
_MAGIC: Final = b"VSEA"
_VERSION: Final = 3
_KEM_SEED_BYTES: Final = 64
_CIPHERTEXT_BYTES: Final = 1088  # of ML-KEM-768
_HELLO: Final = struct.Struct("<4sB1184s32s32s32sI")
_HEAD: Final = struct.Struct("<BQIQ")
_GCM_TAG_BYTES: Final = 16

HEAD_BYTES: Final = _HEAD.size
FRAME_BYTES: Final = HEAD_BYTES + _GCM_TAG_BYTES
"""What a frame is longer than its content."""

Buffer = bytes | bytearray | memoryview


class FrameKind(IntEnum):
    """What a frame is. The number is its code on the wire."""

    CONFIRMATION = 1
    """The first frame: the sender has the keys. Its content is what the party tells every peer."""
    PIECE = 2
    """Of a message."""
    PING = 3
    STOPPED = 4
    """The sender's part is over; the content says why, empty when it is done."""


_FIRST: Final = frozenset({FrameKind.CONFIRMATION, FrameKind.STOPPED})
"""Kinds that may be the first frame of a peer: they carry its ciphertext."""


class Disagreement(ProtocolError):
    """The peer itself, beyond doubt, takes part in a job with other settings or other parties."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What both ends of every channel have in common: the session's name, parties in order, the settings' hash."""

    job: str
    parties: tuple[PartyId, ...]
    settings: str = ""

    def terms(self) -> bytes:
        """SHA-256 of the settings' hash and all parties' names, in order."""
        return hashlib.sha256(
            length_prefixed(self.settings.encode(), *(party.encode() for party in self.parties))
        ).digest()


@dataclass(frozen=True, slots=True)
class Frame:
    """One that was opened: its peer sealed exactly this, in this session."""

    kind: FrameKind
    number: int
    index: int
    total: int
    content: bytes


class Channel:
    """One party's end. Any number of threads may use it.

    ``extra`` is told to the peer, sealed, before anything else; ``secrets`` gives the ephemeral keys. Raises
    ``ConfigError``: the two are not two of the job's parties, ``extra`` is too long, or ``cryptography`` lacks ML-KEM.
    """

    def __init__(
        self,
        identity: Identity,
        party: PartyId,
        peer: PartyId,
        session: ChannelContext,
        *,
        extra: bytes = b"",
        secrets: SecretSource = system_secrets,
    ) -> None:
        if party == peer or not {party, peer} <= set(session.parties):
            words = f"no channel from {party!r} to {peer!r}: name two parties of {', '.join(session.parties)}"
            raise ConfigError(words, code="no-channel", key="peer", value=peer)
        if len(extra) > MAX_EXTRA_BYTES:
            raise ConfigError(f"extra: has {len(extra)} bytes, at most {MAX_EXTRA_BYTES} are sent; shorten it")
        self._identity, self._party, self._peer, self._session = identity, party, peer, session
        self._private = X25519PrivateKey.from_private_bytes(secrets(SEED_BYTES))
        try:
            self._kem = MLKEM768PrivateKey.from_seed_bytes(secrets(_KEM_SEED_BYTES))
        except UnsupportedAlgorithm as error:
            words = "cryptography: this build of it lacks ML-KEM-768; install its wheel, or build it with OpenSSL 3.5"
            raise ConfigError(words, code="no-ml-kem") from error
        publics = self._kem.public_key().public_bytes_raw(), self._private.public_key().public_bytes_raw()
        body = _hello_body(publics, session, identity.certificate_pem)
        self._body = body
        self.hello = body + identity.sign(signed_bytes(party, peer, session, body))
        """What the peer must hear."""
        self._lock = threading.RLock()
        self._accepted: bytes | None = None
        self._exchanged: tuple[bytes, bytes] | None = None
        self._sealing: Direction | None = None
        self._opening: Direction | None = None
        self._messages = self._controls = self._newest = 0
        self._extra = extra
        self._confirmation: bytes | None = None

    @property
    def agreed(self) -> bool:
        """Whether there are keys: this end has heard the peer."""
        return self._sealing is not None

    def hear(self, hello: Buffer) -> bool:
        """Takes the peer's hello, makes the keys, and returns whether it is new; a refused one changes nothing.

        Raises ``Disagreement``: the peer takes part in something else; ``ProtocolError``: it is not the peer's hello to
        this party in this job, or not the first.
        """
        if not _HELLO.size < len(hello) <= MAX_HELLO_BYTES:
            sizes = f"{_HELLO.size + 1} to {MAX_HELLO_BYTES}"
            words = f"a hello of {len(hello)} bytes, expected {sizes}: install one release at all parties"
            raise ProtocolError(words, code="hello-size", value=len(hello))
        heard = bytes(hello)
        if self._accepted is not None:
            if heard == self._accepted:
                return False
            raise ProtocolError(
                f"another hello in the name of {self._peer}, which has been heard", code="hello-again", party=self._peer
            )
        body, kem_public, public = self._verified(heard)
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(public))
            # The library draws what is encapsulated: FIPS 203 lets nobody else choose it.
            encapsulated = MLKEM768PublicKey.from_public_bytes(kem_public).encapsulate()
        except ValueError as error:
            words = f"{self._peer} sent a public key that is none of ML-KEM-768 or X25519; ask who runs its site"
            raise ProtocolError(words, code="bad-public-key", party=self._peer) from error
        with self._lock:
            if self._accepted is not None:
                return False
            self._exchanged, self._accepted = (secret, body), heard
            self._sealing = self._direction(self._exchanged, encapsulated, self._party, self._peer)
        return True

    def confirmation(self) -> bytes:
        """The frame that shows the peer that this end has the keys; the same whenever it is asked for."""
        with self._lock:
            self._confirmation = self._confirmation or self.seal(FrameKind.CONFIRMATION, self._extra)
            return self._confirmation

    def seal(self, kind: FrameKind, content: bytes = b"") -> bytes:
        """Seals a frame that is no piece, numbered higher than any before; ``ProtocolError`` before there are keys."""
        with self._lock:
            self._controls += 1
            number = self._controls
        sealing = _agreed(self._sealing, self._peer)
        head = _HEAD.pack(kind, number, 0, 0)
        shown = head + sealing.ciphertext if kind in _FIRST else head
        return shown + sealing.controls.encrypt(_nonce(number, 0), content, sealing.context + head)

    def next_message(self) -> int:
        """Count a message more, and return its number, from 1."""
        with self._lock:
            self._messages += 1
            return self._messages

    def seal_piece(self, number: int, index: int, total: int, content: Buffer) -> bytearray:
        """Seal a piece, below 2 GiB, of a message of ``total`` bytes. One place must always have the same content.

        ``number`` is as ``next_message`` gave it. Raises ``ProtocolError``: there are no keys yet.
        """
        sealing = _agreed(self._sealing, self._peer)
        head = _HEAD.pack(FrameKind.PIECE, number, index, total)
        frame = bytearray(FRAME_BYTES + len(content))
        frame[:HEAD_BYTES] = head
        into = memoryview(frame)[HEAD_BYTES:]
        sealing.pieces.encrypt_into(_nonce(number, index), content, sealing.context + head, into)
        return frame

    def open(self, frame: Buffer) -> Frame:
        """Opens a frame, as often as it comes. Of the first it keeps the peer's keys; a refused one changes nothing.

        Raises ``ProtocolError``: the peer did not seal it for this party in this session, or there are no keys yet.
        """
        least = FRAME_BYTES + (_CIPHERTEXT_BYTES if len(frame) and frame[0] in _FIRST else 0)
        if len(frame) < least:
            words = f"{len(frame)} bytes came, a sealed frame of this kind has at least {least}"
            raise ProtocolError(words, code="short-frame")
        head, start = bytes(frame[:HEAD_BYTES]), least - _GCM_TAG_BYTES
        code, number, index, total = _HEAD.unpack(head)
        opening = self._opened_with(bytes(frame[HEAD_BYTES:start]))
        cipher = opening.pieces if code == FrameKind.PIECE else opening.controls
        try:
            content = cipher.decrypt(_nonce(number, index), memoryview(frame)[start:], opening.context + head)
        except InvalidTag as error:
            words = f"it was not sealed by {self._peer} for {self._party} in this session, or was changed on the way"
            raise ProtocolError(words, code="not-sealed", party=self._peer) from error
        with self._lock:
            self._opening = self._opening or opening
        try:
            return Frame(FrameKind(code), number, index, total, content)
        except ValueError as error:
            words = f"{self._peer} sealed a frame of kind {code}: install one release everywhere"
            raise ProtocolError(words, code="frame-kind", value=code, party=self._peer) from error

    def renews(self, frame: Frame) -> bool:
        """Whether a frame that is no piece has a higher number than all asked about before: a repeated one has not."""
        with self._lock:
            newer = frame.number > self._newest
            self._newest = max(self._newest, frame.number)
            return newer

    def receipt(self, frame: Frame) -> bytes:
        """Return the receipt that shows the peer that its frame was taken: HMAC-SHA256, 16 bytes."""
        opening = _agreed(self._opening, self._peer)
        return _receipt(opening.receipts, _HEAD.pack(frame.kind, frame.number, frame.index, frame.total))

    def received(self, frame: Buffer, receipt: Buffer) -> bool:
        """Whether ``receipt`` shows that the peer took a frame that this end sealed: only it can have made that."""
        sealing = _agreed(self._sealing, self._peer)
        return hmac.compare_digest(_receipt(sealing.receipts, bytes(frame[:HEAD_BYTES])), bytes(receipt[:64]))

    def _opened_with(self, ciphertext: bytes) -> Direction:
        """Return the keys to open the peer's frames with; those of a ``ciphertext``, where none have opened one yet."""
        with self._lock:
            opening, exchanged = self._opening, self._exchanged
        if opening is None and ciphertext and exchanged is not None:
            # Where nobody encapsulated it, ML-KEM gives a secret that nobody has (implicit rejection).
            encapsulated = self._kem.decapsulate(ciphertext), ciphertext
            return self._direction(exchanged, encapsulated, self._peer, self._party)
        opening = _agreed(opening, self._peer)
        if ciphertext not in (b"", opening.ciphertext):
            words = f"it has another ciphertext than {self._peer}'s first frame in this session"
            raise ProtocolError(words, code="not-sealed", party=self._peer)
        return opening

    def _verified(self, hello: bytes) -> tuple[bytes, bytes, bytes]:
        """Check that a hello is the peer's, of this job and these terms; return what was signed, and its public keys.

        The keys are those of ML-KEM-768 and X25519.
        """
        magic, version, kem_public, public, job, terms, certificate_bytes = _HELLO.unpack_from(hello)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ProtocolError(
                f"a hello in the name of {self._peer} begins with {magic!r}, {version}, expected {_MAGIC!r}, "
                f"{_VERSION}: install one release at all parties"
            )
        if job != job_digest(self._session):
            raise ProtocolError(
                f"a hello in the name of {self._peer} is of another job", code="other-job", party=self._peer
            )
        end = _HELLO.size + certificate_bytes
        certificate, signature = hello[_HELLO.size : end], hello[end:]
        message = signed_bytes(self._peer, self._party, self._session, hello[:end])
        self._identity.verify_peer(self._peer, certificate, signature, message, datetime.now(UTC))
        if terms != self._session.terms():
            raise Disagreement(
                f"{self._peer} takes part in this job with other settings, or other parties, than {self._party}: "
                "submit it again; who keeps jobs may have changed it",
                code="other-settings",
                party=self._peer,
            )
        return hello[:end], kem_public, public

    def _direction(
        self, exchanged: tuple[bytes, bytes], encapsulated: tuple[bytes, bytes], sender: PartyId, receiver: PartyId
    ) -> Direction:
        """Return the keys of one direction.

        ``exchanged`` is the X25519 secret and what the peer signed, ``encapsulated`` the sender's ML-KEM-768 secret and
        its ciphertext.
        """
        secret, theirs = exchanged
        kem_secret, ciphertext = encapsulated
        bodies = {self._party: self._body, self._peer: theirs}
        first, second = sorted(bodies)
        said = first.encode(), second.encode(), bodies[first], bodies[second], ciphertext
        transcript = hashlib.sha256(length_prefixed(_LABEL, self._session.job.encode(), *said)).digest()
        return Direction(kem_secret + secret, transcript, ciphertext, self._session, sender, receiver)


class Direction:
    """Keys of what one party seals for the other, and of the receipts for it; ``ciphertext`` is the sender's."""

    def __init__(
        self,
        secret: bytes,
        transcript: bytes,
        ciphertext: bytes,
        session: ChannelContext,
        sender: PartyId,
        receiver: PartyId,
    ) -> None:
        def key(purpose: str) -> bytes:
            return derive_key(secret, f"{_LABEL.decode()}/{transcript.hex()}/{sender}/{purpose}")

        self.ciphertext = ciphertext
        self.pieces, self.controls = AESGCM(key("pieces")), AESGCM(key("controls"))
        self.receipts = key("receipts")
        self.context = length_prefixed(session.job.encode(), sender.encode(), receiver.encode())


def length_prefixed(*parts: bytes) -> bytes:
    """The parts, each after its length: no two lists of parts give the same bytes."""
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def stated_head(frame: Buffer) -> tuple[int, int, int, int]:
    """Kind, number, index and total as a frame states them; ``ProtocolError`` where it is too short."""
    if len(frame) < HEAD_BYTES:
        raise ProtocolError(f"{len(frame)} bytes came, a frame has more", code="short-frame", value=len(frame))
    kind, number, index, total = _HEAD.unpack_from(frame)
    return kind, number, index, total


def claimed_kind(frame: Buffer) -> str:
    """Name the kind that a frame claims, for a log: nobody vouches for it."""
    code = frame[0] if len(frame) else 0
    return {1: "confirmation", 2: "piece", 3: "ping", 4: "stop notice"}.get(code, "frame")


def _hello_body(publics: tuple[bytes, bytes], session: ChannelContext, certificate: bytes) -> bytes:
    return _HELLO.pack(_MAGIC, _VERSION, *publics, job_digest(session), session.terms(), len(certificate)) + certificate


def job_digest(session: ChannelContext) -> bytes:
    """SHA-256 of the session's job id."""
    return hashlib.sha256(session.job.encode()).digest()


def signed_bytes(sender: PartyId, receiver: PartyId, session: ChannelContext, body: bytes) -> bytes:
    """Return what a hello's signature is over: who says it to whom, in which session, and its body."""
    return length_prefixed(_LABEL + b" hello", session.job.encode(), sender.encode(), receiver.encode(), body)


def _agreed(direction: Direction | None, peer: PartyId) -> Direction:
    """Return a direction's keys; ``ProtocolError``: there are none with this peer yet."""
    if direction is None:
        raise ProtocolError(f"there are no keys with {peer} yet", code="no-keys", party=peer)
    return direction


def _nonce(number: int, index: int) -> bytes:
    return struct.pack("<QI", number, index)


def _receipt(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, head, "sha256")[:RECEIPT_BYTES]
