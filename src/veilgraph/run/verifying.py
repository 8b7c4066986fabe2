"""Whether the records of a run are those that its parties signed and countersigned: from files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cryptography import x509

from veilgraph.core.chain import Heads, check_chain, whole_lines
from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.statement import RECORDS, Countersignature, Statement, Trust
from veilgraph.run.evidence import EVIDENCE, Attested, difference, heads_of, parse_evidence
from veilgraph.run.run_directory import RunDirectory

_DISCLOSURES, _LEDGER, _ = RECORDS


@dataclass(frozen=True)
class Witness:
    """Who has heard how long a record was.

    Attributes:
        party: who countersigned.
        lines: of the record, at that time.
        time: when.
    """

    party: PartyId
    lines: int
    time: str


@dataclass(frozen=True)
class VerifiedRecord:
    """A record that is what its owner stated.

    Attributes:
        party: the owner.
        name: of the file.
        lines: that it has.
        stated: of which the owner's newest statement is; lines after it were written by a session that was killed.
        head: of these.
        signed: whether the statement is signed, with the key of the owner's certificate.
        time: of the statement.
        witnesses: the newest countersignature of every other party that gave one.
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

    Args:
        run: whole, or one organisation's part.
        roots: of the project; default: those that each party's evidence names itself.

    Returns:
        Every record of every party, the holders' first.

    Raises:
        RunError: at the first thing that is not as it was stated; names the file and, where it can be told, the line.
    """
    parties = [party for party in (*run.settings.data.names, SERVER) if run.party_path(party).is_dir()]
    if not parties:
        raise RunError(f"{run.path}: no party's part of the run is here; give the directory of a run that has begun")
    checks = {party: _Check(run, party, roots) for party in parties}
    found = [record for check in checks.values() for record in check.records()]
    for listener in checks.values():
        for speaker in checks.values():
            listener.compare(speaker)
    return found


class _Check:
    """Of one party's part."""

    def __init__(self, run: RunDirectory, party: PartyId, roots: tuple[x509.Certificate, ...]) -> None:
        self._folder, self._party, self._run = run.party_path(party), party, run.settings.hash()
        self._path = self._folder / EVIDENCE
        lines = whole_lines(self._path)
        if not lines:
            raise RunError(
                f"{self._path}: is missing or empty: no session of this party has come to its end, or the file was "
                "removed; there is nothing to verify its records by"
            )
        self.evidence: Attested = parse_evidence(self._path, lines)
        beginning = self.evidence.beginning
        if (beginning.run, beginning.party) != (self._run, party):
            raise RunError(
                f"{self._path}, line 1: is of {beginning.party} in run {beginning.run[:12]}, not of {party} in run "
                f"{self._run[:12]}; the file was put here from elsewhere"
            )
        own = tuple(root for pem in beginning.roots for root in _certificates(self._path, pem))
        if roots and not own:
            raise RunError(
                f"{self._path}, line 1: names no root certificate, so nothing in it is signed: it is of a run on one "
                "machine, or was made anew; leave --root out for such a run"
            )
        self._trust = Trust(roots or own, beginning.names)

    def records(self) -> list[VerifiedRecord]:
        """The party's records, checked."""
        for name in RECORDS[:-1]:
            self._check_lines(name)
        heads = [heads_of(self._folder, name, self.evidence.beginning) for name in RECORDS]
        self._check_own(heads)
        self._check_heard()
        by_statement = self._countersigned()
        newest = self.evidence.own[-1]
        return [self._record(place, record, newest, by_statement) for place, record in enumerate(heads)]

    def compare(self, other: _Check) -> None:
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
        path = self._folder / name
        lines = whole_lines(path)
        check_chain(path, lines)
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                about = (content.get("job", self._run), content.get("party", self._party))
            except (ValueError, AttributeError) as error:
                raise RunError(f"{path}, line {number}: not a line of a record ({error})") from error
            if about != (self._run, self._party):
                raise RunError(
                    f"{path}, line {number}: is of another run or party; the file was put here from elsewhere"
                )

    def _check_own(self, heads: Sequence[Heads]) -> None:
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
            self._check(where, str(statement), statement, self._party)
            if fault := difference(statement, heads, before):
                raise RunError(f"{self._folder}/{fault}")
            before = statement

    def _check_heard(self) -> None:
        for party, statements in self.evidence.heard.items():
            for statement in statements:
                self._check(str(self._path), f"{party}'s {statement}", statement, party)
            for earlier, later in pairwise(statements):
                if later.number <= earlier.number:
                    raise RunError(f"{self._path}: {party}'s {later} stands after its {earlier}; lines were moved")

    def _countersigned(self) -> dict[int, list[Countersignature]]:
        stated = {one.number: one for one in self.evidence.own}
        found: dict[int, list[Countersignature]] = {}
        for given in self.evidence.countersignatures:
            own = stated.get(given.number)
            what = f"{given.by}'s countersignature under statement {given.number}"
            if own is None or not given.is_of(own):
                raise RunError(f"{self._path}: {what} is not of that statement of {self._party}")
            self._check(str(self._path), what, given, given.by)
            found.setdefault(given.number, []).append(given)
        return found

    def _check(self, where: str, what: str, said: Statement | Countersignature, author: PartyId) -> None:
        try:
            said.check(author, self._run, self._trust)
        except ProtocolError as error:
            raise RunError(f"{where}: {what}: {error}") from error

    def _record(
        self, place: int, heads: Heads, newest: Statement, given: dict[int, list[Countersignature]]
    ) -> VerifiedRecord:
        witnesses: dict[PartyId, Witness] = {}
        for statement in self.evidence.own:
            for one in given.get(statement.number, []):
                witnesses[one.by] = Witness(one.by, statement.extents[place].lines, one.time)
        extent = newest.extents[place]
        return VerifiedRecord(
            party=self._party,
            name=RECORDS[place],
            lines=heads.lines,
            stated=extent.lines,
            head=extent.head,
            signed=bool(newest.signature),
            time=newest.time,
            witnesses=tuple(witnesses[party] for party in sorted(witnesses)),
        )


def _certificates(path: Path, pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        raise RunError(f"{path}, line 1: its root certificate cannot be read ({error}); give it with --root") from error
