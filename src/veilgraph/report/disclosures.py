"""Who learned what: what left each party, for whom, why, what protects it, what follows from it, and its bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import BaseModel, Field
from rich.table import Table

from veilgraph.core.files import read_json
from veilgraph.core.text import human_bytes, listed
from veilgraph.core.types import PartyId
from veilgraph.protocol.messages import DisclosureRecord, Protection, revelation_statements
from veilgraph.report.run_data import RunData
from veilgraph.report.tables import Section, bar, table
from veilgraph.runtime.store.records import VerifiedRecord
from veilgraph.runtime.store.run_directory import RunDirectory

_CAPTION: Final = (
    "Protection is against the receiver. none: values made from private data, in the clear; mask, share: uniform by "
    "themselves, what they open together is meant to be known; noise: as strong as ε says; blinding: secret keys; "
    "random: no data in it. ≥: a party was killed, and may have sent a little more than it had noted."
)
_PRIVATE: Final = (
    "ε: of one of these releases by itself / total of all that the sender had published in the run by then, at the "
    "job's δ. What has no ε and was not computed from such releases is bounded by none."
)
_EVIDENCE: Final = (
    "Every line is the one that its owner stated, up to the number under stated; lines after that came since, and the "
    "next statement is of them too. Countersigned: who has heard of how many lines, and when."
)
_UNSIGNED: Final = (
    "Unsigned: all parties of the run are on one machine and have no certificates, so whoever has the files can make "
    "them anew, this evidence included."
)


class Guard(NamedTuple):
    """A protection in words; ``tone`` is how strongly the page points at it."""

    name: str
    meaning: str
    tone: str


GUARDS: Final = MappingProxyType[Protection, Guard](
    {
        "none": Guard("in the clear", "made from private data, and the receiver can read it", "clear"),
        "noise": Guard("noised", "readable, but with noise whose strength the privacy ledger states as ε", "noised"),
        "mask": Guard("masked", "looks random by itself; what is opened is a sum over the holders", "hidden"),
        "share": Guard("share", "looks random by itself; what is opened is a sum over the holders", "hidden"),
        "blinding": Guard("blinded", "under secret keys: it can be compared, not read", "hidden"),
        "random": Guard("random", "made of random numbers: no data in it", "empty"),
        "public": Guard("public", "facts of the job that every party may know", "empty"),
    }
)
"""Protection against the receiver, the weakest first."""
_ORDER: Final[dict[str, int]] = {protection: place for place, protection in enumerate(GUARDS)}
_SHOWN: Final = 12  # rows of a table in the terminal


def _at_least(records: Iterable[DisclosureRecord]) -> str:
    """``≥ ``, to stand before counts where a party was killed and may have sent more; else empty."""
    return "" if all(record.whole for record in records) else "≥ "


def _sums_text(records: Sequence[DisclosureRecord]) -> tuple[str, str]:
    """How many messages and bytes records come to, in words."""
    messages, size = sum(record.messages for record in records), sum(record.bytes for record in records)
    return f"{_at_least(records)}{messages:,}", f"{_at_least(records)}{human_bytes(size)}"


def _epsilons(records: Iterable[DisclosureRecord]) -> dict[PartyId, str]:
    """Sender → per-release and total ε, as of its newest session."""
    return {
        record.party: f"{record.epsilon_release:.4g} / {record.epsilon_total:.4g}"
        for record in records
        if record.epsilon_release is not None and record.epsilon_total is not None
    }


def _foremost(rows: Iterable[tuple[str, ...]], protection: int) -> list[tuple[str, ...]]:
    """The rows, or of more than a dozen those with the weakest protection, which stands in column ``protection``."""
    found = list(rows)
    return found if len(found) <= _SHOWN else sorted(found, key=lambda row: _ORDER[row[protection]])[:_SHOWN]


def left_out_line(records: Sequence[DisclosureRecord]) -> str:
    """Say how many rows ``disclosure_table`` leaves out, and where they are; empty for none."""
    groups = {(each.work, each.party, each.to, each.what, each.protection) for each in records}
    if len(groups) <= _SHOWN:
        return ""
    return f"shown are the {_SHOWN} rows with the weakest protection; the page and --json have all {len(groups)}"


def disclosure_table(records: Sequence[DisclosureRecord]) -> Table:
    """Who sent what to whom, by piece of work, of all sessions; records are in the order in which they were written.

    Of more than a dozen rows it has those with the weakest protection. Both ε are those of the newest session; the
    total is of all sessions before it, too.
    """
    groups: dict[tuple[str, ...], list[DisclosureRecord]] = defaultdict(list)
    for record in records:
        groups[record.work, record.party, record.to, record.what, record.protection].append(record)
    private = bool(_epsilons(records))
    bound = _PRIVATE if private else "No differential privacy: nothing bounds what a receiver can infer."
    columns = ("work", "from", "to", "what", "protection", ">messages", ">bytes", ">ε one / all")[: 8 if private else 7]
    rows = (
        (*words, *_sums_text(group), *(["".join(_epsilons(group).values())] if private else []))
        for words, group in groups.items()
    )
    return table(
        "Disclosures", columns, _foremost(rows, 4), caption=f"{_CAPTION} {bound}", bold=lambda row: row[4] == "none"
    )


def reasons_table(records: Sequence[DisclosureRecord]) -> Table:
    """Why each thing that was sent may leave its sender or, where nothing protects it, what follows; each once.

    Of more than a dozen things it has those with the weakest protection.
    """
    rows = _foremost(dict.fromkeys((record.what, record.protection, record.why) for record in records), 1)
    return table("Why it may leave", ("what", "protection", "why"), rows, bold=lambda row: row[1] == "none")


def learned(found: RunData) -> Section:
    """What the parties whose part is here have sent, to whom and why.

    ``matrix``: sender → a cell for each of ``receivers``, None where the two are the same. ``sent``: one thing each, of
    all senders and sessions together; ``revealed``: a revelation that came true, and the things that made it so.
    """
    records = found.sent
    senders = [party for party in found.parties if any(record.party == party for record in records)]
    receivers = [party for party in found.parties if any(record.to == party for record in records)]
    occurring = {record.protection for record in records}
    groups: dict[tuple[int, str, str], list[DisclosureRecord]] = defaultdict(list)
    for record in records:
        groups[_ORDER[record.protection], record.what, record.why].append(record)
    return {
        "senders": senders,
        "silent": [party for party in found.parties if party not in senders],
        "killed": bool(_at_least(records)),
        "receivers": receivers,
        "matrix": [
            (sender, [None if sender == to else _cell(records, sender, to) for to in receivers]) for sender in senders
        ],
        "guards": [guard for protection, guard in GUARDS.items() if protection in occurring],
        "in_the_clear": sum(place == _ORDER["none"] for place, *_ in groups),
        "revealed": list(_revealed_rows(records, revelation_statements(found.settings))),
        "sent": [_sent_row(group) for _, group in sorted(groups.items(), key=lambda item: item[0][0])],
        "has_epsilon": any(record.epsilon_total is not None for record in records),
    }


def _cell(records: list[DisclosureRecord], sender: str, receiver: str) -> list[tuple[int, Guard]]:
    """How many kinds of things went from one party to another, by protection, the weakest first."""
    things: dict[Protection, set[str]] = defaultdict(set)
    for record in records:
        if (record.party, record.to) == (sender, receiver):
            things[record.protection].add(record.what)
    return [(len(things[each]), GUARDS[each]) for each in sorted(things, key=_ORDER.__getitem__)]


def _revealed_rows(records: list[DisclosureRecord], known: Mapping[str, str]) -> Iterator[Section]:
    """Each revelation that came true: its name, its statement, who received it, and through what."""
    for name in dict.fromkeys((*known, *(name for record in records for name in record.reveals))):
        if telling := [record for record in records if name in record.reveals]:
            yield {
                "name": name,
                "statement": known.get(name, "This is nothing that jobs of its paradigm reveal."),
                "receivers": listed(sorted({record.to for record in telling})),
                "through": dict.fromkeys((record.what, GUARDS[record.protection]) for record in telling),
            }


def _sent_row(group: list[DisclosureRecord]) -> Section:
    ways: dict[str, dict[str, None]] = defaultdict(dict)
    for record in group:
        ways[record.party][record.to] = None
    messages, size = _sums_text(group)
    return {
        "what": group[0].what,
        "guard": GUARDS[group[0].protection],
        "ways": [f"{sender} → {', '.join(receivers)}" for sender, receivers in ways.items()],
        "work": listed(list(dict.fromkeys(record.work for record in group))),
        "messages": messages,
        "size": size,
        "epsilon": "; ".join(f"{party}: {both}" for party, both in _epsilons(group).items()),
        "why": group[0].why,
    }


class _Entry(BaseModel):
    party: str
    peer: str
    direction: str
    kind: str
    messages: int = Field(ge=0)
    bytes: int = Field(ge=0)


def traffic(found: RunData) -> Section:
    """Bytes and messages of the training by sender and by kind of message, the largest kinds first.

    Counts are each sender's own or, where its part is not here, those of its receivers.
    """
    entries = _entries(found)
    if not entries:
        return {"parties": ()}
    counting = {entry.party for entry in entries}
    by_party: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for entry in entries:
        if (sent := entry.direction == "sent") or entry.peer not in counting:
            for group in (by_party[entry.party if sent else entry.peer], by_kind[entry.kind]):
                group[0] += entry.messages
                group[1] += entry.bytes
    words: dict[str, dict[str, None]] = defaultdict(dict)
    for record in found.sent:
        words[record.kind][record.what] = None
    kinds = sorted(by_kind.items(), key=lambda item: -item[1][1])
    return {
        "counting": [party for party in found.parties if party in counting],
        "uncounted": [party for party in found.parties if party not in counting],
        "total": human_bytes(sum(size for _, size in by_kind.values())),
        "parties": _flow_rows([(party, "", by_party[party]) for party in found.parties if party in by_party]),
        "kinds": _flow_rows([(kind.replace("_", " "), "; ".join(words[kind]), sums) for kind, sums in kinds]),
    }


def _flow_rows(groups: Sequence[tuple[str, str, list[int]]]) -> list[tuple[str, str, int, str, float]]:
    """Name, what it is about, messages, their size, and that as a share of the largest, in per cent."""
    largest = max((size for _, _, (_, size) in groups), default=0)
    return [(name, about, count, human_bytes(size), bar(size, largest)) for name, about, (count, size) in groups]


def _entries(found: RunData) -> list[_Entry]:
    """The traffic entries of the run or, where it is not complete, of the parties whose part is here."""
    run, name = RunDirectory(found.path), "traffic.json"
    whole = found.path / name
    files = [whole] if whole.is_file() else [run.party_path(party) / name for party in found.here]
    entries = list[_Entry]()
    for path in filter(Path.is_file, files):
        entries += read_json(path, list[_Entry], "delete it, or train again")
    return entries


def evidence_table(records: Sequence[VerifiedRecord]) -> Table:
    """Whose signatures vouch for the records of a run: how long each is, who signed that, and who countersigned."""

    def minute(time: str) -> str:
        return time[:16].replace("T", " ")

    rows = []
    for record in records:
        by = record.party if record.signed else "unsigned: one machine"
        witnesses = [f"{one.party}: {one.lines} lines, {minute(one.time)}" for one in record.witnesses]
        counts = (str(record.lines), str(record.stated), record.head[:8])
        signed = (f"{by}\n{minute(record.time)}", "\n".join(witnesses) or "by nobody")
        rows.append((record.party, record.name, *counts, *signed))
    columns = ("party", "record", ">lines", ">stated", "head", "signed", "countersigned")
    caption = _EVIDENCE if all(record.signed for record in records) else f"{_EVIDENCE} {_UNSIGNED}"
    found = table("Evidence", columns, rows, caption=caption)
    found.columns[1].no_wrap = True
    return found
