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


@pytest.fixture
def tiny_private_table(monkeypatch):
    """A table of one place alone and two with differential privacy, known as ``tiny-private``."""
    tiny = {**TINY, "privacy.gradient_clip": 0.01}

    def entry(row, kind, epsilon, changes):
        return Entry(row, f"ε {epsilon}", "synthetic", "cora-private", kind, {**tiny, **changes}, None)

    entries = [entry("alone", "isolated-A", epsilon, {}) for epsilon in (4, 8)]
    entries += [entry("noised", "federated", epsilon, {"privacy.epsilon_step": epsilon}) for epsilon in (4, 8)]
    table = Table("A tiny private table", "training", tuple(entries))
    monkeypatch.setitem(TABLES, "tiny-private", table)
    return table
