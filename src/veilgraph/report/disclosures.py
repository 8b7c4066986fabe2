"""What left the parties of a run, from the records that they keep: for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from veilgraph.core.errors import RunError
from veilgraph.protocol.disclosures import DisclosureRecord
from veilgraph.report.tables import human_bytes

_CAPTION: Final = (
    "Protection is against the receiver. none: values made from private data, in the clear; mask, share: uniform by "
    "themselves, what they open together is meant to be known; noise: as strong as ε says; blinding: secret keys; "
    "random: no data in it. ≥: a party was killed, and may have sent a little more than it had noted."
)
_PRIVATE: Final = (
    "ε: of one of these releases by itself / total of all that the sender had published in the run by then, at the "
    "job's δ. What has no ε and was not computed from such releases is bounded by none."
)
_NOT_PRIVATE: Final = "No differential privacy: nothing bounds what a receiver can infer."


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
                f"{path}, line {number}: not a disclosure ({field}: {problem['msg']}); restore the file from a copy, "
                "or begin a new run"
            ) from error
    return records


def disclosure_table(records: Sequence[DisclosureRecord]) -> Table:
    """Who sent what to whom: a row for each piece of work, sender, receiver and thing sent; sessions are added up.

    Both ε are those of the newest session; the total is of all sessions before it, too.

    Args:
        records: of one party or of several, in the order in which they were written.
    """
    totals: dict[tuple[str, ...], tuple[int, int]] = {}
    epsilons: dict[tuple[str, ...], str] = {}
    cut_off: set[tuple[str, ...]] = set()
    for record in records:
        key: tuple[str, ...] = (record.work, record.party, record.to, record.what, record.protection)
        messages, size = totals.get(key, (0, 0))
        totals[key] = (messages + record.messages, size + record.bytes)
        if record.epsilon_release is not None and record.epsilon_total is not None:
            epsilons[key] = f"{record.epsilon_release:.4g} / {record.epsilon_total:.4g}"
        if not record.whole:
            cut_off.add(key)
    caption = f"{_CAPTION} {_PRIVATE if epsilons else _NOT_PRIVATE}"
    table = Table(title="Disclosures", title_justify="left", caption=caption, caption_justify="left")
    for heading in ("work", "from", "to", "what", "protection"):
        table.add_column(heading)
    for heading in ("messages", "bytes", *(["ε one / all"] if epsilons else [])):
        table.add_column(heading, justify="right")
    for words, (messages, size) in totals.items():
        style = "bold" if words[-1] == "none" else None
        least = "≥ " if words in cut_off else ""
        cells = [f"{least}{messages:,}", f"{least}{human_bytes(size)}"]
        if epsilons:
            cells.append(epsilons.get(words, ""))
        table.add_row(*map(Text, words), *cells, style=style)
    return table


def reasons_table(records: Sequence[DisclosureRecord]) -> Table:
    """Why each thing that was sent may leave its sender or, where nothing protects it, what follows; each once."""
    table = Table(title="Why it may leave", title_justify="left")
    for heading in ("what", "protection", "why"):
        table.add_column(heading)
    for what, protection, why in dict.fromkeys((record.what, record.protection, record.why) for record in records):
        table.add_row(Text(what), Text(protection), Text(why), style="bold" if protection == "none" else None)
    return table
