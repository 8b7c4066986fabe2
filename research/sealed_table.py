"""Accuracy of sealed jobs beside their plaintext twin; that of vertical jobs of as many holders is in ``rounds``."""

from __future__ import annotations

from typing import Final

from research.grid import Entry, Kind
from research.table import Table

_DATASETS: Final = ("cora", "citeseer", "pubmed")
_ROWS: Final[dict[str, Kind]] = {"sealed": "federated", "its twin": "twin"}


def _entries() -> list[Entry]:
    return [
        Entry(f"{row}, {holders} holders", dataset, dataset, f"{dataset}-sealed", kind, {"data.holders": holders}, None)
        for holders in (2, 3, 4)
        for row, kind in _ROWS.items()
        for dataset in _DATASETS
    ]


SEALED_TABLES: Final[dict[str, Table]] = {
    "sealed": Table(
        "Sealed: nothing opened but the predicted classes",
        "training",
        tuple(_entries()),
        note="Engine federated: every party and protocol, and the predicted classes opened to A. Its twin is the same "
        "network in one process on floating numbers.",
    )
}
"""The tables by the name the command line uses."""
