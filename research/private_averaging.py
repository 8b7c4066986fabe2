"""Private training of paradigm averaging: accuracy against ε, beside no noise, each alone, and an ε of next to nothing.

``python -m research.private_averaging --data pubmed --seeds 3`` measures what docs/private-averaging.json lacks, and
``--table`` prints what is there. Nothing is chosen here but ``preset: auto`` and how many training nodes a holder has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch
import typer
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.twin import alone

from research.figures import NONE, Figures
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job

FIGURES: Final = Path(__file__).parent.parent / "docs" / "private-averaging.json"
TRAINING: Final[Mapping[str, int]] = {"pubmed": 2460, "facebook": 2800, "digits": 225, "cora": 340}
"""About how many training nodes each of four holders has, by the size of the set alone."""
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
CONTROL: Final = 0.01
ROUNDS: Final = 60
"""Of five epochs of Adam each, without noise."""
UNIT: Final = "node-edges"
ALONE: Final = "each alone"
AVERAGED: Final = "averaging"
SHARED: Final = "private"
HOME: Final = "private, then at home"
JOINT: Final = "private, noise made jointly"


def job(data: str, seed: int, more: Mapping[str, Any]) -> AveragingJob:
    """A job of four holders."""
    said = {"dataset": data, "holders": 4, "split": [0.5, 0.25, 0.25], "stratify": False, "feature_scaling": "length"}
    return averaging(parse_job({"paradigm": "averaging", "seed": seed, "data": said, **more}))


def private(data: str, seed: int, epsilon: float) -> AveragingJob:
    """With noise for an ε; all else is the preset's."""
    return job(
        data, seed, {"averaging": {"privacy": {"epsilon_total": epsilon, "delta": DELTA, "batch": TRAINING[data]}}}
    )


def joint(data: str, seed: int, epsilon: float) -> AveragingJob:
    """The same where all four make the noise, against the server and one of them."""
    given = {"epsilon_total": epsilon, "delta": DELTA, "batch": TRAINING[data], "joint_noise": {"colluding": 1}}
    return job(data, seed, {"averaging": {"threshold": 4, "privacy": given}})


def bare(data: str, seed: int) -> AveragingJob:
    """Without noise, and over one hop of each holder's edges; the best epoch by validation nodes."""
    model = {"dim": 16, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}}
    train = {"epochs": ROUNDS, "patience": None, "learning_rate": 0.01}
    return job(data, seed, {"model": model, "train": train, "averaging": {"local_epochs": 5}})


def graphs(settings: AveragingJob) -> list[PartyGraph]:
    """The holders'."""
    return [part.graph for part in load_parts(settings.data, settings.seed)]


def each_alone(data: str, seed: int) -> float:
    """Mean accuracy of the holders, each by itself and on its own test nodes, without noise."""
    settings = bare(data, seed)
    results = [alone(settings, graph, lambda records: None) for graph in graphs(settings)]
    return fmean(result.summary["test_accuracy"] for result in results if result is not None)


def averaged(data: str, seed: int) -> float:
    """Of averaging without noise: the best round by validation nodes, and accuracy over all holders."""
    settings = bare(data, seed)
    twin, best = PlainAveraging(settings, graphs(settings)), (-1.0, 0.0)
    for number in range(1, settings.train.epochs + 1):
        twin.round(number)
        scores = twin.scores().values
        best = max(best, (float(scores["val_accuracy"] or 0), float(scores["test_accuracy"] or 0)))
    return best[1]


class Trained:
    """A private training by the plaintext twin, made when it is first asked for."""

    def __init__(self, settings: AveragingJob) -> None:
        self._settings = settings
        self._found: tuple[float, float] | None = None

    def shared(self) -> float:
        """Accuracy over all holders of the weights that all have."""
        return self._both()[0]

    def home(self) -> float:
        """With what each learns at home."""
        return self._both()[1]

    def _both(self) -> tuple[float, float]:
        if self._found is None:
            twin = PlainAveraging(self._settings, graphs(self._settings))
            for number in range(1, self._settings.train.epochs + 1):
                twin.round(number)
            before = float(twin.scores().values["test_accuracy"] or 0)
            twin.finish()
            self._found = before, float(twin.scores().values["test_accuracy"] or 0)
        return self._found


def wanted(data: str, seed: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """Key of a figure → what measures it."""
    yield f"{data}/{UNIT}/{ALONE}/{NONE}/{seed}", partial(each_alone, data, seed)
    yield f"{data}/{UNIT}/{AVERAGED}/{NONE}/{seed}", partial(averaged, data, seed)
    for epsilon in (4.0, 16.0, 1.0, CONTROL, 8.0, 2.0):
        both = Trained(private(data, seed, epsilon))
        yield f"{data}/{UNIT}/{SHARED}/{epsilon:g}/{seed}", both.shared
        yield f"{data}/{UNIT}/{HOME}/{epsilon:g}/{seed}", both.home
    for epsilon in EPSILONS:
        yield f"{data}/{UNIT}/{JOINT}/{epsilon:g}/{seed}", Trained(joint(data, seed, epsilon)).shared


def table(figures: Figures, data: str) -> list[str]:
    """Markdown."""
    lines = [
        f"| {data} | the weights that all have | with what each learns at home | noise made jointly, t = 1 | σ | η |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for epsilon in (CONTROL, *EPSILONS):
        settings = private(data, 0, epsilon)
        assert settings.training_plan is not None
        both = (listed(figures.of(data, UNIT, way, epsilon)) for way in (SHARED, HOME, JOINT))
        noise, rate = settings.training_plan.multiplier, settings.train.learning_rate
        lines.append(f"| ε = {epsilon:g} | {' | '.join(both)} | {noise:.3g} | {rate:.3g} |")
    lines += [f"| {way}, no noise | {listed(figures.of(data, UNIT, way, None))} | | | | |" for way in (AVERAGED, ALONE)]
    return lines


def listed(values: Sequence[float]) -> str:
    """Of every seed."""
    return ", ".join(f"{value:.3f}" for value in values) or "–"


def main() -> None:
    """Measures, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=TRAINING, default=list(TRAINING))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="measure nothing, and print what is there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    for data in arguments.data:
        if arguments.table:
            typer.echo("\n".join([*table(figures, data), ""]))
            continue
        for seed in range(arguments.seeds):
            for key, made in wanted(data, seed):
                figures.measure(key, made)


if __name__ == "__main__":
    main()
