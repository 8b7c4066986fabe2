"""Sealed jobs with ``privacy``: what they gain at several ε, and what noise costs in time: docs/explanation/sealed.md.

``python -m research.sealed_privacy --seeds 10`` measures what ``docs/figures/sealed-privacy.json`` lacks; ``--sets
amazon;S-FFSD`` measures these alone; ``--pairs 3`` times so many pairs of jobs; ``--write`` puts both into the page.
Figures are the twin's, which computes what the parties do. A seed trains once, as training does not depend on ε, and
draws the noise of each ε anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

import torch
from scipy.stats import t as student
from torch import Tensor

from docs.pages import figure_path, find_page
from research.card_payments import organisations
from research.sealed_peers import chosen_logits
from veilgraph import __version__
from veilgraph.core.files import write_whole
from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import holder_alone
from veilgraph.paradigms.sealed.evidence import LabelKnowledge, with_votes
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.stacking import fit_best_stacking, fit_stacking
from veilgraph.paradigms.sealed.twin import train_plain, trained_twin
from veilgraph.privacy.geometric import two_sided
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

FIGURES: Final = figure_path("sealed-privacy.json")
PAGE: Final = find_page("sealed.md")
BEGIN: Final = "### What ε buys\n"
END: Final = "\n## Noise on training records"
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
CONTROL: Final = 1e-4
NO_NOISE: Final = math.inf
_NEXT_TO_NONE: Final = 60.0  # of 10^26 draws one is not 0
BARE: Final = "without privacy"
ALONE: Final = "A alone"
VOTES: Final = "votes"
OUTPUTS: Final = ("margins", "classes")
_FEW_SEEDS: Final = 5
_SPLIT: Final = {"split": [0.75, 0.10, 0.15]}
_OF_TABLES: Final = ("own", "boosting", "pooled.6")


@dataclass(frozen=True)
class Set:
    """Data to measure on.

    Attributes:
        name: in the table.
        data: of its jobs.
        figure: AUC of two classes, accuracy of more.
        blocks: of its network.
        most_seeds: how many are measured at most.
        slots: edges that every holder seems to have, which moves no figure but times.
    """

    name: str
    data: Mapping[str, Any]
    figure: str = "accuracy"
    blocks: Sequence[str] = ("pooled.6",)
    most_seeds: int = 10
    slots: int = 1 << 22


CARDS: Final = "S-FFSD"
"""Whose graphs are of ``research.card_payments``, not of the data set that its jobs name."""
CORA: Final = "cora, public split"
SHOWN: Final = (CORA, "cora, 75/10/15", "pubmed, public split", "facebook", "amazon", CARDS)
"""Sets that have a row in the page; ``FIGURES`` has all."""
SHOWN_EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
SETS: Final = {
    each.name: each
    for each in (
        Set(CORA, {"dataset": "cora"}, slots=1 << 13),
        Set("cora, 75/10/15", {"dataset": "cora", **_SPLIT}),
        Set("citeseer, 75/10/15", {"dataset": "citeseer", **_SPLIT}, most_seeds=_FEW_SEEDS),
        Set("pubmed, public split", {"dataset": "pubmed"}),
        Set("pubmed, 75/10/15", {"dataset": "pubmed", **_SPLIT}),
        Set("facebook", {"dataset": "facebook"}, most_seeds=_FEW_SEEDS),
        Set("github", {"dataset": "github"}, "auc", most_seeds=_FEW_SEEDS),
        Set("acm", {"dataset": "acm"}, most_seeds=_FEW_SEEDS),
        Set("amazon", {"dataset": "amazon", "holders": 3}, "auc", _OF_TABLES),
        Set(CARDS, {"dataset": "synthetic", "holders": 3}, "auc", _OF_TABLES),
    )
}


def job_of(name: str, seed: int, epsilon: float | None) -> SealedJob:
    """The job on a set at a total ε; infinity: votes without noise, None: without ``privacy``."""
    each = SETS[name]
    job: dict[str, Any] = {
        "paradigm": "sealed",
        "preset": "auto",
        "seed": seed,
        "data": {"holders": 2, **each.data},
        "model": {"network": "linear", "blocks": list(each.blocks)},
        "train": {"select_by": "last"},
        "output": "margins",
    }
    if epsilon is not None:
        job["privacy"] = {"unit": "edge", "epsilon_total": epsilon if math.isfinite(epsilon) else _NEXT_TO_NONE}
        job["model"]["edge_slots"] = each.slots
    return sealed(parse_job(job))


def graphs_of(name: str, seed: int) -> list[PartyGraph]:
    """What the holders have; the label holder's comes first."""
    if name == CARDS:
        return organisations(Path(os.environ["VEILGRAPH_DATA"]), seed)
    job = job_of(name, seed, None)
    return list(paradigm_of(job).data.load(job).graphs)


