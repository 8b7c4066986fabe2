"""The curves that ``veilgraph budget`` shows, of what was measured: ``python -m research.expected``.

It measures nothing. What it takes are the means of ``research.label_privacy``,
``research.sealed_privacy``, ``research.private_averaging`` and ``research.node_dp_edges``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, Final

from research import label_privacy, node_dp_edges, private_averaging, sealed_privacy
from research.figures import Figures
from veilgraph.core.files import write_whole
from veilgraph.report.noise import CURVES

_LABELS: Final = {
    "labels": (label_privacy.JOINT, label_privacy.ALONE),
    "labels, horizontal": (label_privacy.HORIZONTAL, label_privacy.OWN),
    "labels, averaging": (label_privacy.AVERAGING, label_privacy.HOME),
}

_TRAINED: Final = {
    "class sums, then at home": private_averaging.OWN,
    "class sums with joint noise, then at home": private_averaging.JOINT,
}


def made() -> dict[str, Any]:
    """What the file has."""
    labels = Figures(label_privacy.FIGURES)
    return {"curves": [*_of_labels(labels), *_of_votes(), *_of_training(), *_of_learners()]}


def _of_labels(figures: Figures) -> Iterator[dict[str, Any]]:
    for of_way, (way, own) in _LABELS.items():
        for name in figures.sets():
            of = {epsilon: figures.of(name, "label", way, epsilon) for epsilon in label_privacy.EPSILONS}
            alone, without = figures.of(name, "label", own, None), of.pop(None)
            points = {epsilon: values for epsilon, values in of.items() if epsilon is not None}
            if alone and without and all(points.values()):
                yield _curve(of_way, name, "accuracy", alone, without, [], points)


def _of_votes() -> Iterator[dict[str, Any]]:
    for (name, each), output in product(sealed_privacy.SETS.items(), sealed_privacy.OUTPUTS):
        of = partial(sealed_privacy.of, name, output)
        points = {epsilon: of(f"{epsilon:g}") for epsilon in sealed_privacy.EPSILONS}
        alone, without = of(sealed_privacy.ALONE), of(f"{sealed_privacy.NO_NOISE:g}")
        control, figure = of(f"{sealed_privacy.CONTROL:g}"), each.figure.replace("auc", "AUC")
        if alone and without and control and all(points.values()):
            way = "sealed, noise on votes" + ", classes alone" * (output == "classes")
            yield _curve(way, name, figure, alone, without, control, points, of(sealed_privacy.BARE))


def _of_training() -> Iterator[dict[str, Any]]:
    figures = Figures(private_averaging.FIGURES)
    for name_of_way, way in _TRAINED.items():
        for name in figures.sets():
            of = partial(figures.of, name, private_averaging.UNIT)
            points = {epsilon: of(way, epsilon) for epsilon in private_averaging.EPSILONS}
            control, without = of(way, private_averaging.CONTROL), of(private_averaging.OWN, private_averaging.NO_NOISE)
            if without and control and all(points.values()):
                yield _curve(name_of_way, name, "accuracy", control, without, control, points)


def _of_learners() -> Iterator[dict[str, Any]]:
    of = partial(Figures(node_dp_edges.FIGURES).of, "cora", "edge")
    points = {epsilon: of(f"{node_dp_edges.SHOWN} hops", epsilon) for epsilon in node_dp_edges.EPSILONS}
    alone, without = of(node_dp_edges.ALONE, None), of(f"{node_dp_edges.SHOWN} hops", None)
    if alone and without and all(points.values()):
        data = f"cora, features at ε = {node_dp_edges.FEATURES:g}"
        yield _curve("node-dp, noise on the learner's edges", data, "accuracy", alone, without, alone, points)


def _curve(
    way: str,
    data: str,
    figure: str,
    alone: list[float],
    without: list[float],
    control: list[float],
    points: dict[float, list[float]],
    unprotected: list[float] = [],  # noqa: B006 - read alone
) -> dict[str, Any]:
    return {
        "way": way,
        "data": data,
        "figure": figure,
        "seeds": min(map(len, (without, *([control] if control else []), *points.values()))),
        "alone": round(fmean(alone), 4),
        "without": round(fmean(without), 4),
        "control": round(fmean(control), 4) if control else None,
        "points": {f"{epsilon:g}": round(fmean(values), 4) for epsilon, values in points.items()},
        "unprotected": round(fmean(unprotected), 4) if unprotected else None,
    }


if __name__ == "__main__":
    write_whole(CURVES, (json.dumps(made(), indent=1) + "\n").encode())
