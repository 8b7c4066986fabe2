"""Releases with noise in every hop, beside GAP with all data in one place: docs/gap.md.

``python -m research.gap_beside --seeds 10`` measures what ``docs/gap.json`` lacks, and goes on where it was cut off;
``--sets cora`` that alone, ``--ways GAP`` without ours; ``--write`` puts the tables into the page. With level ``node``
no node has more than D neighbours at a holder that releases, and in GAP's graph: edges beyond are left out before all
else.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import torch

from research.figures import Figures, shown
from research.gap import gap_logits
from research.gap_sets import EPSILONS, LEVELS, SETS, Set, bounded, job_of
from research.gap_settings import settings_of
from veilgraph.core.tensor_file import Record
from veilgraph.graph.partition import pool
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.once import LearningHolder
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Point
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Judgement, Objective
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import Role
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import party as computing
from veilgraph.runtime.session.training import fit, infer
from veilgraph.runtime.store.checkpoints import Checkpoints

DOCS: Final = Path(__file__).parent.parent / "docs"
FIGURES: Final = DOCS / "gap.json"
PAGE: Final = DOCS / "gap.md"
BEGIN: Final = "## What was measured\n"
END: Final = "\n## How"
CONTROL: Final = 1e-4
OURS, CLEAR, GAP = WAYS = ("ours", "own rows in the clear", "GAP")
ALONE: Final = "A alone"


class OwnNetwork:
    """What A's own network learned of a set with a seed: the same at every ε, as epochs are chosen by it alone.

    Where it is given the others' columns it is another one.
    """

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.judgement = Judgement()
        self.alone: dict[str, float | None] = {}

    def fit(
        self,
        role: Role,
        checkpoints: Checkpoints,
        held: Sequence[Point],
        *,
        begin: Callable[[int, int], None],
        log: Callable[[Record], None],
        done: Callable[[int, bool], None],
    ) -> tuple[int, Judgement]:
        """In place of ``run.fitting.fit``: trains the label holder's own network the first time alone."""
        if not isinstance(role, LearningHolder):
            return fit(role, checkpoints, held, begin=begin, log=log, done=done)
        if self.weights:
            agreed = role.setup(held)
            checkpoints.begin(agreed)
            role.keep()
            begin(agreed.epoch, role.session.settings.train.epochs)
            log({"epoch": self.judgement.best_epoch, "step_seconds": 0.0})
            role.model.load_weights({**role.model.weights(), **self.weights})
            role.finish()
            role.infer_only()
            infer(role, 0)
            started = agreed.epoch
        else:
            started, self.judgement = fit(role, checkpoints, held, begin=begin, log=log, done=done)
            own = {name: tensor for name, tensor in role.model.weights().items() if not name.startswith("joint.")}
            self.weights = {name: tensor.detach().clone() for name, tensor in own.items()}
        assert role._alone is not None
        self.alone = dict(role._objective.score(role._alone, everything=True).values)
        return started, self.judgement

    @contextmanager
    def used(self) -> Iterator[None]:
        """Jobs that are trained inside, in threads of this process, train it once together."""
        with mock.patch.object(computing, "fit", self.fit):
            yield


def measure(
    each: Set, levels: Sequence[str], seeds: Sequence[int], figures: Figures, ways: Sequence[str] = WAYS
) -> None:
    """These ways of a set."""
    for seed in seeds:
        loaded = job_of(each, "edge", math.inf, seed)
        graphs = paradigm_of(loaded).data.load(loaded).graphs
        whole, own, given = pool(graphs, "A"), OwnNetwork(), OwnNetwork()
        for level in levels:
            for epsilon in (*EPSILONS, CONTROL, math.inf):
                key = f"{each.name}/{level}/{{}}/{epsilon:g}/{seed}"
                job = job_of(each, level, epsilon, seed)
                if CLEAR in ways and level == "edge":
                    clear = job_of(each, level, epsilon, seed, "clear")
                    figures.measure(key.format(CLEAR), partial(_ours, each, clear, graphs, figures, level, given))
                if OURS in ways:
                    figures.measure(key.format(OURS), partial(_ours, each, job, graphs, figures, level, own))
                if GAP in ways and epsilon != CONTROL:
                    figures.measure(key.format(GAP), partial(_gap, each, job, whole, level, epsilon))


