"""Private training of paradigm averaging on PubMed: accuracy against ε, beside no noise, no edges and each alone.

Run it with: ``python -m research.private_averaging [SEEDS]``
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

import typer
from torch.nn import functional

from veilgraph.graph.datasets import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.baselines import alone
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.twin import PlainAveraging
from veilgraph.privacy.degree import bound_degrees
from veilgraph.protocol.job_file import parse_job

BOUND: Final = 4
"""D; edges beyond it are left out beforehand, a choice that no ε covers."""
EPSILONS: Final = (2.0, 4.0, 8.0, 16.0)
ROUNDS: Final = 60
RATE: Final = 4.0
PRIVACY: Final[Mapping[str, Any]] = {"degree_bound": BOUND, "sampling_rate": 0.05, "batch": 123, "delta": 1e-5}
BASE: Final[Mapping[str, Any]] = {
    "paradigm": "averaging",
    "preset": "paper",
    "data": {
        "dataset": "pubmed",
        "holders": 4,
        "split": [0.5, 0.25, 0.25],
        "stratify": False,
    },
    "model": {"dim": 16, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}},
    "train": {"epochs": ROUNDS, "patience": None, "select_by": "last"},
}


def job(seed: int, averaging_: Mapping[str, Any], *, rate: float, hops: int = 1) -> AveragingJob:
    """A job over the same data and network."""
    model = {**BASE["model"], "local": {**BASE["model"]["local"], "hops": hops}}
    train = {**BASE["train"], "learning_rate": rate}
    return averaging(parse_job({**BASE, "seed": seed, "model": model, "train": train, "averaging": dict(averaging_)}))


def private(seed: int, epsilon: float, *, rate: float, hops: int = 1) -> AveragingJob:
    """With noise for an ε; without hops a node is in one term."""
    given = {key: value for key, value in PRIVACY.items() if hops or key != "degree_bound"}
    own = {"rule": {"name": "fedsgd"}, "local_epochs": 1, "privacy": {**given, "epsilon_total": epsilon}}
    return job(seed, own, rate=rate, hops=hops)


def graphs(settings: AveragingJob) -> list[PartyGraph]:
    """The holders', as if exported with at most so many neighbours of a node; every row of features has length 1."""
    return [_exported(part.graph) for part in load_parts(settings.data, settings.seed)]


def _exported(graph: PartyGraph) -> PartyGraph:
    kept = graph.with_edges(bound_degrees(graph.edge_index, graph.num_nodes, BOUND))
    rows = functional.normalize(graph.features.to_dense(), dim=1)
    return replace(kept, features=rows)


def trained(settings: AveragingJob, split: str = "test") -> float:
    """Accuracy over all holders after the last round, by the plaintext twin."""
    twin = PlainAveraging(settings, graphs(settings))
    for number in range(1, settings.train.epochs + 1):
        twin.round(number)
    return float(twin.scores().summary()[f"{split}_accuracy"] or 0.0)


def each_alone(settings: AveragingJob) -> float:
    """Mean accuracy of the holders, each on its own test nodes, without noise."""
    results = [alone(settings, graph, lambda records: None) for graph in graphs(settings)]
    return fmean(result.summary["test_accuracy"] for result in results if result is not None)


def main() -> None:
    """Prints the table."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    open_ = {"local_epochs": 5}
    _say("each alone, no noise", [each_alone(job(seed, open_, rate=0.01)) for seed in seeds])
    _say("averaging, no noise", [trained(job(seed, open_, rate=0.01)) for seed in seeds])
    for epsilon in EPSILONS:
        for hops in (1, 0):
            noise = private(0, epsilon, rate=RATE, hops=hops).training_plan
            assert noise is not None
            name = f"ε = {epsilon:g}{'' if hops else ', no edges'} (σ = {noise.multiplier:.3g})"
            _say(name, [trained(private(seed, epsilon, rate=RATE, hops=hops)) for seed in seeds])


def _say(name: str, values: list[float]) -> None:
    typer.echo(f"| {name} | {', '.join(f'{value:.3f}' for value in values)} | {fmean(values):.3f} |")


if __name__ == "__main__":
    main()
