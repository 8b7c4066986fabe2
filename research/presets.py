"""Accuracy of ``preset: auto`` beside ``paper``, tuned jobs and each holder alone: docs/guides/presets.md.

``python -m research.presets --seeds 5 --trials 30`` measures what ``docs/figures/presets.json`` lacks, and goes on
where it was cut off; ``--sets digits,cora`` that alone; ``--write`` puts the table into the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
import torch
from veilgraph_tuning.proposing import propose
from veilgraph_tuning.space import Options, Space, Span, Value
from veilgraph_tuning.spaces import space_of as paradigm_space
from veilgraph_tuning.trials import Trial

from docs.pages import figure_path, find_page
from veilgraph import __version__
from veilgraph.comparison.plain import boosting
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import holder_alone
from veilgraph.paradigms.vertical.twin import PlainNetwork, isolated
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.samples.shipped import replaced

FIGURES: Final = figure_path("presets.json")
PAGE: Final = find_page("presets.md")
BEGIN: Final = "## What it reaches\n"
END: Final = "\n- Test nodes"
"""Of the page, around the table."""

FIRST_SEED: Final = 10
"""The choice was made with seeds 0, 1 and 2: worlds, graphs, divisions and splits of these are others."""
_TRIALS_SEED: Final = FIRST_SEED
AUTO, PAPER, TUNED, ALONE, BOOSTING = "auto", "paper", "tuned", "A alone", "A: boosting"
WAYS: Final = (AUTO, PAPER, TUNED, ALONE, BOOSTING)


@dataclass(frozen=True)
class Set:
    """Data to measure on.

    Attributes:
        name: in the table.
        data: of its jobs.
        figure: AUC of two classes, accuracy of more.
        chosen_on: whether the choice looked at its validation nodes.
    """

    name: str
    data: Mapping[str, Any]
    figure: str
    chosen_on: bool


def _blocks(**said: object) -> dict[str, Any]:
    made = {"nodes": 2000, "classes": 4, "features": 32, **said}
    return {"dataset": "block-model", "holders": 2, "block_model": made}


_PAYMENTS: Final = {"customers": 8000, "transfers": 80_000}
SETS: Final = (
    Set("digits", {"dataset": "digits", "holders": 2}, "accuracy", chosen_on=True),
    Set("homophily 0.8", _blocks(homophily=0.8), "accuracy", chosen_on=True),
    Set("homophily 0.1", _blocks(homophily=0.1, signal=1.5), "accuracy", chosen_on=True),
    Set("payments", {"dataset": "payments", "holders": 3, "payments": _PAYMENTS}, "auc", chosen_on=True),
    Set("cora", {"dataset": "cora", "holders": 2}, "accuracy", chosen_on=True),
    Set("amazon", {"dataset": "amazon", "holders": 3}, "auc", chosen_on=True),
    Set("acm", {"dataset": "acm", "holders": 2}, "accuracy", chosen_on=False),
    Set("facebook", {"dataset": "facebook", "holders": 2}, "accuracy", chosen_on=False),
    Set("github", {"dataset": "github", "holders": 2}, "auc", chosen_on=False),
)
SHOWN: Final = ("digits", "homophily 0.1", "payments", "cora", "acm", "github")
"""Rows of the page: each kind of data, and all sets that miss the aim."""


class Figures:
    """What was measured: ``set/way/seed`` → test figure, and the trials of each set; kept after every one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.found: dict[str, float] = content.get("test", {})
        self._trials: dict[str, list[dict[str, Any]]] = content.get("trials", {})

    def measure(self, key: str, made: Callable[[], float]) -> None:
        """Measures what is not there yet."""
        if key not in self.found:
            started = time.perf_counter()
            self.found[key] = round(made(), 4)
            self._keep()
            sys.stderr.write(f"{key}: {self.found[key]:.4f} ({time.perf_counter() - started:.0f} s)\n")

    def trials(self, name: str) -> list[Trial]:
        """Those of a set so far."""
        known = self._trials.get(name, [])
        return [Trial(**{**each, "curve": {int(k): v for k, v in each["curve"].items()}}) for each in known]

    def tried(self, name: str, trial: Trial) -> None:
        """One more."""
        self._trials.setdefault(name, []).append(asdict(trial))
        self._keep()
        sys.stderr.write(f"{name}, trial {trial.number}: {trial.ending} {trial.values} ({trial.seconds:.0f} s)\n")

    def best(self, name: str) -> Trial | None:
        """The trial of a set that reached most on its validation nodes so far."""
        complete = [trial for trial in self.trials(name) if trial.ending == "complete"]
        return max(complete, key=lambda trial: trial.value, default=None)

    def key(self, name: str, way: str) -> str:
        """Of a way's figures, but for the seed; of the best trial, with its number: a later one may be better."""
        best = self.best(name) if way == TUNED else None
        return f"{name}/{way}" if best is None else f"{name}/{way} {best.number}"

    def of(self, name: str, way: str) -> dict[int, float]:
        """Seed → figure."""
        prefix = f"{self.key(name, way)}/"
        return {int(key.removeprefix(prefix)): value for key, value in self.found.items() if key.startswith(prefix)}

    def _keep(self) -> None:
        content = {"version": __version__, "torch": torch.__version__, "test": self.found, "trials": self._trials}
        write_whole(self._path, (json.dumps(content, indent=1) + "\n").encode())


class _Behind(Exception):
    """A trial is given up."""


def job_of(each: Set, seed: int, preset: str = "auto", settings: Mapping[str, Value] | None = None) -> JobSettings:
    """The job of a set that says nothing but its data, and what a trial says: the preset chooses the rest."""
    content = {"preset": preset, "seed": seed, "data": dict(each.data)}
    return parse_job(replaced(content, settings or {}, whole=False))


