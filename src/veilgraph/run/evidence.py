"""A party's evidence.jsonl: what it stated of its records, what it heard of others', and who countersigned.

The first line says whose file it is and holds the salt of its heads. Every further line is a statement, the party's own
or one that it heard, or a countersignature under one of its own. The lines are chained, and the file is one of the
records that a statement is about. A line is on the disk before anybody else hears what it says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from veilgraph.core.chain import Heads, check_chain, digest, whole_lines
from veilgraph.core.errors import RunError
from veilgraph.core.files import appended_file, sync_folder
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.statement import RECORDS, Countersignature, Extent, Statement

EVIDENCE: Final = RECORDS[-1]
_WAY_OUT: Final = "restore a copy of the file that has every line"


class Beginning(BaseModel):
    """Whose evidence a file holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    evidence: Literal[1] = 1
    run: str
    """SHA-256 of the job's settings."""
    party: PartyId
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the heads in this party's statements: secret."""
    roots: list[str] = []
    """Root certificates of the project, PEM; none on one machine."""
    names: dict[PartyId, str] = {}
    """Party → the name in its certificate, where that is another one."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    previous: str = ""
    begins: Beginning | None = None
    statement: Statement | None = None
    countersignature: Countersignature | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(part is not None for part in (self.begins, self.statement, self.countersignature)) != 1:
            raise ValueError("not one of beginning, statement and countersignature")
        return self


@dataclass
class Attested:
    """What is in the file.

    Attributes:
        beginning: its first line.
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
        """One more line, the one after ``place`` others."""
        if isinstance(line, Countersignature):
            self.countersignatures.append(line)
        elif line.party == self.beginning.party:
            self.own.append(line)
            self.places.append(place)
        else:
            self.heard.setdefault(line.party, []).append(line)


def parse_evidence(path: Path, lines: Sequence[bytes]) -> Attested:
    """Reads an evidence.jsonl.

    Raises:
        RunError: names the first line that is none.
    """
    check_chain(path, lines)
    found: Attested | None = None
    for number, text in enumerate(lines, start=1):
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise RunError(f"{path}, line {number}: not a line of evidence ({problem['msg']}); {_WAY_OUT}") from error
        if (line.begins is not None) != (number == 1):
            raise RunError(f"{path}, line {number}: the first line, and no other, says whose file it is; {_WAY_OUT}")
        if line.begins is not None:
            found = Attested(line.begins)
        elif found is not None and (said := line.statement or line.countersignature) is not None:
            found.add(said, number - 1)
    if found is None:
        raise RunError(f"{path}: has no line; {_WAY_OUT}")
    return found


def certified_names(folder: Path) -> Mapping[PartyId, str]:
    """Party → the name in its certificate, where that is another one, as a party's evidence begins: who deals is named
    there for party ``server``. Empty on one machine, and before a session has begun.

    Raises:
        RunError: the evidence cannot be read.
    """
    lines = whole_lines(folder / EVIDENCE)[:1]
    return parse_evidence(folder / EVIDENCE, lines).beginning.names if lines else {}


def who_deals(folders: Iterable[Path]) -> str | None:
    """The name in the certificate of party ``server``, as the first of these parties' folders says that has evidence.

    Raises:
        RunError: the evidence cannot be read.
    """
    return next((name for folder in folders if (name := certified_names(folder).get(SERVER))), None)


def heads_of(folder: Path, name: str, beginning: Beginning) -> Heads:
    """The heads of one of the party's records as it is now.

    Raises:
        RunError: it cannot be read.
    """
    about = (beginning.run, beginning.party, name)
    return Heads(bytes.fromhex(beginning.salt), about, whole_lines(folder / name))


def difference(statement: Statement, records: Sequence[Heads], before: Statement | None = None) -> str:
    """In what records are not those that a statement was about; empty where they are."""
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


