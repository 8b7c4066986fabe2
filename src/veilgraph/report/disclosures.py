"""What left the parties of a run, from the records that they keep: for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from veilgraph.core.errors import RunError
from veilgraph.report.tables import human_bytes
from veilgraph.roles.disclosures import DisclosureRecord

_CAPTION: Final = (
    "Protection is against the receiver. none: values made from private data, in the clear; mask, share: uniform by "
    "themselves, what they open together is meant to be known; blinding: secret keys; random: no data in it. "
    "No differential privacy: nothing bounds what a receiver can infer. ≥: a party was killed, and may have sent "
    "a little more than it had noted."
)


def read_disclosures(path: Path) -> list[DisclosureRecord]:
    """Reads a ``disclosures.jsonl``: every line must be whole, for a record with a gap is none.

    Raises:
        RunError: the file cannot be read, or a line is no disclosure.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path}: cannot be read ({error}); give the directory of a run that has been worked on"
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(DisclosureRecord.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise RunError(
                f"{path}, line {number}: not a disclosure ({field}: {problem['msg']}); restore the file from a copy "
                "or move it away to begin a new record"
            ) from error
    return records


def disclosure_table(records: Sequence[DisclosureRecord]) -> Table:
    """Who sent what to whom: a row for each piece of work, sender, receiver and thing sent; sessions are added up.

    Args:
        records: of one party or of several, in the order in which they were written.
    """
    totals: dict[tuple[str, ...], tuple[int, int]] = {}
    cut_off: set[tuple[str, ...]] = set()
    for record in records:
        key: tuple[str, ...] = (record.work, record.party, record.to, record.what, record.protection)
        messages, size = totals.get(key, (0, 0))
        totals[key] = (messages + record.messages, size + record.bytes)
        if not record.whole:
            cut_off.add(key)
    table = Table(title="Disclosures", title_justify="left", caption=_CAPTION, caption_justify="left")
    for heading in ("work", "from", "to", "what", "protection"):
        table.add_column(heading)
    for heading in ("messages", "bytes"):
        table.add_column(heading, justify="right")
    for words, (messages, size) in totals.items():
        style = "bold" if words[-1] == "none" else None
        least = "≥ " if words in cut_off else ""
        table.add_row(*map(Text, words), f"{least}{messages:,}", f"{least}{human_bytes(size)}", style=style)
    return table


def reasons_table(records: Sequence[DisclosureRecord]) -> Table:
    """Why each thing that was sent may leave its sender or, where nothing protects it, what follows; each once."""
    table = Table(title="Why it may leave", title_justify="left")
    for heading in ("what", "protection", "why"):
        table.add_column(heading)
    for what, protection, why in dict.fromkeys((record.what, record.protection, record.why) for record in records):
        table.add_row(Text(what), Text(protection), Text(why), style="bold" if protection == "none" else None)
    return table
