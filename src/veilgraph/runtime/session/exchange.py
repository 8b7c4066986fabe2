"""Statements of the parties' records and of their ledgers for life, exchanged in every session.

Four rounds of ``HELLO``, between every two parties:

    round 5   opening      the newest statement of the sender, and that which it last heard of the receiver
    round 6   verdict      the sender's countersignature under the receiver's statement, or why it refuses the job
    round 7   statement    of what the sender has recorded by the end of the session
    round 8   countersignature

A party refuses if another's record is shorter than, or differs from, what it heard before. So does the owner, whom the
others remind of its own statements. Nothing of the data has been sent by then.

The heads of ledgers for life go along, and the others keep them across jobs (``PeerHeads``). So a ledger that is put
back, with all that its owner's machine has seen of it, is noticed where the owner cannot reach. A head is an HMAC under
its owner's salt: it reveals nothing but the number of lines.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.files import locked, private_folder, run_errors, write_whole
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.core.settings import Exact
from veilgraph.core.text import printable
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import receive_model, text_tensor
from veilgraph.link.identity import Identity, Trust
from veilgraph.link.statement import RECORDS, Countersignature, Statement
from veilgraph.privacy.ledger_files import LifetimeFile
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.agreement import MAX_HELLO_BYTES, one_line
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import REASON_CHARACTERS, joined
from veilgraph.runtime.store.records import Beginning, RecordLog, fault_of_records


class LedgerHead(Exact):
    """How far a party's lifetime ledger is: its id, its lines, and HMAC-SHA256 of these under the owner's salt."""

    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    lines: Annotated[int, Field(ge=1, le=2**32)]
    head: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PeerHeads:
    """Heads of lifetime ledgers that a party knows in a session: its own, and the last of each peer (``folder/heard``).

    A peer's head is read once a session, so that one which another session writes meanwhile is not held against it.
    ``own`` is None without a ledger in this job, ``folder`` on one machine, where nothing is kept. ``releases``: the
    job releases anything, so that every holder has a ledger in it.
    """

    def __init__(self, party: PartyId, own: Lifetime | None, folder: Path | None, *, releases: bool) -> None:
        self._party, self._own, self._releases = party, own, releases
        self._folder = None if folder is None else folder / "heard"
        self._first: dict[PartyId, LedgerHead | None] = {}

    def own(self) -> LedgerHead | None:
        """The head of the party's own ledger as it is now; None without a ledger in this job."""
        if self._own is None:
            return None
        lines = self._own.lines
        with lines.held():
            return _head_after(lines, lines.count)

    def heard(self, party: PartyId) -> LedgerHead | None:
        """The last head of a peer's ledger before this session; None for none. ``RunError``: its file is damaged."""
        if party not in self._first:
            self._first[party] = self._read_head(party)
        return self._first[party]

    def keep(self, said: Mapping[PartyId, LedgerHead | None]) -> None:
        """Write peers' heads of this session to disk, unless one of another ledger, or of as many lines, is there."""
        if self._folder is None or not any(said.values()):
            return
        with locked(private_folder(self._folder), f"{self._folder} is in use", wait_s=math.inf):
            for party, head in said.items():
                path, kept = self._head_path(party), self._read_head(party)
                if path is None or head is None:
                    continue
                if kept is None or (head.ledger == kept.ledger and head.lines > kept.lines):
                    write_whole(path, head.model_dump_json().encode())

    def _read_head(self, party: PartyId) -> LedgerHead | None:
        path = self._head_path(party)
        if path is None or not path.is_file():
            return None
        with run_errors(path, f"restore it, or delete it, and what {party} brings next is believed"):
            return LedgerHead.model_validate_json(path.read_bytes())

    def fault_of(self, party: PartyId, now: LedgerHead | None) -> str:
        """Why a peer's head is refused: its ledger is another or shorter than the one heard of; empty if it is not."""
        told = self.heard(party)
        if told is None or not self._releases:
            return ""
        path = self._head_path(party)
        if now is None or now.ledger != told.ledger:
            # The file for all to read: where the kit lies is its owner's own.
            shown = "" if path is None else "/".join(path.parts[-3:])
            return (
                f"{party} brings another ledger of all that it released than {self._party} heard of, which had "
                f"{told.lines} lines: put back {party}'s ledger; or, if {party} brings other data, of which nothing "
                f"was released before, have {self._party} delete {shown} in its kit"
            )
        if now.lines < told.lines:
            return (
                f"{party}'s ledger of all that it released has {now.lines} lines, and {self._party} heard of "
                f"{told.lines}: it is an older copy; put back the newest"
            )
        if now.lines == told.lines and now.head != told.head:
            return f"{party}'s ledger of all that it released is not the one that {self._party} heard of; put that back"
        return ""

    def fault_of_memory(self, party: PartyId, heard: LedgerHead | None) -> str:
        """Why the head that ``party`` ``heard`` of this party's own ledger does not fit it; empty where it fits."""
        if heard is None or self._own is None:
            return ""
        lines = self._own.lines
        with lines.held():
            mine = _head_after(lines, min(heard.lines, lines.count))
        if heard.ledger != mine.ledger:
            return ""  # the other says so
        if mine != heard:
            return (
                f"{party} heard of a ledger of {self._party} with {heard.lines} lines that is not this one: it is an "
                f"older copy, or went on by itself; put back its newest copy"
            )
        return ""

    def _head_path(self, party: PartyId) -> Path | None:
        return None if self._folder is None else self._folder / f"{party}.json"