class EvidenceFile:
    """A party's evidence while it takes part in a session.

    Attributes:
        fault: why the file cannot be gone on with: it is damaged, or of another run or party; empty where it can.
        found: what is in it; of one that cannot be gone on with nothing.
    """

    def __init__(self, folder: Path, beginning: Beginning) -> None:
        self._folder, self._path = folder, folder / EVIDENCE
        lines = whole_lines(self._path)
        self._lines = len(lines)
        self._last = digest(lines[-1]) if lines else ""
        self.fault, self.found = "", Attested(beginning)
        if not lines:
            return
        try:
            found = parse_evidence(Path(EVIDENCE), lines)  # its folder is nothing to tell others of
        except RunError as error:
            self.fault = str(error)
            return
        self.fault = _foreign(found.beginning, beginning)
        if not self.fault:
            self.found = found

    @property
    def newest(self) -> Statement | None:
        """The party's newest statement."""
        return self.found.own[-1] if self.found.own else None

    def heard(self, party: PartyId) -> Statement | None:
        """The newest statement that it heard of another party."""
        found = self.found.heard.get(party)
        return found[-1] if found else None

    def records(self) -> list[Heads]:
        """The party's records as they are now."""
        return [heads_of(self._folder, name, self.found.beginning) for name in RECORDS]

    def changed(self) -> str:
        """In what the records are not those that the party stated last; empty where they are."""
        records, before = self.records(), None
        if self.newest is None or not difference(self.newest, records):
            return ""
        try:  # these say best where
            for name in RECORDS:
                check_chain(Path(name), whole_lines(self._folder / name))
        except RunError as error:
            return str(error)
        for statement in self.found.own:
            if found := difference(statement, records, before):
                return found
            before = statement
        return ""

    def stated(self) -> list[Extent]:
        """What the party can state now."""
        found = []
        for heads in self.records():
            head = heads.head(heads.lines)
            if head is not None:
                found.append(Extent(lines=heads.lines, head=head))
        return found

    def is_current(self) -> bool:
        """Whether nothing was recorded since the newest statement; evidence itself is always newer."""
        stated = self.stated()[:-1]
        if self.newest is None:
            return not any(extent.lines for extent in stated)
        return stated == self.newest.extents[:-1]

    def begin(self) -> None:
        """Writes the first line, where there is none: what is stated is also of that."""
        if not self._lines:
            self.write_lines([_Line(begins=self.found.beginning)])

    def add(self, said: Sequence[Statement | Countersignature]) -> None:
        """Adds lines; when this returns, they are on the disk, and so is what the other records have.

        Raises:
            RunError: they could not be written.
        """
        if not said:
            return
        self.begin()
        for place, one in enumerate(said, start=self._lines):
            self.found.add(one, place)
        self.write_lines(
            [_Line(statement=one) if isinstance(one, Statement) else _Line(countersignature=one) for one in said]
        )

    def write_lines(self, lines: Sequence[_Line]) -> None:
        """Adds lines, each with the hash of the one before it, on the disk when this returns."""
        content = b""
        for line in lines:
            text = line.model_copy(update={"previous": self._last}).model_dump_json(exclude_none=True).encode()
            self._last = digest(text)
            content += text + b"\n"
        try:
            self._drop_torn()
            with appended_file(self._path) as file:
                if file.write(content) != len(content):
                    raise OSError("only a part was written")
                os.fsync(file.fileno())
            sync_folder(self._folder)
        except OSError as error:
            raise RunError(f"{self._path}: cannot be written ({error}); make room, and go on with --resume") from error
        self._lines += len(lines)

    def _drop_torn(self) -> None:
        """A line that a kill tore was heard by nobody."""
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole != len(content):
                file.truncate(whole)


def _foreign(kept: Beginning, expected: Beginning) -> str:
    """Why evidence that begins so is not this party's in this run; empty when it is."""
    if (kept.run, kept.party) != (expected.run, expected.party):
        return f"{EVIDENCE}: of {kept.party!r} in run {kept.run[:12]!r}; {_WAY_OUT}"
    if bool(kept.roots) != bool(expected.roots):
        begun = "with" if kept.roots else "without"
        return f"{EVIDENCE}: the run was begun {begun} certificates and goes on only so; begin a new run"
    if kept.roots and set(kept.roots).isdisjoint(expected.roots):
        return f"{EVIDENCE}: the run was begun under another project's root certificate; begin a new run"
    return ""