def space_of(job: JobSettings) -> Space:
    """What ``veilgraph tune`` varies by itself, and what presets choose."""
    return {
        **paradigm_space(job),
        "model.local.model": Options(("sage-mean", "sage-vpa", "gcn", "gin", "appnp")),
        "model.local.activation": Options(("relu", "tanh")),
        "model.local.normalize": Options((True, False)),
        "model.server.layers": Span(0, 2, whole=True),
        "train.class_weights": Options(("none", "balanced")),
    }


def measure(each: Set, seeds: Sequence[int], trials: int, figures: Figures) -> None:
    """All ways of a set."""
    graphs_of = _Graphs()

    def trained(job: JobSettings) -> float:
        return _test(fit(_network(job, graphs_of(job))).summary, each)

    def boosted(job: JobSettings) -> float:
        own = holder_alone(graphs_of(job), "A", "A")
        likely = boosting(own, job.seed, balanced=job.train.class_weights == "balanced")
        logits = torch.from_numpy(np.log(np.clip(likely, 1e-12, None)))
        objective = Objective(own, job.train, torch.float64)
        return _test(objective.score(logits, everything=True).values, each)

    def alone(job: JobSettings) -> float:
        return _test(isolated(job, graphs_of(job), "A").summary, each)

    for seed in seeds:
        auto, paper = job_of(each, seed), job_of(each, seed, "paper")
        for way, made, job in ((AUTO, trained, auto), (PAPER, trained, paper), (ALONE, alone, auto)):
            figures.measure(f"{each.name}/{way}/{seed}", partial(made, job))
        figures.measure(f"{each.name}/{BOOSTING}/{seed}", partial(boosted, auto))
    best = tuned(each, trials, figures, graphs_of)
    for seed in seeds:
        if best is None:
            return
        job = job_of(each, seed, settings=best)
        figures.measure(f"{figures.key(each.name, TUNED)}/{seed}", partial(trained, job))


def tuned(each: Set, trials: int, figures: Figures, graphs_of: _Graphs) -> Mapping[str, Value] | None:
    """Settings that reached most on the validation nodes of one seed, of so many trials; the first is ``auto``."""
    base = job_of(each, _TRIALS_SEED)
    space = space_of(base)
    for number in range(len(figures.trials(each.name)), trials):
        figures.tried(each.name, _tried(each, base, space, number, figures.trials(each.name), graphs_of))
    best = figures.best(each.name)
    return None if best is None else best.settings


def _tried(
    each: Set, base: JobSettings, space: Space, number: int, earlier: Sequence[Trial], graphs_of: _Graphs
) -> Trial:
    """As a trial of ``veilgraph_tuning``, by the plaintext twin."""
    proposal = propose(space, earlier, base.seed, base.train.epochs) if number else None
    settings = {} if proposal is None else proposal.settings
    curve, started, key = dict[int, float](), time.perf_counter(), f"val_{each.figure}"
    try:
        job = job_of(each, base.seed, settings=settings)
    except ConfigError as error:  # settings that do not go together
        return Trial(number, settings, "failed", (), curve, time.perf_counter() - started, str(error))

    def watch(records: list[dict[str, Any]]) -> None:
        found = records[-1].get(f"val_{job.train.select_by}")
        if found is None:
            return
        curve[records[-1]["epoch"]] = found
        if proposal is not None and proposal.falls_behind(records[-1]["epoch"], found):
            raise _Behind

    try:
        summary = fit(_network(job, graphs_of(job)), watch).summary
    except _Behind:
        return Trial(number, settings, "pruned", (), curve, time.perf_counter() - started)
    return Trial(number, settings, "complete", (summary[key],), curve, time.perf_counter() - started)


class _Graphs:
    """The holders' graphs of a job, kept for the next of the same data."""

    def __init__(self) -> None:
        self._kept: tuple[str, list[PartyGraph]] = ("", [])

    def __call__(self, job: JobSettings) -> list[PartyGraph]:
        key = f"{job.seed} {job.data.model_dump_json()}"
        if self._kept[0] != key:
            self._kept = (key, list(paradigm_of(job).data.load(job).graphs))
        return self._kept[1]


def _network(job: JobSettings, graphs: Sequence[PartyGraph]) -> PlainNetwork:
    return PlainNetwork(job, graphs, job.data.label_party)


def _test(summary: Mapping[str, Any], each: Set) -> float:
    return float(summary[f"test_{each.figure}"])


def table(figures: Figures) -> list[str]:
    """Markdown: a row for each set of ``SHOWN`` with anything measured."""
    head = "| data set | figure | auto | paper | best of the trials | A alone | A: boosting |"
    lines = [head, "|---|---|---:|---:|---:|---:|---:|"]
    return lines + [line for each in SETS if each.name in SHOWN for line in _line(each, figures)]


def _line(each: Set, figures: Figures) -> Iterator[str]:
    found = {way: figures.of(each.name, way) for way in WAYS}
    if not found[AUTO]:
        return
    shown = [_shown(list(found[way].values())) for way in WAYS]
    name = each.name if each.chosen_on else f"{each.name} (held out)"
    yield f"| {' | '.join([name, each.figure.replace('auc', 'AUC'), *shown])} |"


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def written(page: str, figures: Figures) -> str:
    """The page with the table of what was measured in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(table(figures)) + "\n" + END + after


def main() -> None:
    """Measures, and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(each.name for each in SETS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=30)
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
            measure(each, range(FIRST_SEED, FIRST_SEED + arguments.seeds), arguments.trials, figures)


if __name__ == "__main__":
    main()
