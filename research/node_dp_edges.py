"""Accuracy of node-dp jobs on Cora with noise on the learner's edges, at several ε: docs/explanation/node-dp.md.

``python -m research.node_dp_edges --seeds 3`` measures what ``docs/figures/node-dp-edges.json`` lacks, in whole jobs of
two parties; ``--write`` puts it into the page.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from docs.pages import figure_path, find_page
from research.figures import Figures, shown
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train

FIGURES: Final = figure_path("node-dp-edges.json")
PAGE: Final = find_page("node-dp.md")
BEGIN: Final = "### What it reaches\n"
END: Final = "\n## What ε protects"
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
HOPS: Final = (1, 3, 5)
SHOWN: Final = 3
"""Hops of what ``veilgraph budget`` lets expect."""
OF_PAGE: Final = 5
"""Hops of the page's row: three do as well within half a point."""
NO_NOISE: Final = 1e6
"""ε at which noise is a ten-thousandth of what an edge moves."""
FEATURES: Final = 1.0
"""ε of what nodes release."""
PLAIN: Final = "edges as they are"
ALONE: Final = "no edges"


def job_of(seed: int, hops: int | None, epsilon: float | None = None) -> JobSettings:
    """The job.

    Args:
        seed: of the split and the weights.
        hops: K; None: edges are used as they are.
        epsilon: total, of an edge; None: sums have no noise.
    """
    job: dict[str, Any] = {
        "paradigm": "node-dp",
        "seed": seed,
        "data": {"dataset": "cora", "split": [0.5, 0.25, 0.25], "holders": 2, "label_holder": "A"},
        "release": {"features": {"epsilon": FEATURES, "low": 0.0, "high": 1.0}},
        "train": {"epochs": 500, "patience": 50},
    }
    if hops is None:
        job["model"] = {"hops": 8}
    else:
        job["privacy"] = {"unit": "edge", "hops": hops, "epsilon_total": NO_NOISE if epsilon is None else epsilon}
    return parse_job(job)


def accuracy(job: JobSettings, *, alone: bool = False) -> float:
    """Of the whole job, all parties, on test nodes; or of what its learner has without its edges."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train(job, Path(folder) / "run").summary
        return float((summary["without_releases"] if alone else summary)["test_accuracy"])


def measured(seeds: int) -> None:
    """What is not there yet, kept after every figure."""
    figures = Figures(FIGURES)
    for seed in range(seeds):
        figures.measure(f"cora/edge/{PLAIN}/none/{seed}", partial(accuracy, job_of(seed, None)))
        figures.measure(f"cora/edge/{ALONE}/none/{seed}", partial(accuracy, job_of(seed, 1), alone=True))
        for hops in HOPS:
            for epsilon in (*EPSILONS, None):
                name = "none" if epsilon is None else f"{epsilon:g}"
                key = f"cora/edge/{hops} hops/{name}/{seed}"
                figures.measure(key, partial(accuracy, job_of(seed, hops, epsilon)))


def table() -> list[str]:
    """Markdown."""
    figures = Figures(FIGURES)
    of = partial(figures.of, "cora", "edge")
    count = len(of(PLAIN, None))
    columns = (1.0, 4.0, 8.0, 16.0, None)
    heads = ["no noise" if epsilon is None else f"ε = {epsilon:g}" for epsilon in columns]
    cells = [shown(of(f"{OF_PAGE} hops", epsilon)) for epsilon in columns]
    return [
        f"Test accuracy on Cora, K = {OF_PAGE}, ε = {FEATURES:g} of features, ε of an edge as shown, {count} seeds: "
        f"`python -m research.node_dp_edges --seeds {count}`, then `--write`. With edges as they are it is "
        f"{shown(of(PLAIN, None))}, without an edge {shown(of(ALONE, None))}. The most frequent class has 0.302.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---:|' * len(heads)}",
        f"| {' | '.join(cells)} |",
        "",
        "So at ε = 1 next to nothing is learnt. More hops pay from ε = 4 on: at 16, K = 1 has "
        f"{shown(of('1 hops', 16.0))}.",
    ]


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.write:
        measured(arguments.seeds)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(table()) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
