"""A party's evidence.jsonl: its statements of its records, those that it heard, and countersignatures.

The first line says whose file it is and holds the salt of its heads. The lines are chained, and the file is one of the
records that a statement is about. A line is on the disk before anybody else hears what it says.

``verify`` tells from files alone whether the records of a run are those that its parties signed and countersigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from cryptography import x509
from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

from veilgraph.core.chain import Heads, check_chain, digest, drop_torn, whole_lines
from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.files import append, os_errors_as, sync_folder
from veilgraph.core.settings import Exact
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.validation import rule_of
from veilgraph.link.identity import Trust
from veilgraph.link.statement import RECORDS, Countersignature, Extent, Statement
from veilgraph.runtime.store.run_directory import RunDirectory

EVIDENCE: Final = RECORDS[-1]
_WAY_OUT: Final = "restore a copy of the file that has every line"


class Beginning(Exact):
    """First line of an evidence file: whose it is, and of which run."""

    evidence: Literal[1] = 1
    run: str
    """SHA-256 of the job's settings."""
    party: PartyId
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the heads in this party's statements: secret."""
    roots: list[str] = Field(default_factory=list)
    """Root certificates of the project, PEM; none on one machine."""
    names: dict[PartyId, str] = Field(default_factory=dict)
    """Party → the name in its certificate, where that is another one."""


class _Line(Exact):
    previous: str = ""
    begins: Beginning | None = None
    statement: Statement | None = None
    countersignature: Countersignature | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(part is not None for part in (self.begins, self.statement, self.countersignature)) != 1:
            raise ValueError("not one of beginning, statement and countersignature")
        return self


_PARTS: Final = {Beginning: "begins", Statement: "statement", Countersignature: "countersignature"}


@dataclass
class EvidenceContent:
    """The content of a party's evidence file.

    Attributes:
        own: the party's statements, oldest first; ``places`` says after how many lines of the file each stands.
        heard: other party → its statements that this one heard, oldest first.
        countersignatures: by others, oldest first.
    """

    beginning: Beginning
    own: list[Statement] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    heard: dict[PartyId, list[Statement]] = field(default_factory=dict)
    countersignatures: list[Countersignature] = field(default_factory=list)

    def add(self, line: Statement | Countersignature, place: int) -> None:
        """Add a line of the file, which stands after ``place`` others, to the list that it belongs to."""
        if isinstance(line, Countersignature):
            self.countersignatures.append(line)
        elif line.party == self.beginning.party:
            self.own.append(line)
            self.places.append(place)
        else:
            self.heard.setdefault(line.party, []).append(line)


def _parse_evidence(path: Path, lines: Sequence[bytes]) -> EvidenceContent:
    """Parse lines of an evidence.jsonl; ``RunError`` names the first that breaks the chain or has another form."""
    check_chain(path, lines)
    found: EvidenceContent | None = None
    for number, text in enumerate(lines, start=1):
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise RunError(f"{path}, line {number}: not a line of evidence ({rule_of(problem)}); {_WAY_OUT}") from error
        if (line.begins is not None) != (number == 1):
            raise RunError(f"{path}, line {number}: the first line, and no other, says whose file it is; {_WAY_OUT}")
        if line.begins is not None:
            found = EvidenceContent(line.begins)
        elif found is not None and (said := line.statement or line.countersignature) is not None:
            found.add(said, number - 1)
    if found is None:
        raise RunError(f"{path}: has no line; {_WAY_OUT}")
    return found


def read_evidence(folder: Path) -> EvidenceContent | None:
    """Read a party's evidence, of which no signature is checked; None for none. ``RunError``: it is damaged."""
    lines = whole_lines(folder / EVIDENCE)
    return _parse_evidence(folder / EVIDENCE, lines) if lines else None


def certified_names(folder: Path) -> Mapping[PartyId, str]:
    """Read party → the name in its certificate, if another, from a folder's evidence; ``RunError``: it is damaged."""
    lines = whole_lines(folder / EVIDENCE)[:1]
    return _parse_evidence(folder / EVIDENCE, lines).beginning.names if lines else {}


