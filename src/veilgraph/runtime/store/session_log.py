"""What a party notes of each session: what it sends, and which packages the parties run.

Traffic is noted while the party works, so that a killed party's record has no gap.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from pydantic import BaseModel

from veilgraph.core import __version__
from veilgraph.core.chain import whole_lines
from veilgraph.core.files import adapter_of, append, run_errors, write_json
from veilgraph.core.settings import installed_by_group
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import RecordedLink, TrafficEntry
from veilgraph.privacy.publisher import Spent
from veilgraph.protocol.agreement import MOST_PACKAGES
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import disclosure_lines, disclosures
from veilgraph.runtime.store import SENDING
from veilgraph.runtime.store.run_directory import PartyStore

Phase = Literal["align", "train", "predict", "answer", "audit"]
_COLUMNS: Final = tuple(field.name for field in fields(TrafficEntry))


class TrafficLog:
    """What one party sends in one piece of work.

    While it lasts, ``note`` writes the counts so far to sending.json; ``close`` turns them into lines of
    disclosures.jsonl. ``end_block`` does so before the end, and what follows is a block of its own. What an earlier,
    killed session noted becomes lines that say so; what it paid for after its last note is in its ledger alone.
    """

    def __init__(self, settings: JobSettings, store: PartyStore, phase: Phase, recorder: RecordedLink) -> None:
        self._settings, self._store, self._phase, self._recorder = settings, store, phase, recorder
        self._path = store.path / SENDING
        self._recorded: Sequence[TrafficEntry] = ()
        self._append_killed()

    def note(self, spent: Spent | None = None) -> None:
        """Keeps the counts so far, and what the party's releases come to; None where it has no publisher."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        session = {"sent": 0, "received": 0}  # of all blocks, for who watches
        for entry in self._recorder.traffic():
            session[entry.direction] += entry.bytes
        content: dict[str, Any] = {
            "time": now,
            "phase": self._phase,
            "traffic": traffic_rows(self._unrecorded()),
            "session": session,
        }
        if spent is not None and math.isfinite(spent.epsilon_total):
            content["spent"] = {**vars(spent), "releases": dict(spent.releases)}
        write_json(self._path, content)

    def end_block(self, spent: Spent | None = None) -> None:
        """Add what was sent so far to disclosures.jsonl as a block; later calls count from here."""
        self.close(spent)
        self._recorded = self._recorder.traffic()
        self.note()

    def close(self, spent: Spent | None = None) -> None:
        """Add traffic since the last block to disclosures.jsonl, also of failed work; ``spent`` as in ``note``."""
        found = [entry for entry in self._unrecorded() if entry.messages]
        self._append_disclosures(self._phase, found, datetime.now(UTC), spent, whole=True)

    def _unrecorded(self) -> list[TrafficEntry]:
        """Traffic since the last block: messages and bytes by kind and peer; of hellos also those with none since."""
        before = {(entry.direction, entry.peer, entry.kind): entry for entry in self._recorded}
        found = []
        for entry in self._recorder.traffic():
            earlier = before.get((entry.direction, entry.peer, entry.kind))
            if earlier is None:
                found.append(entry)
            elif earlier.messages < entry.messages or entry.kind is Kind.HELLO:
                messages, size = entry.messages - earlier.messages, entry.bytes - earlier.bytes
                found.append(replace(entry, messages=messages, bytes=size))
        return found

    def _append_killed(self) -> None:
        """Append what a killed session had noted as sent, and remove its note."""
        if not self._path.is_file():
            return
        with run_errors(self._path, "it holds what a killed session sent: keep a copy, and remove it"):
            noted = _Sending.model_validate_json(self._path.read_bytes())
            entries = [_parse_entry(row) for row in noted.traffic]
        self._append_disclosures(noted.phase, entries, noted.time, noted.spent, whole=False)

    def _append_disclosures(
        self, phase: Phase, entries: Sequence[TrafficEntry], time: datetime, spent: Spent | None, *, whole: bool
    ) -> None:
        """Append a block to disclosures.jsonl, not ``whole`` if of a killed session; then remove sending.json."""
        found = disclosures(self._settings, entries, spent)
        self._store.append_disclosures(
            lambda previous: disclosure_lines(self._settings, phase, found, time, whole=whole, previous=previous)
        )
        self._path.unlink()


