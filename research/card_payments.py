"""S-FFSD as three organisations that see other sides of the same card payments.

Data: S-FFSD (github.com/AI4Risk/antifraud, ``data/S-FFSD.zip``) under ``$VEILGRAPH_DATA/fraud/s_ffsd``. Nodes are the
first labelled payments. A knows amount, payer and kind, and which payments are frauds; B knows the place, C the payee
and the time. At each an edge joins a payment with the three before it of the same payer, place or payee.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.graph.party import PartyGraph

PAYMENTS: Final = 20_000
_BEFORE: Final = 3
_TRAINS, _JUDGES = 0.4, 0.6
_HOURS: Final = 24


def organisations(root: Path, seed: int) -> list[PartyGraph]:
    """A, B and C; the seed draws two fifths of the payments that train and a fifth that judges."""
    with zipfile.ZipFile(root / "fraud/s_ffsd/S-FFSD.zip") as archive, archive.open("S-FFSD.csv") as file:
        rows = [row for row in csv.DictReader(io.TextIOWrapper(file)) if row["Labels"] in "01"][:PAYMENTS]
    amount, time = (np.array([float(row[name]) for row in rows]) for name in ("Amount", "Time"))
    drawn = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed))
    return [
        PartyGraph(
            "A",
            _scaled([np.log1p(amount), _counts(rows, "Source"), _counts(rows, "Type"), *_commonest(rows, "Type", 10)]),
            _joined(rows, "Source"),
            labels=torch.tensor([int(row["Labels"]) for row in rows]),
            train_mask=drawn < _TRAINS,
            val_mask=(drawn >= _TRAINS) & (drawn < _JUDGES),
            test_mask=drawn >= _JUDGES,
            num_classes=2,
        ),
        PartyGraph(
            "B", _scaled([_counts(rows, "Location"), *_commonest(rows, "Location", 20)]), _joined(rows, "Location")
        ),
        PartyGraph(
            "C",
            _scaled([time, time % _HOURS, _counts(rows, "Target"), *_commonest(rows, "Target", 20)]),
            _joined(rows, "Target"),
        ),
    ]


def _scaled(columns: Sequence[np.ndarray]) -> Tensor:
    x = np.stack(columns, axis=1)
    spread = x.std(axis=0)
    return torch.from_numpy((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1)).float()


def _counts(rows: Sequence[dict[str, str]], name: str) -> np.ndarray:
    counted = Counter(row[name] for row in rows)
    return np.log1p(np.array([counted[row[name]] for row in rows], dtype=np.float64))


def _commonest(rows: Sequence[dict[str, str]], name: str, most: int) -> list[np.ndarray]:
    counted = Counter(row[name] for row in rows)
    return [np.array([float(row[name] == value) for row in rows]) for value, _ in counted.most_common(most)]


def _joined(rows: Sequence[dict[str, str]], name: str) -> Tensor:
    before, ends = dict[str, deque[int]](), list[tuple[int, int]]()
    for place, row in enumerate(rows):
        latest = before.setdefault(row[name], deque(maxlen=_BEFORE))
        ends += [(other, place) for other in latest]
        latest.append(place)
    edges = torch.tensor(ends).T
    both: Tensor = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    return both