def _ours(
    each: Set, job: JobSettings, graphs: Sequence[PartyGraph], figures: Figures, level: str, own: OwnNetwork
) -> float:
    if level == "node":
        graphs = [bounded(graph, each.bound) if graph.party in job.duties.publishing else graph for graph in graphs]
    with tempfile.TemporaryDirectory() as folder, own.used():
        summary = train(job, Path(folder) / "run", parties={graph.party: graph for graph in graphs}).summary
    if not vertical(job).gives_columns:
        figures.measure(
            f"{each.name}/{level}/{ALONE}/0/{job.seed}", lambda: float(own.alone[f"test_{each.figure}"] or math.nan)
        )
    return float(summary[f"test_{each.figure}"])


def _gap(each: Set, job: JobSettings, whole: PartyGraph, level: str, epsilon: float) -> float:
    how = settings_of(each, level, epsilon, whole.num_nodes)
    bound = bounded(whole, each.bound) if level == "node" else whole
    objective = Objective(bound, job.train, torch.float32)
    scores = objective.score(gap_logits(bound, how, job.seed), everything=True).values
    return float(scores[f"test_{each.figure}"] or math.nan)


def tables(figures: Figures) -> list[str]:
    """Markdown: a table for each set and level with anything measured."""
    return [line for each in SETS for level in LEVELS for line in _table(each, level, figures)]


def _table(each: Set, level: str, figures: Figures) -> Iterator[str]:
    if not figures.of(each.name, level, OURS, math.inf):
        return
    heads = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    bound = f", D = {each.bound}" if level == "node" else ""
    figure = each.figure.replace("auc", "AUC")
    yield f"**{each.name}, level {level}{bound}**: {figure} on test nodes, {each.holders} holders"
    yield ""
    yield f"| | seeds | {' | '.join(heads)} | no noise |"
    yield f"|---|{'---:|' * (len(heads) + 2)}"
    clear = {CLEAR: "the same, own rows in the clear"} if level == "edge" else {}
    for way, words in {OURS: "once, noise in every hop", **clear, GAP: "GAP, all data in one place"}.items():
        found = [figures.of(each.name, level, way, epsilon) for epsilon in (*EPSILONS, math.inf)]
        yield f"| {words} | {_counted(found)} | {' | '.join(map(shown, found))} |"
    for way, words in {OURS: "control", **dict.fromkeys(clear, "control, own rows in the clear")}.items():
        control = figures.of(each.name, level, way, CONTROL)
        yield f"| {words}, ε = {CONTROL:g} | {len(control)} | {' | '.join([shown(control)] * len(EPSILONS))} | – |"
    alone = figures.of(each.name, level, ALONE, 0)
    yield f"| A alone, the same training | {len(alone)} | {' | '.join([shown(alone)] * (len(EPSILONS) + 1))} |"
    yield ""


def _counted(found: Sequence[Sequence[float]]) -> str:
    """How many seeds the figures of a line are of."""
    fewest, most = min(map(len, found)), max(map(len, found))
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def written(page: str, figures: Figures) -> str:
    """The page with the tables of what was measured in their place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(tables(figures)).rstrip() + "\n" + END + after


def main() -> None:
    """Measures, and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(each.name for each in SETS))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="measure these alone")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the tables into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = Figures(FIGURES)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
        return
    wanted = arguments.sets.split(",")
    for each in SETS:
        if each.name in wanted:
            measure(each, arguments.levels.split(","), range(arguments.seeds), figures, arguments.ways)


if __name__ == "__main__":
    main()