def _head_after(lines: LifetimeFile, count: int) -> LedgerHead:
    """The head of a lifetime ledger after its first ``count`` lines."""
    salt = bytes.fromhex(lines.header.salt)
    head = hmac.digest(salt, f"{lines.header.id}/{count}/{lines.head(count)}".encode(), "sha256")
    return LedgerHead(ledger=lines.header.id, lines=count, head=head.hex())


_OPENING, _STATEMENT = 5, 7  # each with the round of its verdicts after it
_WAY_OUT: Final = "put back that party's newest files, or submit the job under a new name"


_Said = TypeVar("_Said", bound=Exact)


class Opening(Exact):
    """Message of rounds 5 and 7: the sender's statement and ledger head, in 5 also what it heard of the receiver."""

    statement: Statement | None = None
    """Its newest; null where it has nothing on record in this run."""
    heard: Statement | None = None
    """The newest that it heard of the receiver; null where it heard none."""
    lifetime: LedgerHead | None = None
    """How far its lifetime ledger is; null where it has none in this job."""
    lifetime_heard: LedgerHead | None = None
    """How far it last heard that the receiver's is; null where it heard nothing."""

    @model_serializer(mode="wrap")
    def _without_nulls(self, all_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields of lifetime ledgers that are null, as in jobs that release nothing."""
        stated: dict[str, Any] = all_of(self)
        return {key: value for key, value in stated.items() if value is not None or not key.startswith("lifetime")}


class Verdict(Exact):
    """The message of rounds 6 and 8: a countersignature under the receiver's statement, or a refusal."""

    countersignature: Countersignature | None = None
    """Null where there was no statement, or the sender refuses."""
    refuses: Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(one_line)] = ""
    """Why the sender does not take part; empty when it does."""


