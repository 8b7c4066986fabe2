"""Lower bounds on ε from canaries, for every unit and paradigm that claims one: docs/reference/canaries.md.

``python -m research.canary_bounds`` measures what ``docs/figures/canaries.json`` lacks, and goes on where it was cut
off; ``--only averaging`` the settings with that in their name; ``--write`` puts the table into the page. All bounds of
the table together hold with 95 %: each by itself is wrong with a probability of at most 0.05 over their number.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from docs.pages import figure_path, find_page
from research.canaries.game import Bound, Game, in_one_run, repeated
from research.canaries.gradients import Gradients
from research.canaries.hops import Opinions
from research.canaries.nodes import Features, GaussianFeatures, Labels
from research.canaries.votes import Votes
from research.figures import Figures

FIGURES: Final = figure_path("canaries.json")
PAGE: Final = find_page("canaries.md")
BEGIN: Final = "## What was measured\n"
END: Final = "\n## How"
EPSILONS: Final = (1.0, 4.0)
TRIALS: Final = 400_000
FEWER = 100_000
"""Where a trial takes longer."""
CANARIES: Final = 4000


@dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: the job, and what it releases.
        unit: what ε is about, and the relation.
        made: ε → the game.
        trials: in each world.
    """

    name: str
    unit: str
    made: Callable[[float], Game]
    trials: int = TRIALS


def _by(kind: Callable[..., Game], **said: object) -> Callable[[float], Game]:
    return lambda epsilon: kind(epsilon=epsilon, **said)


def _both(epsilon: float) -> Game:
    return Features(epsilon=epsilon / 2, labelled=True)


OPINIONS: Final = partial(_by, Opinions, hops=2)
SETTINGS: Final = (
    Setting("vertical, private labels", "label, replacement", _by(Labels)),
    Setting("node-dp, multi-bit", "node, replacement", _by(Features)),
    Setting("node-dp, one-bit", "node, replacement", _by(Features, mechanism="one-bit")),
    Setting("node-dp, laplace", "node, replacement", _by(Features, mechanism="laplace")),
    Setting("node-dp, gaussian", "node, replacement", _by(GaussianFeatures)),
    Setting("node-dp, multi-bit, and its label", "node and label, replacement", _both),
    Setting("node-dp, sums of opinions", "edge, replacement", OPINIONS()),
    Setting(
        "node-dp, sums of opinions, D = 4", "node-edges, zero-out",
        OPINIONS(unit="node-edges", neighbours="zero-out"),
    ),
    Setting("node-dp, sums of opinions, D = 4", "node-edges, replacement", OPINIONS(unit="node-edges")),
    Setting("averaging, 4 rounds, q = 0.25, D = 2", "node-edges, zero-out", _by(Gradients)),
    Setting(
        "averaging, 4 rounds, q = 0.25, D = 2", "node-edges, replacement", _by(Gradients, neighbours="replacement")
    ),
    Setting("averaging, 4 rounds, q = 0.25, no edges", "node-edges, zero-out", _by(Gradients, hops=0)),
    Setting("sealed, votes", "edge, replacement", _by(Votes), FEWER),
)  # fmt: skip
WAYS: Final[dict[str, Callable[[Setting, Game, float], Bound]]] = {
    "trials": lambda each, game, confidence: repeated(game, each.trials, confidence),
    "run": lambda each, game, confidence: in_one_run(game, CANARIES, confidence),
}
CONFIDENCE: Final = 1 - 0.05 / (len(SETTINGS) * len(EPSILONS) * len(WAYS))


def key_of(each: Setting, epsilon: float, way: str) -> str:
    """Of a figure."""
    return f"{each.name}; {each.unit}/{epsilon:g}/{way}"


def measure(settings: list[Setting], figures: Figures) -> None:
    """Plays what was not played yet.

    Raises:
        RuntimeError: more is proven than is claimed.
    """
    for each, epsilon, way in itertools.product(settings, EPSILONS, WAYS):
        figures.measure(key_of(each, epsilon, way), partial(_proven, each, epsilon, way))


def _proven(each: Setting, epsilon: float, way: str) -> float:
    bound = WAYS[way](each, each.made(epsilon), CONFIDENCE)
    if bound.epsilon > bound.claim:
        raise RuntimeError(f"ε is at least {bound.epsilon:.4g}, and the ledgers say {bound.claim:.4g}")
    return bound.epsilon


def table(figures: Figures) -> Iterator[str]:
    """Its lines."""
    yield "| job | ε is about | δ | ε = 1: trials | one run | ε = 4: trials | one run |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for each in SETTINGS:
        delta = each.made(1.0).delta
        cells = [figures.found.get(key_of(each, epsilon, way)) for epsilon in EPSILONS for way in WAYS]
        shown = " | ".join("–" if cell is None else f"{cell:.2f}" for cell in cells)
        yield f"| {each.name} | {each.unit} | {f'{delta:.0e}' if delta else '0'} | {shown} |"


def written(page: str, figures: Figures) -> str:
    """The page with the table of what was measured in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(table(figures)) + "\n" + END + after


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
        return
    measure([each for each in SETTINGS if arguments.only in each.name], figures)


if __name__ == "__main__":
    main()
