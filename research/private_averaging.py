"""Private training of paradigm averaging: what ε buys holders of nodes of their own, over a control of no ε.

``python -m research.private_averaging --sets pubmed --seeds 5`` measures what docs/figures/private-averaging.json
lacks, and ``--write`` puts the table into docs/explanation/averaging.md. Nothing is chosen here but ``preset: auto``.
Figures are test accuracies over all holders, of the
plaintext twin. A seed trains each holder's own network once, as that depends on no noise.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Final

import torch
from scipy.stats import t as student
from torch import Tensor
from veilgraph_averaging.at_home import ClassSums, at_home
from veilgraph_averaging.network import LinearNetwork, Own
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging

from docs.pages import figure_path, find_page
from research.figures import Figures, shown
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.dataset import load_parts
from veilgraph.protocol.job_file import parse_job

FIGURES: Final = figure_path("private-averaging.json")
PAGE: Final = find_page("averaging.md")
BEGIN: Final = "### What ε buys\n"
END: Final = "\n- **How.**"
DELTA: Final = 1e-5
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
CONTROL: Final = 1e-4
NO_NOISE: Final = math.inf
_LEAST_NOISE: Final = 1e-3
UNIT: Final = "node-edges"
OWN: Final = "own noise"
JOINT: Final = "noise made jointly"
BARE: Final = "own noise, weights of all"
"""Of a holder without labels."""


@dataclass(frozen=True)
class Set:
    """Data to measure on.

    Attributes:
        data: set of it.
        holders: how many.
        split: shares of training, validation and test nodes.
    """

    data: str
    holders: int
    split: tuple[float, float, float]


FEW_LABELS: Final = "pubmed, 10 holders, 5 % for training"
SETS: Final[Mapping[str, Set]] = {
    "pubmed": Set("pubmed", 4, (0.5, 0.25, 0.25)),
    FEW_LABELS: Set("pubmed", 10, (0.05, 0.05, 0.9)),
    "cora": Set("cora", 4, (0.5, 0.25, 0.25)),
    "digits": Set("digits", 4, (0.5, 0.25, 0.25)),
    "facebook": Set("facebook", 4, (0.5, 0.25, 0.25)),
}
SHOWN: Final = ((FEW_LABELS, OWN), (FEW_LABELS, JOINT), ("cora", JOINT), ("digits", JOINT))
"""Sets and ways that the page has: both ways where ε buys most, and the better one on two other kinds of data."""
SHOWN_EPSILONS: Final = (1.0, 2.0, 4.0, 8.0)


def job(name: str, seed: int, epsilon: float, *, joint: bool) -> AveragingJob:
    """With noise for an ε, all else being the preset's; ``joint``: all make it, against the server and one of them."""
    each = SETS[name]
    noise = {"epsilon_total": epsilon} if math.isfinite(epsilon) else {"noise_multiplier": _LEAST_NOISE}
    privacy: dict[str, Any] = {**noise, "delta": DELTA}
    given: dict[str, Any] = {"privacy": privacy}
    if joint:
        given |= {"threshold": each.holders}
        privacy |= {"joint_noise": {"colluding": 1}}
    data = {
        "dataset": each.data,
        "holders": each.holders,
        "split": each.split,
        "stratify": False,
        "feature_scaling": "length",
    }
    return averaging(parse_job({"paradigm": "averaging", "seed": seed, "data": data, "averaging": given}))


def every_way(name: str, seed: int) -> Iterator[tuple[str, float]]:
    """Way and ε → accuracy."""
    settings = job(name, seed, 1.0, joint=False)
    graphs = [part.graph for part in load_parts(settings.data, seed)]
    homes = dict[PartyId, tuple[ClassSums, LinearNetwork]]()
    for joint in (False, True):
        for epsilon in (CONTROL, *EPSILONS, *([] if joint else [NO_NOISE])):
            settings = job(name, seed, epsilon, joint=joint)
            twin = PlainAveraging(settings, graphs)
            for number in range(1, settings.train.epochs + 1):
                twin.round(number)
            scores = [twin.infer(graph.party) for graph in graphs]
            logits, whitened = list[Tensor](), list[Tensor]()
            for graph, averaged in zip(graphs, scores, strict=True):
                if graph.party not in homes:
                    own = twin.task.own(graph, LearningStreams(seed, graph.party))
                    homes[graph.party] = _begun(settings, twin, own, averaged)
                home, network = homes[graph.party]
                network.take(twin.network.vector())
                assert graph.val_mask is not None
                with torch.no_grad():
                    home.add_sums(graph.val_mask)
                    logits.append(home(averaged))
                    home.use_sums_alone()
                    whitened.append(home(averaged))
            masks, labels = [graph.test_mask for graph in graphs], [graph.labels for graph in graphs]
            for way, found in ((JOINT if joint else OWN, logits), (BARE, whitened)):
                if way != BARE or not joint:
                    yield f"{way}/{epsilon:g}", _accuracy(found, labels, masks)


def _begun(settings: AveragingJob, twin: PlainAveraging, own: Own, averaged: Tensor) -> tuple[ClassSums, LinearNetwork]:
    """What a holder has at home, and a network of its own to put sums into."""
    given, classes, streams = (
        settings.averaging.at_home,
        averaged.shape[1],
        LearningStreams(settings.seed, own.graph.party),
    )
    assert given is not None
    network = LinearNetwork(own.graph.num_features, classes, averaged.dtype)
    home = at_home(given, own, classes, streams, averaged.dtype, network)
    assert isinstance(home, ClassSums)
    network.take(twin.network.vector())
    home.learn(averaged)
    return home, network


def _accuracy(logits: Sequence[Tensor], labels: Sequence[Tensor | None], masks: Sequence[Tensor | None]) -> float:
    right = list[Tensor]()
    for scores, truth, mask in zip(logits, labels, masks, strict=True):
        assert truth is not None
        assert mask is not None
        right.append(scores[mask].argmax(1) == truth[mask])
    return float(torch.cat(right).double().mean())


def table(figures: Figures) -> list[str]:
    """Markdown: the control, and points above it, paired by seed, with 95 % intervals of the mean."""
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in SHOWN_EPSILONS)
    lines = [f"| data | noise | control | {heads} |", f"|---|---|---:|{'---:|' * len(SHOWN_EPSILONS)}"]
    for name, way in SHOWN:
        control = figures.of(name, UNIT, way, CONTROL)
        if control:
            cells = [_gain(control, figures.of(name, UNIT, way, epsilon)) for epsilon in SHOWN_EPSILONS]
            title = "the same" if lines[-1].startswith(f"| {name} |") else name
            lines.append(f"| {title} | {way} | {shown(control)} | {' | '.join(cells)} |")
    return lines


def _gain(control: Sequence[float], values: Sequence[float]) -> str:
    if not values:
        return "–"
    gains = [100 * (value - before) for value, before in zip(values, control, strict=True)]
    if len(gains) < 2:
        return f"{gains[0]:+.1f}"
    half = float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    return f"{fmean(gains):+.1f} ± {half:.1f}"


def main() -> None:
    """Measures, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=";".join(SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n".join(table(figures))
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
        return
    for name in arguments.sets.split(";"):
        for seed in range(arguments.seeds):
            if f"{name}/{UNIT}/{JOINT}/{EPSILONS[-1]:g}/{seed}" not in figures.found:
                for key, value in every_way(name, seed):
                    figures.measure(f"{name}/{UNIT}/{key}/{seed}", partial(float, value))


if __name__ == "__main__":
    main()
