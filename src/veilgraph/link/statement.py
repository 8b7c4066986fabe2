"""What a party states of its own records, and what the others countersign: so that none can later be another quietly.

A statement says how long the party's records were and gives their heads (``core.chain``), which nobody but their owner
can compute. A countersignature says who has heard a statement. Both are signed with the key of the project's
certificate; on one machine, where no party has a certificate, they are not, and prove nothing to anybody outside.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from datetime import datetime
from typing import Annotated, Final, Self

from pydantic import Field

from veilgraph.core.errors import ProtocolError
from veilgraph.core.settings import Exact
from veilgraph.core.types import PartyId
from veilgraph.link.channel import length_prefixed
from veilgraph.link.identity import Identity, Trust

RECORDS: Final = ("disclosures.jsonl", "ledger.jsonl", "evidence.jsonl")
"""What a statement is about, in the order of its extents."""

_LABEL: Final = b"veilgraph evidence 1"
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Party = Annotated[str, Field(min_length=1, max_length=256)]
_Number = Annotated[int, Field(ge=1, le=2**32)]
Time = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\+00:00$")]
"""UTC in whole seconds, as text: what is signed must not be read and written anew in another form."""


class _Attestation(Exact):
    """What one party says and signs."""

    run: _Hash
    """SHA-256 of the job's settings."""
    time: Time
    """When the session began in which it was signed, by the signer's clock."""
    certificate: Annotated[str, Field(max_length=16384)] = ""
    """The signer's, PEM; empty on one machine."""
    signature: Annotated[str, Field(max_length=2048, pattern=r"^[0-9a-f]*$")] = ""

    @property
    @abstractmethod
    def author(self) -> PartyId:
        """The party that states and signs this."""

    def content(self) -> bytes:
        """Return the bytes to sign: the type's name, and all fields but certificate and signature."""
        said = self.model_dump_json(exclude={"certificate", "signature"})
        return length_prefixed(_LABEL, type(self).__name__.encode(), said.encode())

    def digest(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()

    def signed(self, identity: Identity | None) -> Self:
        """Return a copy with the signature and certificate of ``identity``; itself where that is None."""
        if identity is None:
            return self
        signature = identity.sign(self.content()).hex()
        return self.model_copy(update={"certificate": identity.certificate_pem.decode(), "signature": signature})

    def check(self, author: PartyId, run: str, trust: Trust) -> None:
        """Raise ``ProtocolError`` unless it is by ``author``, of this run and, where there are roots, signed."""
        if self.author != author or self.run != run:
            raise ProtocolError(f"it is by {self.author} of run {self.run[:12]}, not by {author} of run {run[:12]}")
        if not trust.roots:
            if self.signature:
                raise ProtocolError("it is signed, and there is no root certificate here to check that by")
            return
        if not self.signature:
            raise ProtocolError("it is not signed")
        try:
            when, signature = datetime.fromisoformat(self.time), bytes.fromhex(self.signature)
        except ValueError as error:
            raise ProtocolError(f"its time or signature is none ({error})") from error
        trust.check(author, self.certificate.encode(), signature, self.content(), when)


class SessionKey(_Attestation):
    """The key under which a party signs its messages in one session (``link.signed``)."""

    party: _Party
    key: _Hash
    """Ed25519 public key, 32 bytes in hexadecimal digits."""

    @property
    def author(self) -> PartyId:
        """The party whose key it is."""
        return self.party


class Extent(Exact):
    """The first lines of a record."""

    lines: Annotated[int, Field(ge=0, le=2**32)]
    head: _Hash


class Statement(_Attestation):
    """What a party's records were when it signed this; number n of its statements in the run, from 1."""

    party: _Party
    number: _Number
    extents: Annotated[list[Extent], Field(min_length=len(RECORDS), max_length=len(RECORDS))]
    """Of ``RECORDS``; of evidence.jsonl without the line of the statement itself."""

    @property
    def author(self) -> PartyId:
        """The party that owns the records."""
        return self.party

    def __str__(self) -> str:
        return f"statement {self.number} of {self.time}"


class Countersignature(_Attestation):
    """That ``by`` has heard a statement of ``party``."""

    by: _Party
    party: _Party
    number: _Number
    statement: _Hash
    """Digest of the statement."""

    @property
    def author(self) -> PartyId:
        """The party that has heard the statement."""
        return self.by

    @classmethod
    def of(cls, statement: Statement, by: PartyId, time: str) -> Countersignature:
        """Make the countersignature of a statement that ``by`` has heard; not signed yet."""
        return cls(
            run=statement.run,
            time=time,
            by=by,
            party=statement.party,
            number=statement.number,
            statement=statement.digest(),
        )

    def is_of(self, statement: Statement) -> bool:
        """Whether it countersigns this very statement: same party, number and digest."""
        about = (statement.party, statement.number, statement.digest())
        return (self.party, self.number, self.statement) == about
