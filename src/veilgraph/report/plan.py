"""What a job will cost, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from veilgraph.core.types import PartyId
from veilgraph.core.words import listed
from veilgraph.protocol.costs import Costs
from veilgraph.report.tables import human_bytes

_MOST_NAMED: Final = 4
"""Parties that send as much, in a sentence."""


def will_send(costs: Costs) -> str:
    """In a sentence: what each party sends in all."""
    alike: dict[int, list[PartyId]] = {}
    for party, count in costs.sent().items():
        alike.setdefault(count, []).append(party)
    parts = [(_named(parties), _each(count, parties)) for count, parties in alike.items()]
    (first, most), *others = parts
    words = ", ".join([f"{first} will send at most {most}", *(f"{names} {count}" for names, count in others)])
    return f"{words} (veilgraph plan: stage by stage)"


def _named(parties: Sequence[PartyId]) -> str:
    return listed(parties) if len(parties) <= _MOST_NAMED else f"{parties[0]} and {len(parties) - 1} other holders"


def _each(count: int, parties: Sequence[PartyId]) -> str:
    return human_bytes(count) if len(parties) == 1 else f"{human_bytes(count)} each"


def costs_table(costs: Costs) -> Table:
    """Stages by parties, those in one column that send and hold as much: rounds, bytes sent, and held at once."""
    alike: dict[tuple[int, ...], list[PartyId]] = {}
    for party in costs.sent():
        counts = (*(stage.sent.get(party, 0) for stage in costs.stages), costs.memory.get(party, 0))
        alike.setdefault(counts, []).append(party)
    table = Table(title="What it will send")
    table.add_column("stage")
    table.add_column("rounds", justify="right")
    for parties in alike.values():
        table.add_column(_named(parties) if len(parties) == 1 else f"{_named(parties)}, each", justify="right")
    *stages, memory = ([human_bytes(count) for count in counts] for counts in zip(*alike, strict=True))
    for stage, sent in zip(costs.stages, stages, strict=True):
        table.add_row(stage.name, f"{stage.rounds:,}", *sent)
    table.add_section()
    table.add_row("in all", f"{costs.rounds:,}", *(human_bytes(sum(counts[:-1])) for counts in alike))
    table.add_row("memory, about", "", *memory)
    return table
