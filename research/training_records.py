"""Sealed jobs with noise on training records, or one bit a node: what they gain at several ε: sealed.md.

``python -m research.training_records --seeds 10`` measures what ``docs/figures/training-records.json`` lacks, with
``--unit node`` what ``docs/figures/node-bits.json`` does; ``--sets "amazon;S-FFSD"`` measures these sets alone;
``--write`` puts the table into the page. Figures are the twin's, which computes what the parties do. The label holder's
own model is fitted once a seed; each ε draws its noise anew. Columns of tables are put on 0 to 1 by their 0.1 % and
99.9 % quantiles, which stand for the ranges that a party file declares.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import torch
from scipy.stats import t as student
from torch import Tensor

from docs.pages import figure_path, find_page
from research import sealed_privacy
from research.card_payments import organisations
from research.sealed_peers import WORLDS
from veilgraph import __version__
from veilgraph.core.files import write_whole
from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.inputs import own_data, plan_of
from veilgraph.paradigms.sealed.plan import Context, Sizes
from veilgraph.paradigms.sealed.programs import program_of
from veilgraph.paradigms.sealed.records.home import Home, with_residuals
from veilgraph.paradigms.sealed.records.rows import outputs_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.privacy.accountant import analytic_multiplier, gaussian_epsilon
from veilgraph.privacy.plan import NodePlan
from veilgraph.privacy.settings import fitting_delta
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of

PAGE: Final = find_page("sealed.md")
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
CONTROL: Final = 1e-4
NO_NOISE: Final = math.inf
ALONE: Final = "A alone"
_WORLD: Final = WORLDS[0]
_FEW_SEEDS: Final = 5
_WIDE: Final = 100


@dataclass(frozen=True)
class Set:
    """Data to measure on; ``figure``: AUC of two classes, accuracy of more."""

    name: str
    data: Mapping[str, Any]
    figure: str = "accuracy"
    most_seeds: int = 10


@dataclass(frozen=True)
class Way:
    """A unit of ε, its figures, the heading of its table, what follows that, how to measure it, and a note below."""

    unit: str
    figures: Path
    begin: str
    end: str
    command: str
    note: str = ""


RECORDS: Final = Way(
    "training-record",
    figure_path("training-records.json"),
    "### What it adds\n",
    "\n## One bit a node",
    "python -m research.training_records --seeds 10",
)
NODES: Final = Way(
    "node",
    figure_path("node-bits.json"),
    "### What a bit adds\n",
    "\n## Across organisations",
    "python -m research.training_records --unit node --seeds 10",
    " The threshold was chosen on Amazon's seeds 0 to 5, with test figures in sight: at ε = 4 it added 2.6 points, one "
    "of 0 added 1.1, one bit of all holders together 2.0.",
)
CARDS: Final = "S-FFSD"
SETS: Final = {
    each.name: each
    for each in (
        Set("amazon", {"dataset": "amazon", "holders": 3}, "auc"),
        Set(CARDS, {"dataset": "synthetic", "holders": 3}, "auc"),
        Set("payments, larger", _WORLD.data, "auc"),
        Set("pubmed, 75/10/15", {"dataset": "pubmed", "holders": 2, "split": [0.75, 0.10, 0.15]}),
        Set("facebook", {"dataset": "facebook", "holders": 2}, most_seeds=_FEW_SEEDS),
    )
}


def job_of(name: str, seed: int) -> SealedJob:
    """The job on a set, at ε = 1."""
    content: dict[str, Any] = {
        "paradigm": "sealed",
        "preset": "auto",
        "seed": seed,
        "data": dict(SETS[name].data),
        "privacy": {"unit": "training-record", "epsilon_total": 1},
    }
    return sealed(parse_job(content))


def graphs_of(name: str, seed: int) -> list[PartyGraph]:
    """What the holders have, columns of tables from 0 to 1; the label holder's comes first."""
    job = job_of(name, seed)
    if name == CARDS:
        graphs = organisations(Path(os.environ["VEILGRAPH_DATA"]), seed)
    else:
        graphs = list(paradigm_of(job).data.load(job).graphs)
    return [each if each.num_features > _WIDE else replace(each, features=_ranged(each.features)) for each in graphs]


def _ranged(features: Tensor) -> Tensor:
    columns = features.to_dense().double()
    ends = torch.quantile(columns, torch.tensor([0.001, 0.999], dtype=torch.float64), dim=0)
    return ((columns - ends[0]) / (ends[1] - ends[0]).clamp_min(1e-9)).clamp(0, 1)


