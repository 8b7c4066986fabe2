"""What `sealed` reaches beside `vertical`, one holder alone and pooled tables, by defaults alone.

``python -m research.sealed_peers --seeds 5`` measures what ``docs/figures/sealed-peers.json`` lacks, and goes on where
it was cut off; ``--sets digits,cora`` that alone, and so ``--ways``; ``--fresh``: of seeds that nothing was chosen on;
``--write`` puts the tables into docs/explanation/sealed.md and docs/guides/payments.md.
Networks are the protocols' twins.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from docs.pages import figure_path, find_page
from research.card_payments import organisations
from research.payments import NEEDS_GRAPH
from research.pooled_pyg import FEWER, GRID, tuned
from research.presets import FIRST_SEED, SETS, Set
from research.words_twin import chosen_words_twin
from veilgraph import __version__
from veilgraph.comparison.plain import PLAIN
from veilgraph.core.files import write_whole
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import holder_alone, pool
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.stacking import fit_stacking
from veilgraph.paradigms.sealed.twin import chosen_twin
from veilgraph.paradigms.vertical.twin import PlainNetwork, isolated
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit

FIGURES: Final = figure_path("sealed-peers.json")
PAGE: Final = find_page("sealed.md")
BEGIN: Final = "### What it reaches\n"
END: Final = "\n- Test nodes"
"""Of the page, around the table."""
STACKING_BEGIN: Final = "### What stacking adds\n"
STACKING_END: Final = "\n- Seeds"
WORLDS_PAGE: Final = find_page("payments.md")
WORLDS_BEGIN: Final = "### What each finds there\n"
WORLDS_END: Final = "\n- AUC"
_SIZES: Final = {"customers": 20_000, "transfers": 200_000}
WORLDS: Final = (
    Set("payments, larger", {"dataset": "payments", "holders": 3, "payments": _SIZES}, "auc", False),
    Set(
        "payments, communities",
        {"dataset": "payments", "holders": 3, "payments": {**_SIZES, **NEEDS_GRAPH}},
        "auc",
        False,
    ),
)
"""The same of both: what differs is where launderers show."""
_WORDS: Final = tuple(Set(name, {"dataset": name, "holders": 2}, "accuracy", True) for name in ("citeseer", "pubmed"))
_CARDS: Final = Set("S-FFSD", {"dataset": "synthetic", "holders": 3}, "auc", True)
"""Whose graphs are of ``research.card_payments``, not of the data set that its jobs name."""
_TABLES: Final = tuple(
    Set(f"{name}, a table", {"dataset": name, "holders": 2, "feature_scaling": "standard"}, "accuracy", False)
    for name in ("cora", "citeseer", "pubmed", "acm")
)
"""Words as an organisation brings them: columns of a table, of which a job does not know that they are words."""
ALL: Final = (*SETS, *WORLDS, *_WORDS, _CARDS, *_TABLES)
FRESH: Final = 40
"""The first seed on which nothing was chosen, nor looked at before."""
_MANY: Final = 20_000
"""Nodes, from which on the grid of torch_geometric is smaller."""
_NAMES: Final = {"auc": "test_auc", "accuracy": "test_accuracy"}


def _job(each: Set, seed: int, paradigm: str) -> JobSettings:
    content: dict[str, Any] = {"preset": "auto", "paradigm": paradigm, "seed": seed, "data": dict(each.data)}
    if paradigm == "sealed":
        content |= {"output": "margins"}
    if each in _TABLES:  # whose steps are those of any table
        content["train"] = {"epochs": 250, "evaluate_every": 10} if paradigm == "sealed" else {"epochs": 120}
    return parse_job(content)


def _sealed(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Tensor:
    return chosen_logits(sealed(_job(each, seed, "sealed")), graphs)


def chosen_logits(job: SealedJob, graphs: Sequence[PartyGraph]) -> Tensor:
    """What the twin of a whole job tells the label holder: logits [N, C], before it adds what it knows."""
    chosen = chosen_twin if job.data.feature_scaling == "standard" else chosen_words_twin
    found = chosen(job, graphs).predict()
    assert found is not None
    return logits_of(found)


def _vertical(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Tensor:
    job = _job(each, seed, "vertical")
    return fit(PlainNetwork(job, graphs, job.data.label_party)).output


def _network_alone(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Tensor:
    return isolated(_job(each, seed, "vertical"), graphs, "A").output


def _as_they_are(
    logits: Callable[[Set, int, Sequence[PartyGraph]], Tensor], each: Set, seed: int, graphs: Sequence[PartyGraph]
) -> Mapping[str, Any]:
    return _scores(_job(each, seed, "sealed"), graphs[0], logits(each, seed, graphs).double())


def _stacked(
    logits: Callable[[Set, int, Sequence[PartyGraph]], Tensor], each: Set, seed: int, graphs: Sequence[PartyGraph]
) -> Mapping[str, Any]:
    """With A's own edges beside them."""
    job, own = _job(each, seed, "sealed"), graphs[0].common_part()
    weights = Objective(own, job.train, torch.float64).weights
    found = logits(each, seed, graphs).double()
    return _scores(job, graphs[0], fit_stacking(found, own, weights).logits(found, own))


