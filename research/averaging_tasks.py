"""Tasks of paradigm averaging on public data: each holder alone, averaging, all in one place.

Run it with: ``python -m research.averaging_tasks values|links|graphs [SEEDS]``
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
import typer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric.data import Data

import veilgraph as vg

HOLDERS: Final = "ABCD"
JOBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "values": {
        "averaging": {"task": {"name": "values"}, "local_epochs": 2},
        "model": {"dim": 16, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}},
        "train": {"epochs": 100, "patience": 30},
    },
    "links": {
        "data": {
            "dataset": "cora",
            "holders": len(HOLDERS),
            "partition": {"by": "labels", "mixed": 0.1},
        },
        "averaging": {"task": {"name": "links"}, "local_epochs": 5},
        "model": {"dim": 64, "local": {"model": "gcn", "hops": 1, "activation": "none", "normalize": False}},
        "train": {"epochs": 60, "patience": 20, "learning_rate": 0.01},
    },
    "graphs": {
        "averaging": {"task": {"name": "graphs"}, "local_epochs": 5},
        "model": {"dim": 32, "dropout": 0.1, "local": {"model": "gin", "hops": 3, "normalize": False}},
        "train": {"epochs": 60, "patience": 20, "learning_rate": 0.003},
    },
}


def patients(seed: int) -> dict[str, Data]:
    """442 patients, dealt at random; each joined with the 5 most like it at its holder; how far diabetes went on."""
    x, y = load_diabetes(return_X_y=True)
    generator = np.random.default_rng(seed)
    order, found = generator.permutation(len(y)), {}
    for place, name in enumerate(HOLDERS):
        rows = order[place :: len(HOLDERS)]
        own = x[rows] / x.std()
        near = kneighbors_graph(own, 5).tocoo()
        ends = np.stack([np.r_[near.row, near.col], np.r_[near.col, near.row]])
        found[name] = _data(own, ends, y[rows].astype(np.float32), len(rows), generator, rows)
    return found


def drawings(seed: int, count: int = 800) -> dict[str, Data]:
    """Handwritten digits as graphs of their inked pixels, joined where they touch, with ink and place as features."""
    images, y = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    order, found = generator.permutation(len(y))[:count], {}
    for place, name in enumerate(HOLDERS):
        mine = order[place :: len(HOLDERS)]
        rows, ends, batch, start = [], [], [], 0
        for number, index in enumerate(mine):
            image = images[index].reshape(8, 8) / 16
            down, across = np.nonzero(image > 0.2)
            touching = np.maximum(np.abs(down[:, None] - down), np.abs(across[:, None] - across)) == 1
            rows.append(np.stack([image[down, across], down / 8, across / 8], axis=1))
            ends.append(np.stack(np.nonzero(touching)) + start)
            batch.append(np.full(len(down), number))
            start += len(down)
        data = _data(np.concatenate(rows), np.concatenate(ends, 1), y[mine], len(mine), generator, np.arange(start))
        data.batch = torch.from_numpy(np.concatenate(batch))
        found[name] = data
    return found


def _data(
    x: np.ndarray[Any, Any],
    ends: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    count: int,
    generator: np.random.Generator,
    ids: np.ndarray[Any, Any],
) -> Data:
    drawn = torch.from_numpy(generator.random(count))
    return Data(
        x=torch.from_numpy(x).float(),
        edge_index=torch.from_numpy(ends).long(),
        y=torch.from_numpy(y),
        train_mask=drawn < 0.5,
        val_mask=(drawn >= 0.5) & (drawn < 0.7),
        test_mask=drawn >= 0.7,
        n_id=torch.from_numpy(ids),
    )


BROUGHT: Final[Mapping[str, Callable[[int], dict[str, Data]]]] = {"values": patients, "graphs": drawings}


def row(task: str, seed: int) -> tuple[list[str], list[float]]:
    """Heads, and of alone (mean of the holders), averaging and pooled each figure of the test split."""
    job = vg.Job(paradigm="averaging", preset="paper", seed=seed, **JOBS[task])
    with tempfile.TemporaryDirectory() as folder:
        run = vg.fit(job, BROUGHT[task](seed) if task in BROUGHT else None, Path(folder) / "run")
        compared = run.compare()
    names = [figure.name for figure in job.measures.figures if compared.pooled.get(f"test_{figure.name}") is not None]
    ways = {
        "alone": list(compared.alone.values()),
        "averaging": [compared.federated],
        "pooled": [compared.pooled],
    }
    cells = [(way, name, summaries) for way, summaries in ways.items() for name in names[:3]]
    values = [fmean(summary[f"test_{name}"] or math.nan for summary in summaries) for _, name, summaries in cells]
    return [f"{way} {name}" for way, name, _ in cells], values


def main(task: str, seeds: int) -> None:
    """Prints a table of all seeds, and their mean."""
    torch.set_num_threads(1)
    rows = list[list[float]]()
    for seed in range(seeds):
        heads, values = row(task, seed)
        if not rows:
            typer.echo(" | ".join(["seed", *heads]))
        rows.append(values)
        typer.echo(" | ".join([str(seed), *(f"{value:.3f}" for value in values)]))
    typer.echo(" | ".join(["mean", *(f"{fmean(column):.3f}" for column in zip(*rows, strict=True))]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