def figure_of(name: str, logits: Tensor, own: PartyGraph) -> float:
    """Of the label holder's predictions, on test nodes."""
    values = Objective(own, job_of(name, 0, None).train, torch.float64).score(logits, everything=True).values
    found = values[f"test_{SETS[name].figure}"]
    assert found is not None
    return found


def at_every_epsilon(name: str, seed: int) -> dict[str, float]:
    """Output and ε → figure, of one training; and how many votes a node has on average where it is not trained on."""
    graphs = graphs_of(name, seed)
    program, own = trained_twin(job_of(name, seed, NO_NOISE), graphs), graphs[0]
    found = program.predict()
    assert found is not None
    assert program.told is not None
    assert own.train_mask is not None
    scores, votes, common = logits_of(found), program.told, own.common_part()
    weights = Objective(common, job_of(name, seed, None).train, torch.float64).weights
    known, counts = LabelKnowledge(own, scores.shape[1]), votes.round().to(torch.int64)
    of = {f"{VOTES}/mean": float(votes.sum(1)[~own.train_mask].mean())}
    for epsilon in (*EPSILONS, CONTROL, NO_NOISE):
        noisy = counts if math.isinf(epsilon) else counts + two_sided(tuple(counts.shape), epsilon, system_secrets)
        for output in OUTPUTS:
            logits = with_votes(scores, noisy.double(), epsilon, known, classes_alone=output == "classes")
            if output == "margins":
                said = [logits, scores]
                taken, stacking = fit_best_stacking(said, common, weights)
                logits = stacking.logits(said[taken], common)
            of[f"{output}/{epsilon:g}"] = figure_of(name, logits, own)
    return of


def bare(name: str, seed: int) -> dict[str, float]:
    """Of a job without ``privacy`` by its defaults: it tries networks with hops over all edges."""
    graphs = graphs_of(name, seed)
    data = {"holders": 2, **SETS[name].data}
    job = sealed(parse_job({"paradigm": "sealed", "preset": "auto", "seed": seed, "data": data, "output": "margins"}))
    own, margins = graphs[0].common_part(), chosen_logits(job, graphs).double()
    classes = torch.nn.functional.one_hot(margins.argmax(1), margins.shape[1]).double()
    stacked = fit_stacking(margins, own, Objective(own, job.train, torch.float64).weights).logits(margins, own)
    of = dict(zip(OUTPUTS, (stacked, classes), strict=True))
    return {f"{output}/{BARE}": figure_of(name, logits, graphs[0]) for output, logits in of.items()}


def alone(name: str, seed: int) -> dict[str, float]:
    """Of the same network on the label holder's columns and edges."""
    graph = holder_alone(graphs_of(name, seed), "A", "A")
    found = train_plain(job_of(name, seed, None), graph, lambda _: None)
    value = float(found.summary[f"test_{SETS[name].figure}"])
    return dict.fromkeys((f"{output}/{ALONE}" for output in OUTPUTS), value)


def ratio(pair: int) -> float:
    """Of the processor time of all parties of a job at ε = 4 to that of one without, one after the other in turns."""
    seconds = {}
    for epsilon in (None, 4.0) if pair % 2 else (4.0, None):
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            train(job_of(CORA, pair, epsilon), Path(folder) / "run")
        seconds[epsilon] = time.process_time() - started
    return seconds[4.0] / seconds[None]