def _pyg(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Mapping[str, Any]:
    job, graph = _job(each, seed, "sealed"), pool(graphs, "A")
    logits, _, cell = tuned(
        graph, job.train.model_copy(update={"select_by": each.figure}), seed, FEWER if graph.num_nodes > _MANY else GRID
    )
    sys.stderr.write(f"{cell}\n")
    return _scores(job, graph, logits)


def _pooled(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Mapping[str, Any]:
    return _plain("boosting", _job(each, seed, "sealed"), pool(graphs, "A"))


def _apart(model: str, each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Mapping[str, Any]:
    return _plain(model, _job(each, seed, "sealed"), pool(graphs, "A", relational=True))


def _columns(each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Mapping[str, Any]:
    without = replace(pool(graphs, "A").with_edges(torch.empty(0, dtype=torch.int64)), edge_weight=None)
    return _plain("boosting", _job(each, seed, "sealed"), without)


def _alone(model: str, holder: PartyId, each: Set, seed: int, graphs: Sequence[PartyGraph]) -> Mapping[str, Any]:
    return _plain(model, _job(each, seed, "sealed"), holder_alone(graphs, holder, "A"))


def _plain(model: str, job: JobSettings, graph: PartyGraph) -> Mapping[str, Any]:
    likely = PLAIN[model](graph, job.seed, balanced=job.train.class_weights == "balanced")
    return _scores(job, graph, torch.from_numpy(np.log(np.clip(likely, 1e-12, None))))


def _scores(job: JobSettings, graph: PartyGraph, logits: Tensor) -> Mapping[str, Any]:
    return Objective(graph, job.train, torch.float64).score(logits, everything=True).values


Way = Callable[[Set, int, Sequence[PartyGraph]], Mapping[str, Any]]
WAYS: Final[Mapping[str, Way]] = {
    "sealed": partial(_stacked, _sealed),
    "vertical": partial(_as_they_are, _vertical),
    "pooled: PyG": _pyg,
    "pooled: boosting": _pooled,
    "pooled: apart": partial(_apart, "boosting"),
    "pooled: logistic": partial(_apart, "logistic"),
    "pooled: columns": _columns,
    "A alone": partial(_as_they_are, _network_alone),
    "A: boosting": partial(_alone, "boosting", "A"),
    "A: logistic": partial(_alone, "logistic", "A"),
}
_OF_WORLDS: Final = ("pooled: columns",)  # shown of worlds of payments alone
OTHERS: Final[Mapping[str, Way]] = {f"{holder}: boosting": partial(_alone, "boosting", holder) for holder in ("B", "C")}
"""Of holders that are lent the labels."""
STACKING: Final[Mapping[str, Way]] = {
    "sealed, network alone": partial(_as_they_are, _sealed),
    "vertical, stacked": partial(_stacked, _vertical),
}
"""What stacking adds to, and adds elsewhere."""
_EVERY: Final = {**WAYS, **OTHERS, **STACKING}


def measure(each: Set, seeds: Sequence[int], ways: Sequence[str], found: dict[str, list[float | None]]) -> None:
    """Ways of a set: figure and average precision of the test nodes; kept after each."""
    for seed in seeds:
        for way in ways:
            key = f"{each.name}/{way}/{seed}"
            if key in found:
                continue
            job = _job(each, seed, "vertical" if way.startswith(("vertical", "A alone")) else "sealed")
            if each is _CARDS:
                graphs = organisations(Path(os.environ["VEILGRAPH_DATA"]), seed)
            else:
                graphs = list(paradigm_of(job).data.load(job).graphs)
            started = time.perf_counter()
            summary = _EVERY[way](each, seed, graphs)
            found[key] = [value and round(value, 4) for value in (summary[_NAMES[each.figure]], summary.get("test_ap"))]
            content = {"version": __version__, "torch": torch.__version__, "test": found}
            write_whole(FIGURES, (json.dumps(content, indent=1) + "\n").encode())
            sys.stderr.write(f"{key}: {found[key]} ({time.perf_counter() - started:.0f} s)\n")


def table(found: Mapping[str, list[float | None]]) -> list[str]:
    """Markdown: a row for each set with anything measured, AUC with average precision behind it, or accuracy."""
    ways = [way for way in WAYS if way not in _OF_WORLDS]
    lines = [f"| data set | seeds | {' | '.join(ways)} |", f"|---|---:|{'---:|' * len(ways)}"]
    for each in ALL:
        of = {way: _measured(found, each, way) for way in ways}
        if of["sealed"]:
            seeds = "/".join(dict.fromkeys(str(len(values)) for values in of.values() if values))
            cells = [each.name, seeds, *(_shown(values) for values in of.values())]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _measured(found: Mapping[str, list[float | None]], each: Set, way: str) -> list[list[float | None]]:
    return [found[f"{each.name}/{way}/{seed}"] for seed in range(FRESH) if f"{each.name}/{way}/{seed}" in found]


def stacking_table(found: Mapping[str, list[float | None]]) -> list[str]:
    """Markdown: a row for each set; of each way without stacking and with, over the fresh seeds that have both."""
    pairs = [("sealed, network alone", "sealed"), ("vertical", "vertical, stacked")]
    heads = [head for _, way in pairs for head in (way.removesuffix(", stacked"), "stacked")]
    lines = [f"| data set | seeds | {' | '.join(heads)} |", f"|---|---:|{'---:|' * len(heads)}"]
    for each in ALL:
        cells, counts = [], []
        for pair in pairs:
            seeds = [int(key.split("/")[2]) for key in found if key.startswith(f"{each.name}/{pair[1]}/")]
            both = [seed for seed in seeds if f"{each.name}/{pair[0]}/{seed}" in found and seed >= FRESH]
            cells += [_shown([found[f"{each.name}/{way}/{seed}"] for seed in both]) for way in pair]
            counts += [str(len(both))] if both else []
        if counts:
            lines.append(f"| {' | '.join([each.name, '/'.join(dict.fromkeys(counts)), *cells])} |")
    return lines


def worlds_table(found: Mapping[str, list[float | None]]) -> list[str]:
    """Markdown: a row for each way, a column for each world of payments."""
    lines = [f"| | {' | '.join(each.name for each in WORLDS)} |", f"|---|{'---:|' * len(WORLDS)}"]
    for way in WAYS:
        if way == "pooled: apart":
            continue
        values = [_measured(found, each, way) for each in WORLDS]
        lines.append(f"| {way} | {' | '.join(map(_shown, values))} |")
    return lines


def _shown(values: Sequence[Sequence[float | None]]) -> str:
    parts = [[value for value in column if value is not None] for column in zip(*values, strict=True)]
    shown = [f"{fmean(part):.3f}" + (f" ± {stdev(part):.3f}" if len(part) > 1 else "") for part in parts if part]
    return shown[0] + (f" ({shown[1]})" if len(shown) > 1 else "") if shown else "–"


def _put(page: Path, begin: str, lines: Sequence[str], end: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}", encoding="utf-8")


def main() -> None:
    """Measures, and perhaps writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", default=",".join(each.name for each in ALL))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--fresh", action="store_true", help=f"of seeds from {FRESH} on")
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the tables into the pages")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(FIGURES.read_text(encoding="utf-8"))["test"] if FIGURES.exists() else {}
    if arguments.write:
        _put(PAGE, BEGIN, table(found), END)
        _put(PAGE, STACKING_BEGIN, stacking_table(found), STACKING_END)
        _put(WORLDS_PAGE, WORLDS_BEGIN, worlds_table(found), WORLDS_END)
        return
    for each in ALL:
        if each.name in re.split(",(?! )", arguments.sets):
            first = FRESH if arguments.fresh else FIRST_SEED
            measure(each, range(first, first + arguments.seeds), re.split(",(?! )", arguments.ways), found)


if __name__ == "__main__":
    main()
