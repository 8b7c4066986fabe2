import pytest

from research.grid import Entry
from research.paper_tables import TABLES
from research.table import Table

TINY = {"data.dataset": "synthetic", "model.dim": 8, "model.local.hops": 1, "train.epochs": 2}
"""Changes that make a shipped job small and independent of files."""


@pytest.fixture
def tiny_table(monkeypatch):
    """A table of four places on the synthetic graph, known as ``tiny``."""

    def entry(row, kind, paper):
        return Entry(row, "synthetic", "synthetic", "digits", kind, TINY, paper)

    entries = (
        entry("alone", "isolated-B", 0.5),
        entry("together", "federated", 0.75),
        entry("everything", "pooled", None),
        Entry("together", "digits", "digits", "digits", "federated", {**TINY, "data.dataset": "digits"}, 0.9),
    )
    table = Table("A tiny table", "model", entries, frozenset({"digits"}), note="A note.")
    monkeypatch.setitem(TABLES, "tiny", table)
    return table
