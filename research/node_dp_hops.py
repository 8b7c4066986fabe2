"""Accuracy of node-dp jobs with fixed and chosen hops, and of the learner alone: docs/explanation/node-dp.md.

``python -m research.node_dp_hops --seeds 3`` measures what ``docs/figures/node-dp-hops.json`` lacks: fixed hops in
plaintext, chosen ones in whole jobs of two parties; ``--write`` puts it into the page.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from veilgraph_node_dp.settings import TRIED

from docs.pages import figure_path, find_page
from research.figures import Figures, shown
from research.local import train_local
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train

FIGURES: Final = figure_path("node-dp-hops.json")
PAGE: Final = find_page("node-dp.md")
BEGIN: Final = "### Which K, and whether features add anything\n"
END: Final = "\n## Private labels"
SETS: Final[dict[str, list[float] | None]] = {
    "Cora": [0.5, 0.25, 0.25],
    "Cora, 20 labels a class": None,
    "CiteSeer": [0.5, 0.25, 0.25],
}
"""Row of the table → the split; None: the published one."""
EPSILONS: Final = (1.0, 3.0)
SHOWN: Final = ("Cora", "Cora, 20 labels a class")
SHOWN_EPSILON: Final = 1.0
"""Rows of the page: labels for half of the nodes, and few labels. ε = 3 and CiteSeer show the same."""
AUTO: Final = "auto"
ALONE: Final = "own data alone"


def job_of(name: str, seed: int, hops: int | str, epsilon: float) -> JobSettings:
    """The job; ``seed`` is of the split and the weights, ``epsilon`` of one node's features."""
    job: dict[str, Any] = {
        "paradigm": "node-dp",
        "seed": seed,
        "data": {"dataset": name.partition(",")[0].lower(), "split": SETS[name], "holders": 2, "label_holder": "A"},
        "release": {"features": {"epsilon": epsilon, "low": 0.0, "high": 1.0}},
        "model": {"hops": hops},
        "train": {"epochs": 500, "patience": 50},
    }
    return parse_job(job)


def fixed(job: JobSettings) -> float:
    """Accuracy on test nodes of the job's plaintext twin."""
    return float(train_local(job, "released", lambda records: None)["test_accuracy"])


def chosen(job: JobSettings) -> tuple[float, float]:
    """Accuracy on test nodes of the whole job, and of what its learner reaches by itself."""
    with tempfile.TemporaryDirectory() as folder:
        summary = train(job, Path(folder) / "run").summary
    return float(summary["test_accuracy"]), float(summary["alone"]["A"]["alone"]["test_accuracy"])


def measured(seeds: int) -> None:
    """What is not there yet, kept after every figure."""
    figures = Figures(FIGURES)
    for name in SETS:
        for epsilon in EPSILONS:
            for seed in range(seeds):
                key = partial("{}/hops/{}/{:g}/{}".format, name)
                for hops in TRIED:
                    figures.measure(key(hops, epsilon, seed), partial(fixed, job_of(name, seed, hops, epsilon)))
                if key(AUTO, epsilon, seed) not in figures.found:
                    together, alone = chosen(job_of(name, seed, AUTO, epsilon))
                    figures.measure(key(ALONE, epsilon, seed), partial(float, alone))
                    figures.measure(key(AUTO, epsilon, seed), partial(float, together))


def table() -> list[str]:
    """Markdown."""
    figures = Figures(FIGURES)
    of = partial(figures.of, level="hops", epsilon=SHOWN_EPSILON)
    half, few = (f"{shown(of(name, way=AUTO))} against {shown(of(name, way=ALONE))}" for name in SHOWN)
    count = len(of(SHOWN[0], way=AUTO))
    return [
        f"On Cora's test nodes, with two holders, ε = {SHOWN_EPSILON:g} and half of the nodes for training, `auto` has "
        f"{half} of A's own data alone. With 20 labels a class it has {few}. It is within two points of the best K "
        f"({count} seeds: `python -m research.node_dp_hops --seeds {count}`, then `--write`).",
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
    words, _, rest = rest.partition("On Cora's test nodes")
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + words + "\n".join(table()) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