class _Sending(BaseModel):
    time: datetime
    phase: Phase
    traffic: list[dict[str, str | int]]
    spent: Spent | None = None


def _parse_entry(row: Mapping[str, str | int]) -> TrafficEntry:
    named = {**row, "kind": Kind[str(row["kind"]).upper()]}
    return cast("TrafficEntry", adapter_of(TrafficEntry).validate_python(named))


def traffic_rows(entries: Sequence[TrafficEntry]) -> list[dict[str, Any]]:
    """Traffic as JSON: kinds by name, in lower case."""
    rows = [{name: getattr(entry, name) for name in _COLUMNS} for entry in entries]  # ``asdict`` copies, at every epoch
    return [row | {"kind": row["kind"].name.lower()} for row in rows]


SOFTWARE_FILE: Final = "software.jsonl"

Software = Mapping[str, str]
"""Package → version."""

log = logging.getLogger("veilgraph")


class SoftwareRecord(BaseModel):
    """A line of ``software.jsonl``: what each party stated of its software at the beginning of a session."""

    time: str = ""
    work: str = ""
    software: dict[PartyId, Software]


@cache
def installed_software() -> dict[str, str]:
    """Return this process's veilgraph and torch, and the packages that add parts by entry points."""
    own = {"veilgraph": __version__, "torch": str(torch.__version__)}
    # A command of another package takes no part in a session.
    groups = [found for group, found in installed_by_group().items() if group != "veilgraph.commands"]
    dists = {each.dist for found in groups for each in found}
    added = {dist.name: dist.version for dist in dists if dist is not None and dist.name not in own}
    return dict(list({**own, **dict(sorted(added.items()))}.items())[:MOST_PACKAGES])


def record_software(folder: Path, work: str, parties: Mapping[PartyId, Software]) -> None:
    """Append to a party's part of a run what parties stated of their software, and warn where versions differ."""
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"time": time, "work": work, "software": parties}, sort_keys=True)
    append(folder / SOFTWARE_FILE, line.encode() + b"\n")
    if len(set(map(_list_versions, parties.values()))) > 1:
        log.warning("the parties' software differs, and results may: %s", _describe(parties))


def software_words(folders: Iterable[Path]) -> str:
    """Describe the software of all sessions in one line, empty for none. Raises ``RunError`` for a damaged record."""
    stated = (_describe(record.software) for folder in folders for record in software_records(folder))
    return "; later ".join(dict.fromkeys(stated))


def software_records(folder: Path) -> list[SoftwareRecord]:
    """Read the sessions' software from a party's part of a run; ``RunError``: the record is damaged."""
    path = folder / SOFTWARE_FILE
    with run_errors(path, "delete it"):
        return [SoftwareRecord.model_validate_json(line) for line in whole_lines(path)]  # without one that was cut off


def _describe(parties: Mapping[PartyId, Software]) -> str:
    by_versions: dict[str, list[PartyId]] = {}
    for party, software in parties.items():
        by_versions.setdefault(_list_versions(software), []).append(party)
    if len(by_versions) == 1:
        return f"all parties with {next(iter(by_versions))}"
    return ", ".join(f"{' and '.join(names)} with {versions}" for versions, names in by_versions.items())


def _list_versions(software: Software) -> str:
    order = {"veilgraph": 0, "torch": 1}  # before all others
    listed = sorted(software.items(), key=lambda item: (order.get(item[0], 2), item[0]))
    return ", ".join(f"{name} {version}" for name, version in listed) or "software not stated"
