"""LPGNN where labels are private too: what forward correction and denoising over neighbours are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from research.grid import Entry, Kind
from research.table import Table

LABEL_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
"""ε of one node's label, on top of that of its features."""

_FEATURES: Final[Mapping[str, object]] = {"release.features.epsilon": 1.0}
_COLUMNS: Final[Mapping[str, tuple[Kind, Mapping[str, object]]]] = {
    "believed": ("believed", {"denoise_steps": 0}),
    "corrected": ("released", {"denoise_steps": 0}),
    "2 hops, soft": ("released", {"denoise_steps": 2, "targets": "soft"}),
    "8 hops, hard": ("released", {"denoise_steps": 8, "targets": "hard"}),
}
"""Column → what is trained, and how labels are learned from."""


def _entries(dataset: str) -> list[Entry]:
    job = f"{dataset}-local"
    found = []
    for epsilon in LABEL_EPSILONS:
        for column, (kind, settings) in _COLUMNS.items():
            changes = {
                **_FEATURES,
                "data.stratify": False,
                "release.labels": {"holder": "B", "epsilon": epsilon, **settings},
            }
            found.append(Entry(f"{dataset}, ε of labels = {epsilon}", column, dataset, job, kind, changes, None))
    return found


LPGNN_LABELS: Final[dict[str, Table]] = {
    "lpgnn-labels": Table(
        "LPGNN: private labels",
        "data set",
        tuple(entry for dataset in ("cora", "citeseer", "pubmed") for entry in _entries(dataset)),
        note="Features are released with ε = 1, multi-bit, and labels of training and validation nodes by randomised "
        "response, so that a node's total is the sum of both ε. The epoch is chosen by released labels of validation "
        "nodes alone. All columns are the plaintext twin, judged by the true labels of test nodes, which a job with "
        "private labels never has. *Believed* takes released labels for the true ones. *Corrected* is forward "
        "correction, `denoise_steps: 0`. Then follows Drop with so many `denoise_steps`, and `targets`. The other "
        "settings are those of the shipped jobs, chosen with true labels.",
    )
}
"""The table by the name the command line uses."""
