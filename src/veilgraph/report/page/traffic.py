"""What crossed the wire in the training: bytes by party and by kind of message."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.report.page.charts import bar
from veilgraph.report.page.found import Found
from veilgraph.report.tables import human_bytes
from veilgraph.run.run_directory import RunDirectory

_FILE: Final = "traffic.json"


class _Entry(BaseModel):
    party: str
    peer: str
    direction: str
    kind: str
    messages: int = Field(ge=0)
    bytes: int = Field(ge=0)


_ENTRIES: Final = TypeAdapter(list[_Entry])


@dataclass(frozen=True)
class Flow:
    """Messages and bytes of a party or of a kind; ``share`` is of the largest row, in per cent, for its bar."""

    name: str
    about: str
    messages: int
    size: str
    share: float


@dataclass(frozen=True)
class Traffic:
    """The section.

    Attributes:
        notes: what is missing, or must be said beside the figures.
        total: of all messages that are known of here.
        parties: what each sent, in the job's order.
        kinds: the largest first.
    """

    notes: tuple[str, ...]
    total: str
    parties: tuple[Flow, ...]
    kinds: tuple[Flow, ...]


def traffic(found: Found) -> Traffic:
    """What the training sent: as each sender counted it or, where its part is not here, as its receivers did.

    Raises:
        RunError: a file is damaged.
    """
    entries = _entries(found)
    if not entries:
        return Traffic(("What was sent is counted when a session ends; none has ended here yet.",), "", (), ())
    counted = {entry.party for entry in entries}
    flows: dict[tuple[str, PartyId, PartyId], tuple[int, int]] = {}
    for entry in entries:
        if entry.direction == "sent":
            flows[entry.kind, entry.party, entry.peer] = (entry.messages, entry.bytes)
        elif entry.peer not in counted:
            flows[entry.kind, entry.peer, entry.party] = (entry.messages, entry.bytes)
    by_party: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (kind, sender, _), (messages, size) in flows.items():
        for group in (by_party[sender], by_kind[kind]):
            group[0] += messages
            group[1] += size
    words: dict[str, list[str]] = defaultdict(list)
    for record in found.sent:
        if record.what not in words[record.kind]:
            words[record.kind].append(record.what)
    parties = {party: by_party[party] for party in found.parties if party in by_party}
    kinds = dict(sorted(by_kind.items(), key=lambda item: -item[1][1]))
    return Traffic(
        tuple(_notes(found, counted)),
        human_bytes(sum(size for _, size in flows.values())),
        _flows(parties, {}),
        _flows({kind.replace("_", " "): sums for kind, sums in kinds.items()}, _about(words)),
    )


def _notes(found: Found, counted: set[PartyId]) -> list[str]:
    notes = []
    if others := [party for party in found.parties if party not in counted]:
        who = ", ".join(counted)
        notes.append(
            f"As {who} counted it: messages between {' and '.join(others)} are not among it."
            if len(others) > 1
            else f"As {who} counted it."
        )
    if found.summary is not None and found.summary.get("started_at"):
        notes.append(f"Of the last session alone, since epoch {found.summary['started_at']}.")
    return notes


def _about(words: dict[str, list[str]]) -> dict[str, str]:
    return {kind.replace("_", " "): "; ".join(what) for kind, what in words.items()}


def _flows(groups: dict[str, list[int]], about: dict[str, str]) -> tuple[Flow, ...]:
    largest = max((size for _, size in groups.values()), default=0)
    return tuple(
        Flow(name, about.get(name, ""), messages, human_bytes(size), bar(size, largest))
        for name, (messages, size) in groups.items()
    )


def _entries(found: Found) -> list[_Entry]:
    """Of the run or, where it is not complete, of the parties whose part is here."""
    run = RunDirectory(found.path)
    whole = found.path / _FILE
    files = [whole] if whole.is_file() else [run.party_path(party) / _FILE for party in found.here]
    return [entry for file in files if file.is_file() for entry in _read(file)]


def _read(path: Path) -> list[_Entry]:
    try:
        return _ENTRIES.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{path}: damaged ({str(error).splitlines()[0]}); delete it, or train again") from error