def dealer_name(folders: Iterable[Path]) -> str | None:
    """The name in party ``server``'s certificate, from the first folder whose evidence has it; else None."""
    return next((name for folder in folders if (name := certified_names(folder).get(SERVER))), None)


def _heads_of(folder: Path, name: str, beginning: Beginning) -> Heads:
    """The heads of one of the party's records as it is now. Raises ``RunError`` where it cannot be read."""
    about = (beginning.run, beginning.party, name)
    return Heads(bytes.fromhex(beginning.salt), about, whole_lines(folder / name))


def fault_of_records(statement: Statement, records: Sequence[Heads], before: Statement | None = None) -> str:
    """Where records lack lines of a statement, or changed since; empty where they match. ``before``: one that did."""
    for place, (name, extent, heads) in enumerate(zip(RECORDS, statement.extents, records, strict=True)):
        head = heads.head(extent.lines)
        if head is None:
            return (
                f"{name} ends with line {heads.lines}, and {statement} is of {extent.lines} lines: line "
                f"{heads.lines + 1} is missing"
            )
        if head != extent.head:
            first = 1 if before is None else before.extents[place].lines + 1
            which = f"line {first}" if first >= extent.lines else f"one of lines {first} to {extent.lines}"
            return f"{name}, {which}: not what {statement} is of; it was changed, or is of another run or party"
    return ""


class RecordLog:
    """A party's evidence while it takes part in a session.

    ``fault`` is why the file cannot be gone on with: damaged, or of another run or party; ``found`` then is nothing.
    """

    def __init__(self, folder: Path, beginning: Beginning) -> None:
        self._folder, self._path = folder, folder / EVIDENCE
        lines = whole_lines(self._path)
        self._lines = len(lines)
        self._last = digest(lines[-1]) if lines else ""
        self.fault, self.found = "", EvidenceContent(beginning)
        if not lines:
            return
        try:
            found = _parse_evidence(Path(EVIDENCE), lines)  # its folder is nothing to tell others of
        except RunError as error:
            self.fault = str(error)
            return
        self.fault = _fault_of_beginning(found.beginning, beginning)
        if not self.fault:
            self.found = found

    @property
    def newest(self) -> Statement | None:
        """The party's newest statement."""
        return self.found.own[-1] if self.found.own else None

    def heard(self, party: PartyId) -> Statement | None:
        """The newest statement received of another party; None for none."""
        found = self.found.heard.get(party)
        return found[-1] if found else None

    def records(self) -> list[Heads]:
        """Heads of the party's records as they are now, in the order of ``RECORDS``."""
        return [_heads_of(self._folder, name, self.found.beginning) for name in RECORDS]

    def changed(self) -> str:
        """Where the records do not match the party's newest statement, with file and line; empty where they match."""
        records, before = self.records(), None
        if self.newest is None or not fault_of_records(self.newest, records):
            return ""
        try:  # these say best where
            for name in RECORDS:
                check_chain(Path(name), whole_lines(self._folder / name))
        except RunError as error:
            return str(error)
        for statement in self.found.own:
            if found := fault_of_records(statement, records, before):
                return found
            before = statement
        return ""

    def stated(self) -> list[Extent]:
        """Lines and head of each of the party's records as they are now, for its next statement."""
        return [Extent(lines=heads.lines, head=heads.head(heads.lines) or "") for heads in self.records()]

    def is_current(self) -> bool:
        """Whether nothing was recorded since the newest statement; evidence itself is always newer."""
        stated = self.stated()[:-1]
        if self.newest is None:
            return not any(extent.lines for extent in stated)
        return stated == self.newest.extents[:-1]

    def begin(self) -> None:
        """Writes the first line, where there is none: what is stated is also of that."""
        if not self._lines:
            self.write_lines([self.found.beginning])

    def add(self, said: Sequence[Statement | Countersignature]) -> None:
        """Adds lines: they, and what the other records have, are on the disk when this returns, or ``RunError``."""
        if not said:
            return
        self.begin()
        for place, one in enumerate(said, start=self._lines):
            self.found.add(one, place)
        self.write_lines(said)

    def write_lines(self, said: Sequence[Beginning | Statement | Countersignature]) -> None:
        """Adds lines, each with the hash of the one before it, on the disk when this returns."""
        content = b""
        for one in said:
            line = _Line.model_validate({"previous": self._last, _PARTS[type(one)]: one})
            text = line.model_dump_json(exclude_none=True).encode()
            self._last = digest(text)
            content += text + b"\n"
        with os_errors_as(RunError, f"{self._path}: cannot be written", "make room, and go on with --resume"):
            if self._path.exists():
                drop_torn(self._path)
            append(self._path, content, sync=True)
            sync_folder(self._folder)
        self._lines += len(said)


