"""What perturbed labels cost in accuracy: docs/privacy.md, "Labels under randomised response".

``python -m research.label_privacy --seeds 2`` prints the table; ``--sets digits`` that row alone. A cell is the
plaintext twin of a two-holder job with ``preset: auto``; the tests hold the twin to the federated job.
"""

from __future__ import annotations

import argparse
import sys
from statistics import fmean, stdev
from typing import Any, Final

import torch
from torch import Tensor

from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.baselines import isolated
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.local.publish_labels import LabelPublisher, learned_from
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit

EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, None)
SETS: Final = ("digits", "cora")
FIRST_SEED: Final = 10


def job(dataset: str, seed: int, epsilon: float | None) -> JobSettings:
    """Two holders, half of the nodes trained with; the split is drawn without the labels."""
    data = {"dataset": dataset, "holders": 2, "split": [0.5, 0.25, 0.25], "stratify": False}
    private: dict[str, Any] = {} if epsilon is None else {"label_privacy": {"epsilon": epsilon}}
    return parse_job({"seed": seed, "data": data, "train": {"class_weights": "none"}, **private})


def perturbed(graph: PartyGraph, epsilon: float, source: SecretSource = system_secrets) -> Tensor | None:
    """Labels of the training and validation nodes, as the label holder's door gives them."""
    common = graph.common_part()
    if common.labels is None or common.num_classes is None:
        return None
    nodes = learned_from(common.labels, common.train_mask, common.val_mask)
    return LabelPublisher(LabelResponse(epsilon, common.num_classes), common.labels[nodes], None, source).perturbed()


def accuracy(dataset: str, seed: int, epsilon: float | None) -> float:
    """Of the test nodes, against true labels."""
    settings = job(dataset, seed, epsilon)
    graphs = paradigm_of(settings).load(settings).graphs
    label_party = settings.data.label_party
    mine = next(graph for graph in graphs if graph.party == label_party)
    told = None if epsilon is None else perturbed(mine, epsilon)
    return float(fit(PlainNetwork(settings, graphs, label_party, perturbed=told)).summary["test_accuracy"])


def alone(dataset: str, seed: int) -> float:
    """Of the label holder by itself, with true labels: nothing leaves it."""
    settings = job(dataset, seed, None)
    graphs = paradigm_of(settings).load(settings).graphs
    return float(isolated(settings, graphs, settings.data.label_party).summary["test_accuracy"])


def shown(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def main(arguments: list[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    given = parser.parse_args(arguments)
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    heads = ["none" if epsilon is None else f"ε = {epsilon:g}" for epsilon in EPSILONS]
    sys.stdout.write(f"| | {' | '.join([*heads, 'A alone, none'])} |\n|---|{'---|' * (len(heads) + 1)}\n")
    for dataset in given.sets.split(","):
        cells = [shown([accuracy(dataset, seed, epsilon) for seed in seeds]) for epsilon in EPSILONS]
        cells.append(shown([alone(dataset, seed) for seed in seeds]))
        sys.stdout.write(f"| {dataset} | {' | '.join(cells)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
