"""GAP with all data pooled, its control at an ε of next to nothing, and sealed jobs: docs/reference/gap.md.

``python -m research.gap_beside --seeds 10`` measures what ``docs/figures/gap.json`` lacks, and goes on where it was cut
off; ``--sets cora`` that alone; ``--write`` puts the table into the page, whose figures of sealed jobs are of
``research.sealed_privacy``. With level ``node`` no node has more than D neighbours: edges beyond are left out before
all else.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from docs.pages import figure_path, find_page
from research import sealed_privacy
from research.figures import Figures, shown
from research.gap import gap_logits
from research.gap_sets import EPSILONS, LEVELS, SETS, Set, bounded, job_of
from research.gap_settings import settings_of
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of

FIGURES: Final = figure_path("gap.json")
PAGE: Final = find_page("gap.md")
BEGIN: Final = "## What was measured\n"
END: Final = "\n## How"
CONTROL: Final = 1e-4
GAP: Final = "GAP"
SHOWN: Final = {"edge": (1.0, 8.0), "node": (8.0,)}
"""Level → ε of the page's rows: a strong and a weak one. Level node has no sealed job beside it, so one is enough."""
OURS: Final = {
    "cora": sealed_privacy.CORA,
    "pubmed": "pubmed, public split",
    "facebook": "facebook",
    "amazon": "amazon",
}
"""Set → the same data, split and number of holders in ``research.sealed_privacy``."""


def measure(each: Set, levels: Sequence[str], seeds: Sequence[int], figures: Figures) -> None:
    """All of a set."""
    for seed in seeds:
        job = job_of(each, seed)
        whole = pool(paradigm_of(job).data.load(job).graphs, "A")
        for level in levels:
            for epsilon in (*EPSILONS, CONTROL, math.inf):
                key = f"{each.name}/{level}/{GAP}/{epsilon:g}/{seed}"
                figures.measure(key, partial(_gap, each, job, whole, level, epsilon))


def _gap(each: Set, job: JobSettings, whole: PartyGraph, level: str, epsilon: float) -> float:
    how = settings_of(each, level, epsilon, whole.num_nodes)
    bound = bounded(whole, each.bound) if level == "node" else whole
    objective = Objective(bound, job.train, torch.float32)
    scores = objective.score(gap_logits(bound, how, job.seed), everything=True).values
    return float(scores[f"test_{each.figure}"] or math.nan)


def table(figures: Figures) -> list[str]:
    """Markdown: what GAP reaches over its control, and sealed jobs over theirs."""
    lines = ["| data, figure | level | ε | GAP | control | ours | our control |", f"|---|---|{'---:|' * 5}"]
    for each in SETS:
        for level in LEVELS:
            control = figures.of(each.name, level, GAP, CONTROL)
            for epsilon in SHOWN[level]:
                cells = map(shown, (figures.of(each.name, level, GAP, epsilon), control, *_ours(each, level, epsilon)))
                figure = each.figure.replace("auc", "AUC")
                lines.append(f"| {each.name}, {figure} | {level} | {epsilon:g} | {' | '.join(cells)} |")
    return lines


def _ours(each: Set, level: str, epsilon: float) -> Sequence[Sequence[float]]:
    """Figures of sealed jobs at ε and of their control; none of level node, and of sets that have none."""
    if level == "node" or each.name not in OURS:
        return [], []
    of = partial(sealed_privacy.of, OURS[each.name], "margins")
    return of(f"{epsilon:g}"), of(f"{sealed_privacy.CONTROL:g}")


def written(page: str, figures: Figures) -> str:
    """The page with the table of what was measured in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(table(figures)) + "\n" + END + after


def main() -> None:
    """Measures, and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(each.name for each in SETS))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
        return
    wanted = arguments.sets.split(",")
    for each in SETS:
        if each.name in wanted:
            measure(each, arguments.levels.split(","), range(arguments.seeds), figures)


if __name__ == "__main__":
    main()