def _fault_of_beginning(kept: Beginning, expected: Beginning) -> str:
    """Why evidence that begins so is not of this run, party or project; empty where it is."""
    if (kept.run, kept.party) != (expected.run, expected.party):
        return f"{EVIDENCE}: of {kept.party!r} in run {kept.run[:12]!r}; {_WAY_OUT}"
    if bool(kept.roots) != bool(expected.roots):
        begun = "with" if kept.roots else "without"
        return f"{EVIDENCE}: the run was begun {begun} certificates and goes on only so; begin a new run"
    if kept.roots and set(kept.roots).isdisjoint(expected.roots):
        return f"{EVIDENCE}: the run was begun under another project's root certificate; begin a new run"
    return ""


_DISCLOSURES, _LEDGER, _ = RECORDS


@dataclass(frozen=True)
class Witness:
    """A peer's countersignature: at ``time`` the record had at least ``lines`` lines."""

    party: PartyId
    lines: int
    time: str


@dataclass(frozen=True)
class VerifiedRecord:
    """A record that is what its owner, ``party``, stated.

    Of its ``lines``, those ``stated`` are in the newest statement; later ones a killed session wrote. ``signed``: with
    the owner's key. ``witnesses`` is the newest countersignature of every other party that gave one.
    """

    party: PartyId
    name: str
    lines: int
    stated: int
    head: str
    signed: bool
    time: str
    witnesses: tuple[Witness, ...]


def verify(run: RunDirectory, roots: tuple[x509.Certificate, ...] = ()) -> list[VerifiedRecord]:
    """Checks every chain, statement, signature and countersignature of the parties whose part is here.

    ``roots`` are of the project; default: those that each party's evidence names itself. Gives every record of every
    party. Raises ``RunError`` at the first thing that is not as stated: file and, where it can be told, line.
    """
    parties = [party for party in (*run.settings.data.names, SERVER) if run.party_path(party).is_dir()]
    if not parties:
        raise RunError(f"{run.path}: no party's part of the run is here; give the directory of a run that has begun")
    checks = {party: _RecordCheck(run, party, roots) for party in parties}
    found = [record for check in checks.values() for record in check.records()]
    for listener in checks.values():
        for speaker in checks.values():
            listener.compare(speaker)
    return found


