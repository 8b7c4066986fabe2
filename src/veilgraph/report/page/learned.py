"""Who learned what: what left each party in the clear, masked or noised, for whom, why, and what follows from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from veilgraph.core.words import listed
from veilgraph.protocol.disclosures import DisclosureRecord
from veilgraph.protocol.revealed import statements
from veilgraph.protocol.rows import Protection
from veilgraph.report.page.found import Found
from veilgraph.report.tables import human_bytes


@dataclass(frozen=True)
class Guard:
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
_ORDER: Final = {protection: place for place, protection in enumerate(GUARDS)}


@dataclass(frozen=True)
class Count:
    """How many things of one protection went from one party to another."""

    guard: Guard
    things: int


@dataclass(frozen=True)
class Sent:
    """One thing that was sent; all senders and sessions together."""

    what: str
    guard: Guard
    ways: tuple[str, ...]
    work: str
    messages: str
    size: str
    epsilon: str
    why: str


@dataclass(frozen=True)
class Revealed:
    """A revelation that came true.

    Attributes:
        name: by which a party's limits call it.
        statement: who learns what.
        receivers: who was sent what makes it true.
        through: what that was, each thing with its protection.
    """

    name: str
    statement: str
    receivers: str
    through: tuple[tuple[str, Guard], ...]


@dataclass(frozen=True)
class Learned:
    """The section.

    Attributes:
        notes: what is missing, or must be said beside the tables.
        receivers: columns of the matrix.
        matrix: sender → a cell for each receiver; None where the two are the same.
        guards: protections that occur, for the legend.
        revealed: what follows.
        sent: everything, the least protected first.
        has_epsilon: whether anything was paid for in a ledger.
    """

    notes: tuple[str, ...]
    receivers: tuple[str, ...]
    matrix: tuple[tuple[str, tuple[tuple[Count, ...] | None, ...]], ...]
    guards: tuple[Guard, ...]
    revealed: tuple[Revealed, ...]
    sent: tuple[Sent, ...]
    has_epsilon: bool

    @property
    def in_the_clear(self) -> int:
        """How many kinds of things went in the clear."""
        return sum(sent.guard is GUARDS["none"] for sent in self.sent)


def learned(found: Found) -> Learned:
    """What the parties whose part is here have sent, to whom and why."""
    records = found.sent
    senders = [party for party in found.parties if any(record.party == party for record in records)]
    receivers = tuple(party for party in found.parties if any(record.to == party for record in records))
    occurring = {record.protection for record in records}
    return Learned(
        notes=tuple(_notes(found, senders)),
        receivers=receivers,
        matrix=tuple(
            (sender, tuple(None if sender == to else _cell(records, sender, to) for to in receivers))
            for sender in senders
        ),
        guards=tuple(guard for protection, guard in GUARDS.items() if protection in occurring),
        revealed=_revealed(records, statements(found.settings)),
        sent=_things(records),
        has_epsilon=any(record.epsilon_total is not None for record in records),
    )


def _notes(found: Found, senders: list[str]) -> list[str]:
    if not senders:
        return ["Nothing is on record as sent yet: each party writes down what it sent when a session ends."]
    notes = []
    if silent := [party for party in found.parties if party not in senders]:
        notes.append(
            f"Only what {listed(senders)} sent is on record here. What {listed(silent)} sent is on record there."
        )
    if any(not record.whole for record in found.sent):
        notes.append("A party was killed during a session: figures with ≥ are what it had noted by then.")
    return notes


def _cell(records: list[DisclosureRecord], sender: str, receiver: str) -> tuple[Count, ...]:
    things: dict[Protection, set[str]] = defaultdict(set)
    for record in records:
        if (record.party, record.to) == (sender, receiver):
            things[record.protection].add(record.what)
    return tuple(Count(GUARDS[protection], len(things[protection])) for protection in sorted(things, key=_order))


def _order(protection: Protection) -> int:
    return _ORDER[protection]


def _revealed(records: list[DisclosureRecord], known: Mapping[str, str]) -> tuple[Revealed, ...]:
    found = []
    for name in dict.fromkeys((*known, *(name for record in records for name in record.reveals))):
        telling = [record for record in records if name in record.reveals]
        if telling:
            through = dict.fromkeys((record.what, GUARDS[record.protection]) for record in telling)
            receivers = listed(sorted({record.to for record in telling}))
            statement = known.get(name, "This is nothing that jobs of its paradigm reveal.")
            found.append(Revealed(name, statement, receivers, tuple(through)))
    return tuple(found)


def _things(records: list[DisclosureRecord]) -> tuple[Sent, ...]:
    groups: dict[tuple[int, str, str], list[DisclosureRecord]] = defaultdict(list)
    for record in records:
        groups[_order(record.protection), record.what, record.why].append(record)
    return tuple(_sent(group) for _, group in sorted(groups.items(), key=lambda item: item[0][0]))


def _sent(group: list[DisclosureRecord]) -> Sent:
    ways: dict[str, list[str]] = defaultdict(list)
    for record in group:
        if record.to not in ways[record.party]:
            ways[record.party].append(record.to)
    least = "" if all(record.whole for record in group) else "≥ "
    return Sent(
        what=group[0].what,
        guard=GUARDS[group[0].protection],
        ways=tuple(f"{sender} → {', '.join(receivers)}" for sender, receivers in ways.items()),
        work=listed(list(dict.fromkeys(record.work for record in group))),
        messages=least + f"{sum(record.messages for record in group):,}",
        size=least + human_bytes(sum(record.bytes for record in group)),
        epsilon=_epsilons(group),
        why=group[0].why,
    )


def _epsilons(group: Iterable[DisclosureRecord]) -> str:
    """Per-release and total ε of each sender, as of its newest session."""
    newest = {
        record.party: f"{record.epsilon_release:.4g} / {record.epsilon_total:.4g}"
        for record in group
        if record.epsilon_release is not None and record.epsilon_total is not None
    }
    return "; ".join(f"{party}: {both}" for party, both in newest.items())