def at_every_epsilon(way: Way, name: str, seed: int) -> dict[str, float]:
    """ε → figure on test nodes, and the label holder's own."""
    graphs, job = graphs_of(name, seed), job_of(name, seed)
    own, nodes = graphs[0].common_part(), graphs[0].common
    assert own.labels is not None
    classes = own.num_classes or int(own.labels.max()) + 1
    objective, home = Objective(own, job.train, torch.float64), Home(own, classes)
    opinions, delta = home.opinions(), fitting_delta(nodes)
    data = {graph.party: own_data(job, graph) for graph in graphs}
    columns = {graph.party: graph.num_features for graph in graphs}
    training = 0 if own.train_mask is None else int(own.train_mask.sum())
    sizes = Sizes(nodes, training, classes, columns, dict.fromkeys(columns, 1), 4)
    nothing = torch.zeros((nodes, outputs_of(classes)), dtype=torch.float64)
    found = {ALONE: _figure(name, objective, home.with_scores(opinions, nothing, objective.weights))}
    for epsilon in (*EPSILONS, CONTROL, NO_NOISE):
        multiplier = 0.0 if math.isinf(epsilon) else analytic_multiplier(epsilon, delta)
        mine = with_residuals(data[own.party], opinions, own, multiplier)
        plan = replace(plan_of(job, sizes), records=multiplier, flips=_flips(way, epsilon, multiplier, delta))
        context = Context(sizes, plan, own.party, {**data, own.party: mine})
        program = program_of(PlainMachine(list(data)), context, lambda _: system_secrets)
        program.enter(trains=True)
        program.step(0)
        told = program.predict()
        assert told is not None
        add = home.with_scores if way is RECORDS else home.with_bits
        found[f"{epsilon:g}"] = _figure(name, objective, add(opinions, told, objective.weights))
    return found


def _flips(way: Way, epsilon: float, multiplier: float, delta: float) -> float | None:
    """ε of bits, as ``NodePlan.flip_epsilon`` has it for any ε; None for scores."""
    if way is RECORDS or math.isinf(epsilon):
        return None if way is RECORDS else epsilon
    return epsilon - gaussian_epsilon(math.sqrt(NodePlan.share) / multiplier, delta)


def _figure(name: str, objective: Objective, logits: Tensor) -> float:
    value = objective.score(logits, everything=True).values[f"test_{SETS[name].figure}"]
    assert value is not None
    return value


def measured(way: Way, names: Sequence[str], seeds: int) -> None:
    """What is not there yet, kept after every seed."""
    for name in names:
        for seed in range(min(seeds, SETS[name].most_seeds)):
            if f"{name}/{ALONE}/{seed}" not in figures(way):
                _keep(way, {f"{name}/{key}/{seed}": value for key, value in at_every_epsilon(way, name, seed).items()})


def figures(way: Way) -> dict[str, float]:
    """What was measured: set, ε or ``ALONE``, and seed → figure on test nodes."""
    return dict(json.loads(way.figures.read_text(encoding="utf-8"))["figures"]) if way.figures.exists() else {}


def _keep(way: Way, more: Mapping[str, float]) -> None:
    found = figures(way) | {key: round(value, 4) for key, value in more.items()}
    content = {"version": __version__, "torch": torch.__version__, "figures": found}
    write_whole(way.figures, (json.dumps(content, indent=1) + "\n").encode())
    sys.stderr.write("".join(f"{key}: {found[key]:.4f}\n" for key in more))


def of(found: Mapping[str, float], name: str, way: str) -> list[float]:
    """Of all seeds, of a way or an ε."""
    return [value for key, value in found.items() if key.rpartition("/")[0] == f"{name}/{way}"]


def table(way: Way, found: Mapping[str, float]) -> list[str]:
    """Markdown."""
    heads = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
    lines = [
        f"| data | seeds | A alone | control | {heads} | no noise | no `privacy` |",
        f"|---|{'---:|' * (len(EPSILONS) + 5)}",
    ]
    for name in SETS:
        if control := of(found, name, f"{CONTROL:g}"):
            cells = [f"{len(control)}", _shown(of(found, name, ALONE)), _shown(control)]
            cells += [_gain(of(found, name, f"{epsilon:g}"), control) for epsilon in (*EPSILONS, NO_NOISE)]
            plain = sealed_privacy.of(name, "margins", sealed_privacy.BARE)
            lines.append(f"| {name} | {' | '.join([*cells, _shown(plain) if plain else '–'])} |")
    if way is not RECORDS:
        return [*lines, "", f"As [above](#what-it-adds). `{way.command}` and `--write`.{way.note}"]
    return [
        *lines,
        "",
        "AUC of two classes, else accuracy, on test nodes. Below an ε stand points above the control, "
        f"ε = {CONTROL:g}, with 95 % intervals of the mean. Two holders, three of `amazon`, `S-FFSD` and payments. "
        "*A alone* is the label holder's own model, and no `privacy` the default sealed job. "
        f"`{way.command}` and `--write`.{way.note}",
    ]


def _shown(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _gain(values: Sequence[float], control: Sequence[float]) -> str:
    points = [100 * (value - other) for value, other in zip(values, control, strict=True)]
    if len(points) == 1:
        return f"{points[0]:+.1f}"
    half = float(student.ppf(0.975, len(points) - 1)) * stdev(points) / math.sqrt(len(points))
    return f"{fmean(points):+.1f} ± {half:.1f}".replace("-", "−")


def written(page: str, way: Way, found: Mapping[str, float]) -> str:
    """The page with what was measured in its place."""
    before, _, rest = page.partition(way.begin)
    _, _, after = rest.partition(way.end)
    return before + way.begin + "\n" + "\n".join(table(way, found)) + "\n" + way.end + after


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unit", choices=[RECORDS.unit, NODES.unit], default=RECORDS.unit)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sets", help="names of sets, separated by semicolons; all, if left out")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    way = RECORDS if arguments.unit == RECORDS.unit else NODES
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), way, figures(way)), encoding="utf-8")
        return
    named = None if arguments.sets is None else arguments.sets.split(";")
    measured(
        way, named or [name for name, each in SETS.items() if way is RECORDS or each.figure == "auc"], arguments.seeds
    )


if __name__ == "__main__":
    main()
