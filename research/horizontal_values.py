"""Regression in paradigm horizontal on card payments: each holder alone, the federation, all in one place.

Data: S-FFSD (github.com/AI4Risk/antifraud, ``data/S-FFSD.zip``) under ``$VEILGRAPH_DATA/fraud/s_ffsd``. A node is one
of the first payments. Its number to predict is ln(1 + amount). Its columns are the hour and the commonest kinds and
places. An edge joins payments that follow one another of one payer, or of one payee. Edges are dealt to three holders.

Run it with: ``VEILGRAPH_DATA=DIR python -m research.horizontal_values [SEEDS]``
"""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import torch
import typer
from torch_geometric.data import Data

import veilgraph as vg

PAYMENTS: Final = 20_000
_COMMONEST: Final = 40
_HOURS: Final = 24
FIGURES: Final = ("rmse", "mae", "r2")


def payments(root: Path, seed: int) -> Data:
    """The graph, with masks drawn by the seed: half of the payments train, a fifth validate."""
    with zipfile.ZipFile(root / "fraud/s_ffsd/S-FFSD.zip") as archive, archive.open("S-FFSD.csv") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file)))[:PAYMENTS]
    columns = [np.array([float(row["Time"]) % _HOURS / _HOURS for row in rows])]
    for name in ("Type", "Location"):
        common = [value for value, _ in Counter(row[name] for row in rows).most_common(_COMMONEST)]
        columns += [np.array([float(row[name] == value) for row in rows]) for value in common]
    ends = []
    for name in ("Source", "Target"):
        before: dict[str, int] = {}
        for place, row in enumerate(rows):
            if row[name] in before:
                ends.append((before[row[name]], place))
            before[row[name]] = place
    edges = torch.tensor(ends).t()
    drawn = torch.rand(len(rows), generator=torch.Generator().manual_seed(seed))
    return Data(
        x=torch.from_numpy(np.stack(columns, axis=1)).float(),
        edge_index=torch.unique(torch.cat([edges, edges.flip(0)], dim=1), dim=1),
        y=torch.tensor([float(np.log1p(float(row["Amount"]))) for row in rows]),
        train_mask=drawn < 0.5,
        val_mask=(drawn >= 0.5) & (drawn < 0.7),
        test_mask=drawn >= 0.7,
    )


def row(root: Path, seed: int) -> list[float]:
    """RMSE, MAE and R² of the test nodes: the mean of holders alone, the federation, pooled."""
    job = vg.Job(
        paradigm="horizontal",
        seed=seed,
        horizontal={"task": {"name": "values"}},
        model={"dim": 32, "update": "concat", "server": {"dropout": 0.0}},
        train={"epochs": 150, "patience": 30},
    )
    parts = vg.simulate.horizontally(payments(root, seed), 3, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        compared = vg.fit(job, parts, Path(folder) / "run").compare()
    ways = (list(compared.alone.values()), [compared.federated], [compared.pooled])
    return [fmean(summary[f"test_{name}"] or 0.0 for summary in way) for way in ways for name in FIGURES]


def main(seeds: int) -> None:
    """Prints a table of all seeds, and their mean."""
    torch.set_num_threads(1)
    root, rows = Path(os.environ["VEILGRAPH_DATA"]), list[list[float]]()
    typer.echo(
        " | ".join(["seed", *(f"{way} {name}" for way in ("alone", "horizontal", "pooled") for name in FIGURES)])
    )
    for seed in range(seeds):
        rows.append(row(root, seed))
        typer.echo(" | ".join([str(seed), *(f"{value:.4f}" for value in rows[-1])]))
    typer.echo(" | ".join(["mean", *(f"{fmean(values):.4f}" for values in zip(*rows, strict=True))]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