Way = Callable[[str, int], Mapping[str, float]]


def measured(names: Sequence[str], seeds: int, pairs: int) -> None:
    """What is not there yet, kept after every training."""
    ways: Mapping[str, Way] = {f"{CONTROL:g}": at_every_epsilon, ALONE: alone, BARE: bare}
    for name in names:
        for mark, way in ways.items():
            for seed in range(min(seeds, SETS[name].most_seeds)):
                if f"{name}/{OUTPUTS[0]}/{mark}/{seed}" not in figures():
                    _keep({f"{name}/{key}/{seed}": value for key, value in way(name, seed).items()})
    for pair in range(pairs):
        if f"time to bare/{pair}" not in figures():
            _keep({f"time to bare/{pair}": ratio(pair)})


def figures() -> dict[str, float]:
    """What was measured: set, output, way or ε, and seed → figure on test nodes, or ratio of times."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8"))["figures"]) if FIGURES.exists() else {}


def _keep(more: Mapping[str, float]) -> None:
    found = figures() | {key: round(value, 4) for key, value in more.items()}
    content = {"version": __version__, "torch": torch.__version__, "figures": found}
    write_whole(FIGURES, (json.dumps(content, indent=1) + "\n").encode())
    sys.stderr.write("".join(f"{key}: {found[key]:.4f}\n" for key in more))


def table(found: Mapping[str, float]) -> list[str]:
    """Markdown."""
    columns = [f"{epsilon:g}" for epsilon in SHOWN_EPSILONS]
    heads = " | ".join(f"ε = {name}" for name in columns)
    lines = [
        f"| data | votes a node | seeds | A alone | control | {heads} | no noise | no `privacy` |",
        f"|---|{'---:|' * (len(columns) + 6)}",
    ]
    for name in SHOWN:
        of = partial(_of, found, name, OUTPUTS[0])
        control, votes = of(f"{CONTROL:g}"), _of(found, name, VOTES, "mean")
        cells = [f"{fmean(votes):.1f}", f"{len(control)}", _shown(of(ALONE)), _shown(control)]
        cells += [_gain(of(way), control) for way in (*columns, f"{NO_NOISE:g}")]
        lines.append(f"| {name} | {' | '.join([*cells, _shown(of(BARE))])} |")
    times = [value for key, value in found.items() if key.startswith("time to bare/")]
    return [
        *lines,
        "",
        "With `output: margins`: AUC of two classes, else accuracy. Below an ε stand points above the control, "
        f"ε = {CONTROL:g}, with 95 % intervals of the mean. Control and all others stack own edges, and no "
        "`privacy` is the default job. Two holders, three of `amazon` and `S-FFSD`. With classes "
        "alone accuracy moves by less than half a point below ε = 4. A job with noise takes "
        f"{median(times):.2f} times the processor time (median of {len(times)} pairs, on Cora). Figures are the "
        "twin's: `python -m research.sealed_privacy` and `--write`.",
    ]


def _of(found: Mapping[str, float], name: str, output: str, way: str) -> list[float]:
    wanted = f"{name}/{output}/{way}"
    return [value for key, value in found.items() if key.rpartition("/")[0] == wanted]


def of(name: str, output: str, way: str) -> list[float]:
    """Of all seeds, of a way or an ε."""
    return _of(figures(), name, output, way)


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _gain(values: Sequence[float], control: Sequence[float]) -> str:
    points = [100 * (value - other) for value, other in zip(values, control, strict=True)]
    half = float(student.ppf(0.975, len(points) - 1)) * stdev(points) / math.sqrt(len(points))
    return f"{fmean(points):+.1f} ± {half:.1f}".replace("-", "−")


def written(page: str, found: Mapping[str, float]) -> str:
    """The page with what was measured in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(table(found)) + "\n" + END + after


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--sets", help="names of sets, separated by semicolons; all, if left out")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures()), encoding="utf-8")
        return
    names = list(SETS) if arguments.sets is None else arguments.sets.split(";")
    measured(names, arguments.seeds, arguments.pairs)


if __name__ == "__main__":
    main()
