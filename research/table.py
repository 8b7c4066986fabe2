"""The plan of a table: what is trained for which place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from research.grid import Entry
from research.markdown import Figure

Draw = Callable[[Sequence[Figure], Path], None]
"""(all places, the PNG to write)."""


@dataclass(frozen=True)
class Table:
    """A table's plan.

    Attributes:
        title: heading.
        corner: what the rows are.
        entries: all places, row by row.
        on_request: data sets that are run only when they are named.
        note: what the reader must know of the paper's figures beside ours; may be empty.
        with_f1: whether macro F1 is told beside accuracy.
        draw: makes the table's picture, if it has one.
    """

    title: str
    corner: str
    entries: tuple[Entry, ...]
    on_request: frozenset[str] = frozenset()
    note: str = ""
    with_f1: bool = False
    draw: Draw | None = None

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets in the order of their first place."""
        return tuple(dict.fromkeys(entry.dataset for entry in self.entries))