class RecordExchange:
    """A party's exchange of statements with all others in one session; ``folder`` is its part of the run.

    ``identity`` is None on one machine, where nothing is signed; ``names`` has names in certificates, where these are
    others. Raises ``RunError`` where a record cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        job: JobSettings,
        party: PartyId,
        identity: Identity | None,
        names: Mapping[PartyId, str],
        peer_heads: PeerHeads,
    ) -> None:
        roots = () if identity is None else identity.roots
        beginning = Beginning(
            run=job.hash(),
            party=party,
            salt=system_secrets(SEED_BYTES).hex(),
            roots=[root.public_bytes(Encoding.PEM).decode() for root in roots],
            names=dict(names) if roots else {},
        )
        self._file, self._identity = RecordLog(folder, beginning), identity
        self._trust = Trust(roots, server_name=names.get(SERVER, SERVER))
        self._run, self._party, self._peer_heads = beginning.run, party, peer_heads
        self._others = [other for other in (*job.data.names, SERVER) if other != party]
        self.opened = False
        # Not when it is signed: where one holder learns alone, that would tell how long it did.
        self._time = datetime.now(UTC).isoformat(timespec="seconds")

    def close(self) -> None:
        """Add a statement of what was recorded since the newest one, for the next session, if ``open`` succeeded."""
        if self.opened:
            self._add_statement()

    def _add_statement(self) -> None:
        """Add a signed statement of the party's records to its evidence, unless the newest one is current."""
        if self._file.is_current():
            return
        self._file.begin()
        newest = self._file.newest
        statement = Statement(
            run=self._run,
            time=self._time,
            party=self._party,
            number=1 if newest is None else newest.number + 1,
            extents=self._file.stated(),
        )
        self._file.add([statement.signed(self._identity)])

    def open(self, link: Link) -> None:
        """Exchange openings and verdicts before any data; ``RunError`` at every party: somebody's records changed."""
        file = self._file
        reason = file.fault or file.changed()
        if not reason:
            self._add_statement()
        head = self._peer_heads.own()

        def opening_to(party: PartyId) -> Opening:
            known = self._peer_heads.heard(party)
            return Opening(statement=file.newest, heard=file.heard(party), lifetime=head, lifetime_heard=known)

        def faults_by(party: PartyId, opening: Opening) -> Iterator[str]:
            yield "" if reason else self._fault_of_memory(party, opening.heard)
            yield self._peer_heads.fault_of_memory(party, opening.lifetime_heard)
            if party != SERVER:
                yield self._peer_heads.fault_of(party, opening.lifetime)

        self._exchange_openings(link, _OPENING, opening_to, f"{reason}; {_WAY_OUT}" if reason else "", faults_by)
        self.opened = True

    def tell(self, link: Link) -> None:
        """Exchange statements of this session's records (rounds 7, 8); ``RunError``: somebody's have changed."""
        self._add_statement()
        opening = Opening(statement=self._file.newest, lifetime=self._peer_heads.own())
        self._exchange_openings(link, _STATEMENT, lambda _: opening)

    def _exchange_openings(
        self,
        link: Link,
        round_: int,
        say: Callable[[PartyId], Opening],
        own_fault: str = "",
        faults: Callable[[PartyId, Opening], Iterable[str]] = lambda party, opening: (),
    ) -> None:
        """Exchange openings, then countersignatures; record them. ``RunError`` at every party if one has a fault."""
        openings, reasons, file = self._exchange_hellos(link, round_, Opening, say), [own_fault], self._file
        for party, opening in openings.items():
            reasons += [self._fault_of_statement(party, opening.statement), *faults(party, opening)]
        refuses = printable(joined(reasons), REASON_CHARACTERS)

        def verdict(party: PartyId) -> Verdict:
            statement = openings[party].statement
            if refuses or statement is None:
                return Verdict(refuses=refuses)
            given = Countersignature.of(statement, self._party, self._time)
            return Verdict(countersignature=given.signed(self._identity))

        verdicts = self._exchange_hellos(link, round_ + 1, Verdict, verdict)
        refusals = {self._party: refuses} | {party: verdict.refuses for party, verdict in verdicts.items()}
        if words := [f"{party} refuses the job: {why}" for party, why in refusals.items() if why]:
            raise RunError("; ".join(words), code="refused")
        given = {party: verdict_.countersignature for party, verdict_ in verdicts.items()}
        if (mine := file.newest) is not None:
            for party, one in given.items():
                self._check_countersignature(party, one, mine)
        stated = {party: opening.statement for party, opening in openings.items()}
        new = [one for party, one in stated.items() if one is not None and one != file.heard(party)]
        known = {(one.by, one.statement) for one in file.found.countersignatures}
        file.add([*new, *(one for one in given.values() if one is not None and (one.by, one.statement) not in known)])
        self._peer_heads.keep({party: opening.lifetime for party, opening in openings.items()})

    def _fault_of_statement(self, party: PartyId, statement: Statement | None) -> str:
        """Why a peer's statement is refused: its signature, or an older one that it contradicts; empty if it is not."""
        told = self._file.heard(party)
        if statement is None:
            if told is None:
                return ""
            return f"{party} begins its records anew, and {self._party} heard its {told}: {_WAY_OUT}"
        try:
            statement.check(party, self._run, self._trust)
        except ProtocolError as error:
            return f"{party}'s {statement}: {error}; {_WAY_OUT}"
        return "" if told is None else self._fault_since(told, statement)

    def _fault_since(self, old: Statement, now: Statement) -> str:
        """What in a peer's statement contradicts an ``old`` one of it: number, lines or heads; empty for nothing."""
        party = now.party
        if now.number < old.number or (now.number == old.number and now.digest() != old.digest()):
            return (
                f"{party} gives its {now}, and {self._party} heard its {old}: {party}'s part of the run is an older "
                f"copy or another one; {_WAY_OUT}"
            )
        for name, extent, before in zip(RECORDS, now.extents, old.extents, strict=True):
            if extent.lines < before.lines:
                return (
                    f"{party}'s {name} has {extent.lines} lines, and {self._party} heard of {before.lines} in {old}: "
                    f"{_WAY_OUT}"
                )
            if extent.lines == before.lines and extent.head != before.head:
                return f"{party}'s {name} is not the one that {self._party} heard of in {old}: {_WAY_OUT}"
        return ""

    def _fault_of_memory(self, party: PartyId, heard: Statement | None) -> str:
        """Why this party's records contradict the statement of them that ``party`` ``heard``; empty if not."""
        if heard is None:
            return ""
        try:
            heard.check(self._party, self._run, self._trust)
        except ProtocolError as error:
            return f"{party} gives back a {heard} as {self._party}'s: {error}; {_WAY_OUT}"
        own = {one.number: one for one in self._file.found.own}.get(heard.number)
        if own is None or own.digest() != heard.digest():
            has = "none" if self._file.newest is None else f"up to {self._file.newest}"
            return f"{party} heard {self._party}'s {heard}, and {self._party} has {has} and not that one; {_WAY_OUT}"
        fault = fault_of_records(heard, self._file.records())
        return f"{fault}; {_WAY_OUT}" if fault else ""

    def _check_countersignature(self, party: PartyId, given: Countersignature | None, mine: Statement) -> None:
        """Raise ``ProtocolError`` unless ``given`` is the peer's valid countersignature under ``mine``."""
        fault = f"{party} did not countersign {self._party}'s {mine}; install one release of veilgraph at every party"
        if given is not None and given.is_of(mine):
            try:
                given.check(party, self._run, self._trust)
            except ProtocolError as error:
                fault = f"{party}'s countersignature under {self._party}'s {mine}: {error}"
            else:
                return
        raise ProtocolError(fault, code="countersignature", party=party)

    def _exchange_hellos(
        self, link: Link, round_: int, schema: type[_Said], say: Callable[[PartyId], _Said]
    ) -> dict[PartyId, _Said]:
        """Send ``say(party)`` to every other party; return what each sent, validated as ``schema``."""
        tag = Tag(Kind.HELLO, 0, round_)
        for party in self._others:
            link.send(party, tag, text_tensor(say(party).model_dump_json()))
        return {party: receive_model(link, party, tag, schema, MAX_HELLO_BYTES) for party in self._others}
