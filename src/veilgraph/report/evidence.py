"""Whose signatures vouch for the records of a run: for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from veilgraph.run.verifying import VerifiedRecord

_SHOWN: Final = 8
_CAPTION: Final = (
    "Every line is the one that its owner stated, up to the number under stated; lines after that came since, and the "
    "next statement is of them too. Countersigned: who has heard of how many lines, and when."
)
_UNSIGNED: Final = (
    "Unsigned: all parties of the run are on one machine and have no certificates, so whoever has the files can make "
    "them anew, this evidence included."
)


def evidence_table(records: Sequence[VerifiedRecord]) -> Table:
    """A row for each record: how long it is, who signed that and when, and who countersigned."""
    caption = _CAPTION if all(record.signed for record in records) else f"{_CAPTION} {_UNSIGNED}"
    table = Table(title="Evidence", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("party")
    table.add_column("record", no_wrap=True)
    for heading in ("lines", "stated"):
        table.add_column(heading, justify="right")
    for heading in ("head", "signed", "countersigned"):
        table.add_column(heading)
    for record in records:
        by = record.party if record.signed else "unsigned: one machine"
        witnesses = [f"{one.party}: {one.lines} lines, {_shown(one.time)}" for one in record.witnesses]
        cells = (record.party, record.name, str(record.lines), str(record.stated), record.head[:_SHOWN])
        table.add_row(*map(Text, (*cells, f"{by}\n{_shown(record.time)}", "\n".join(witnesses) or "by nobody")))
    return table


def _shown(time: str) -> str:
    """UTC, to the minute."""
    return time[:16].replace("T", " ")