class _RecordCheck:
    """The checks of one party's evidence and records; those of its constructor and methods raise ``RunError``."""

    def __init__(self, run: RunDirectory, party: PartyId, roots: tuple[x509.Certificate, ...]) -> None:
        self._folder, self._party, self._run = run.party_path(party), party, run.settings.hash()
        self._path = self._folder / EVIDENCE
        lines = whole_lines(self._path)
        if not lines:
            raise RunError(
                f"{self._path}: is missing or empty: no session of this party has come to its end, or the file was "
                "removed; there is nothing to verify its records by"
            )
        self.evidence: EvidenceContent = _parse_evidence(self._path, lines)
        beginning = self.evidence.beginning
        if (beginning.run, beginning.party) != (self._run, party):
            raise RunError(
                f"{self._path}, line 1: is of {beginning.party} in run {beginning.run[:12]}, not of {party} in run "
                f"{self._run[:12]}; the file was put here from elsewhere"
            )
        try:
            own = tuple(root for pem in beginning.roots for root in x509.load_pem_x509_certificates(pem.encode()))
        except ValueError as error:
            raise RunError(
                f"{self._path}, line 1: its root certificate cannot be read ({error}); give it with --root"
            ) from error
        if roots and not own:
            raise RunError(
                f"{self._path}, line 1: names no root certificate, so nothing in it is signed: it is of a run on one "
                "machine, or was made anew; leave --root out for such a run"
            )
        self._trust = Trust(roots or own, server_name=beginning.names.get(SERVER, SERVER))

    def records(self) -> list[VerifiedRecord]:
        for name in RECORDS[:-1]:
            self._check_lines(name)
        heads = [_heads_of(self._folder, name, self.evidence.beginning) for name in RECORDS]
        self._check_own_statements(heads)
        self._check_heard_statements()
        countersigned, newest = self._countersigned(), self.evidence.own[-1]
        return [
            VerifiedRecord(
                party=self._party,
                name=name,
                lines=record.lines,
                stated=extent.lines,
                head=extent.head,
                signed=bool(newest.signature),
                time=newest.time,
                witnesses=tuple(Witness(one.by, of.extents[place].lines, one.time) for of, one in countersigned),
            )
            for place, (name, record, extent) in enumerate(zip(RECORDS, heads, newest.extents, strict=True))
        ]

    def compare(self, other: _RecordCheck) -> None:
        """Checks that what this party heard of another is what that other stated."""
        stated = {one.number: one for one in other.evidence.own}
        for heard in self.evidence.heard.get(other._party, []):
            own = stated.get(heard.number)
            if own is None or own.digest() != heard.digest():
                raise RunError(
                    f"{other._path}: {heard} is not in it, and {self._party} has heard it ({self._path}); "
                    f"{other._party}'s files are an older copy or of another run"
                )

    def _check_lines(self, name: str) -> None:
        """Check the chain of a record, and that its lines are of this run and party."""
        path = self._folder / name
        lines = whole_lines(path)
        check_chain(path, lines)
        for number, line in enumerate(lines, start=1):
            try:
                content = from_json(line)
                about = (content.get("job", self._run), content.get("party", self._party))
            except (ValueError, AttributeError) as error:
                raise RunError(f"{path}, line {number}: not a line of a record ({error})") from error
            if about != (self._run, self._party):
                raise RunError(
                    f"{path}, line {number}: is of another run or party; the file was put here from elsewhere"
                )

    def _check_own_statements(self, heads: Sequence[Heads]) -> None:
        """Check that the party's statements are complete and signed, and that its records match them."""
        own, before = self.evidence.own, None
        if not own:
            raise RunError(f"{self._path}: {self._party} has stated nothing in it; there is nothing to verify by")
        for number, (statement, place) in enumerate(zip(own, self.evidence.places, strict=True), start=1):
            where = f"{self._path}, line {place + 1}"
            if statement.number != number or statement.extents[-1].lines != place:
                raise RunError(
                    f"{where}: {statement} is not number {number}, of {place} lines before it; one is missing",
                    code="missing-statement",
                )
            self._check_signature(where, str(statement), statement, self._party)
            if fault := fault_of_records(statement, heads, before):
                raise RunError(f"{self._folder}/{fault}")
            before = statement

    def _check_heard_statements(self) -> None:
        for party, statements in self.evidence.heard.items():
            for statement in statements:
                self._check_signature(str(self._path), f"{party}'s {statement}", statement, party)
            for earlier, later in pairwise(statements):
                if later.number <= earlier.number:
                    raise RunError(f"{self._path}: {party}'s {later} stands after its {earlier}; lines were moved")

    def _countersigned(self) -> list[tuple[Statement, Countersignature]]:
        """The newest statement that each other party countersigned, in the order of the parties' names."""
        stated = {one.number: one for one in self.evidence.own}
        found: dict[PartyId, tuple[Statement, Countersignature]] = {}
        for given in self.evidence.countersignatures:
            own = stated.get(given.number)
            what = f"{given.by}'s countersignature under statement {given.number}"
            if own is None or not given.is_of(own):
                raise RunError(f"{self._path}: {what} is not of that statement of {self._party}")
            self._check_signature(str(self._path), what, given, given.by)
            if given.by not in found or found[given.by][0].number <= own.number:
                found[given.by] = own, given
        return [found[party] for party in sorted(found)]

    def _check_signature(self, where: str, what: str, said: Statement | Countersignature, author: PartyId) -> None:
        try:
            said.check(author, self._run, self._trust)
        except ProtocolError as error:
            raise RunError(f"{where}: {what}: {error}") from error
