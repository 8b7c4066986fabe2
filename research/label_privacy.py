"""What perturbed labels cost in accuracy: docs/explanation/privacy.md, "Labels".

``python -m research.label_privacy --seeds 2`` measures what ``docs/figures/label-privacy.json`` lacks and prints the
table; ``--sets digits`` that set alone. A cell is the plaintext twin of a two-holder job with ``preset: auto``; the
tests hold the twin to the federated job.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Final

import torch
from torch import Tensor
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.twin import alone as alone_averaging
from veilgraph_testing.vertical import PerturbedNetwork

from docs.pages import figure_path
from research.figures import Figures, shown
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.paradigms.horizontal.twin import alone as own_network
from veilgraph.paradigms.vertical.twin import isolated
from veilgraph.privacy.label_publisher import LabelPublisher, perturbed_nodes
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.settings import LabelPrivacySettings
from veilgraph.protocol.job import JobSettings, perturbed_splits
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.protocol.releases import nodes_perturbed, with_perturbed

EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, None)
SETS: Final = ("digits", "cora")
FIRST_SEED: Final = 10
JOINT, ALONE = "joint", "A alone"
HORIZONTAL, OWN = "horizontal", "horizontal, each alone"
AVERAGING, HOME = "averaging", "averaging, each alone"
FIGURES: Final = figure_path("label-privacy.json")


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
    nodes = perturbed_nodes(common.labels, common.train_mask, common.val_mask)
    return LabelPublisher(LabelResponse(epsilon, common.num_classes), common.labels[nodes], None, source).perturbed()


def accuracy(dataset: str, seed: int, epsilon: float | None) -> float:
    """Of the test nodes, against true labels."""
    settings = job(dataset, seed, epsilon)
    graphs = paradigm_of(settings).data.load(settings).graphs
    label_party = settings.data.label_party
    mine = next(graph for graph in graphs if graph.party == label_party)
    told = None if epsilon is None else perturbed(mine, epsilon)
    return float(fit(PerturbedNetwork(settings, graphs, label_party, perturbed=told)).summary["test_accuracy"])


def alone(dataset: str, seed: int) -> float:
    """Of the label holder by itself, with true labels: nothing leaves it."""
    settings = job(dataset, seed, None)
    graphs = paradigm_of(settings).data.load(settings).graphs
    return float(isolated(settings, graphs, settings.data.label_party).summary["test_accuracy"])


def horizontal_job(dataset: str, seed: int, epsilon: float | None) -> HorizontalJob:
    """Two holders of half of the nodes each, half of these trained with; all splits are drawn without the labels."""
    data = {
        "dataset": dataset,
        "holders": 2,
        "split": [0.5, 0.25, 0.25],
        "stratify": False,
        "partition": {"by": "nodes"},
    }
    private: dict[str, Any] = {} if epsilon is None else {"label_privacy": {"epsilon": epsilon}}
    return horizontal(parse_job({"paradigm": "horizontal", "seed": seed, "data": data, **private}))


def horizontal_accuracy(dataset: str, seed: int, epsilon: float | None) -> float:
    """Of the test nodes of both, against true labels; the epoch is chosen by perturbed ones."""
    settings = horizontal_job(dataset, seed, epsilon)
    parts = load_parts(settings.data, settings.seed)
    true = LayeredNetwork(settings.model, settings.train, parts, seed=settings.seed)
    if epsilon is None:
        return float(fit(true).summary["test_accuracy"])
    classes = parts[0].graph.num_classes or 0
    response = LabelResponse(epsilon, classes)
    told = [replace(part, graph=_perturbed(part.graph, response, perturbed_splits(settings))) for part in parts]
    network = LayeredNetwork(settings.model, settings.train, told, seed=settings.seed, transition=response.transition())
    return float(true.score(fit(network).output).values["test_accuracy"] or 0)


def averaging_job(dataset: str, seed: int) -> AveragingJob:
    """Four holders' job over one hop of each holder's edges, without noise."""
    data = {
        "dataset": dataset,
        "holders": 4,
        "split": [0.5, 0.25, 0.25],
        "stratify": False,
        "feature_scaling": "length",
    }
    model = {"dim": 16, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}}
    train = {"epochs": 60, "patience": None, "learning_rate": 0.01}
    said = {"data": data, "model": model, "train": train, "averaging": {"local_epochs": 5}}
    return averaging(parse_job({"paradigm": "averaging", "seed": seed, **said}))


def averaging_alone(dataset: str, seed: int) -> float:
    """Mean accuracy of the four, each by itself and on its own test nodes."""
    settings = averaging_job(dataset, seed)
    results = [alone_averaging(settings, part.graph, lambda _: None) for part in load_parts(settings.data, seed)]
    return fmean(result.summary["test_accuracy"] for result in results if result is not None)


def averaging_accuracy(dataset: str, seed: int, epsilon: float | None) -> float:
    """Of the test nodes of four, against true labels, at the round that is best by perturbed ones."""
    bare = averaging_job(dataset, seed)
    parts = [part.graph for part in load_parts(bare.data, seed)]
    settings, told = bare, parts
    if epsilon is not None:
        settings = bare.model_copy(update={"label_privacy": LabelPrivacySettings(epsilon=epsilon)})
        response = LabelResponse(epsilon, parts[0].num_classes or 0)
        told = [_perturbed(graph, response, perturbed_splits(settings)) for graph in parts]
    twin, best = PlainAveraging(settings, told), (-1.0, 0.0)
    for number in range(1, settings.train.epochs + 1):
        twin.round(number)
        best = max(best, (float(twin.scores().values["val_accuracy"] or 0), _right(twin, parts)))
    return best[1]


def _right(twin: PlainAveraging, parts: Sequence[PartyGraph]) -> float:
    right = total = 0
    for graph in parts:
        assert graph.labels is not None
        assert graph.test_mask is not None
        right += int((twin.infer(graph.party).argmax(dim=1) == graph.labels)[graph.test_mask].sum())
        total += int(graph.test_mask.sum())
    return right / total


def _perturbed(graph: PartyGraph, response: LabelResponse, splits: Sequence[str]) -> PartyGraph:
    nodes = nodes_perturbed(graph, splits)
    assert graph.labels is not None
    return with_perturbed(graph, response.release(graph.labels[nodes], system_secrets), splits)


def each_alone(dataset: str, seed: int) -> float:
    """Mean over the holders, each by itself, with true labels and on its own test nodes."""
    settings = horizontal_job(dataset, seed, None)
    results = [own_network(settings, part, lambda records: None) for part in load_parts(settings.data, settings.seed)]
    return fmean(float(result.summary["test_accuracy"]) for result in results if result is not None)


def measure(figures: Figures, sets: Sequence[str], seeds: Sequence[int]) -> None:
    """All that is not there yet."""
    for name in sets:
        for seed in seeds:
            for epsilon in EPSILONS:
                shown = "none" if epsilon is None else f"{epsilon:g}"
                figures.measure(f"{name}/label/{JOINT}/{shown}/{seed}", partial(accuracy, name, seed, epsilon))
                key = f"{name}/label/{HORIZONTAL}/{shown}/{seed}"
                figures.measure(key, partial(horizontal_accuracy, name, seed, epsilon))
                key = f"{name}/label/{AVERAGING}/{shown}/{seed}"
                figures.measure(key, partial(averaging_accuracy, name, seed, epsilon))
            key = f"{name}/label/{HOME}/none/{seed}"
            figures.measure(key, partial(averaging_alone, name, seed))
            figures.measure(f"{name}/label/{ALONE}/none/{seed}", partial(alone, name, seed))
            figures.measure(f"{name}/label/{OWN}/none/{seed}", partial(each_alone, name, seed))


def table(figures: Figures) -> list[str]:
    """Markdown: a row for each set."""
    heads = ["none" if epsilon is None else f"ε = {epsilon:g}" for epsilon in EPSILONS]
    lines = [f"| data | {' | '.join([*heads, 'alone, none'])} |", f"|---|{'---|' * (len(heads) + 1)}"]
    ways = ((JOINT, ALONE, "vertical"), (HORIZONTAL, OWN, "horizontal"), (AVERAGING, HOME, "averaging"))
    for way, own, said in ways:
        for name in figures.sets():
            cells = [shown(figures.of(name, "label", way, epsilon)) for epsilon in EPSILONS]
            lines.append(f"| {name}, {said} | {' | '.join([*cells, shown(figures.of(name, 'label', own, None))])} |")
    return lines


def main(arguments: list[str]) -> None:
    """Measures what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    given = parser.parse_args(arguments)
    figures = Figures(FIGURES)
    measure(figures, given.sets.split(","), range(FIRST_SEED, FIRST_SEED + given.seeds))
    sys.stdout.write("\n".join([*table(figures), ""]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
