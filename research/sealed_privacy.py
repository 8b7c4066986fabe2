"""Sealed jobs with ``privacy``: accuracy at several ε, and what noise costs in time: docs/sealed.md.

``python -m research.sealed_privacy --seeds 2`` measures what ``docs/sealed-privacy.json`` lacks; ``--pairs 5`` times so
many pairs of jobs; ``--write`` puts both into the page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Final

import torch

from veilgraph import __version__
from veilgraph.core.files import write_whole
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

DOCS: Final = Path(__file__).parent.parent / "docs"
FIGURES: Final = DOCS / "sealed-privacy.json"
PAGE: Final = DOCS / "sealed.md"
BEGIN: Final = "### What noise costs\n"
END: Final = "\n## Across organisations"
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
CONTROL: Final = 1e-2
NO_NOISE: Final = math.inf
BARE: Final = "without privacy"
ALONE: Final = "A alone"


def job_of(seed: int, epsilon: float | None) -> JobSettings:
    """The job on Cora at a total ε; infinity: votes without noise, None: without ``privacy``."""
    job: dict[str, Any] = {
        "paradigm": "sealed",
        "seed": seed,
        "data": {"dataset": "cora", "holders": 2},
        "model": {"network": "linear", "blocks": ["pooled.10"]},
        "train": {"select_by": "last"},
    }
    if epsilon is not None:
        noise = {"epsilon_total": epsilon} if math.isfinite(epsilon) else {"noise_multiplier": 0.0}
        job["privacy"] = {"unit": "edge", "aggregation": {}, **noise}
        job["model"]["edge_slots"] = 1 << 16
    return parse_job(job)


def accuracy(seed: int, epsilon: float | None) -> float:
    """Of the whole job, all parties, on test nodes."""
    with tempfile.TemporaryDirectory() as folder:
        return float(train(job_of(seed, epsilon), Path(folder) / "run").summary["test_accuracy"])


def alone(seed: int) -> float:
    """Of the same network on the label holder's columns and edges."""
    job = job_of(seed, None)
    paradigm = paradigm_of(job)
    found = paradigm.baselines.alone(paradigm.data.load(job), "A", lambda _: None)
    assert found is not None
    return float(found.summary["test_accuracy"])


def ratio(pair: int, beside: float | None) -> float:
    """Of the processor time of all parties of a job at ε = 4 to that of another's, one after the other in turns."""
    seconds = {}
    for epsilon in (beside, 4.0) if pair % 2 else (4.0, beside):
        started = time.process_time()
        accuracy(pair, epsilon)
        seconds[epsilon] = time.process_time() - started
    return seconds[4.0] / seconds[beside]


def measured(seeds: int, pairs: int) -> None:
    """What is not there yet, kept after every figure."""
    ways: dict[str, Any] = {f"{epsilon:g}": epsilon for epsilon in (*EPSILONS, CONTROL, NO_NOISE)}
    for seed in range(seeds):
        for name, epsilon in ways.items():
            _measure(f"{name}/{seed}", partial(accuracy, seed, epsilon))
        _measure(f"{BARE}/{seed}", partial(accuracy, seed, None))
        _measure(f"{ALONE}/{seed}", partial(alone, seed))
    if any(f"time/{pair}" not in figures() for pair in range(pairs)):
        accuracy(0, None)  # what is loaded once is no part of it
    for pair in range(pairs):
        _measure(f"time/{pair}", partial(ratio, pair, NO_NOISE))
        _measure(f"time to bare/{pair}", partial(ratio, pair, None))


def figures() -> dict[str, float]:
    """What was measured: way or ε, and seed → test accuracy, or ratio of times."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8"))["figures"]) if FIGURES.exists() else {}


def _measure(key: str, made: Callable[[], float]) -> None:
    found = figures()
    if key in found:
        return
    found[key] = round(made(), 4)
    content = {"version": __version__, "torch": torch.__version__, "figures": found}
    write_whole(FIGURES, (json.dumps(content, indent=1) + "\n").encode())
    sys.stderr.write(f"{key}: {found[key]:.4f}\n")


def table(found: Mapping[str, float]) -> list[str]:
    """Markdown."""
    columns = [f"{epsilon:g}" for epsilon in EPSILONS]
    heads = [f"ε = {name}" for name in columns]
    seeds = len(_of(found, "inf"))
    times = [median(_of(found, name)) for name in ("time", "time to bare")]
    lines = [
        f"| Cora, two holders, {seeds} seeds | {' | '.join(heads)} | votes without noise |",
        f"|---|{'---:|' * (len(columns) + 1)}",
        f"| `privacy: {{unit: edge, …}}` | {' | '.join(_shown(_of(found, name)) for name in (*columns, 'inf'))} |",
        "",
        f"Without `privacy` {_shown(_of(found, BARE))}; A alone {_shown(_of(found, ALONE))}; at ε = {CONTROL:g}, where "
        f"votes say nothing, {_shown(_of(found, f'{CONTROL:g}'))}. A job with noise takes {times[0]:.2f} times the "
        f"processor time of one with votes without noise, and {times[1]:.2f} times that of one without `privacy` "
        f"(medians of {len(_of(found, 'time'))} pairs).",
        "",
        "Made with `python -m research.sealed_privacy --seeds 2 --pairs 5` and `--write`; figures are in "
        "`docs/sealed-privacy.json`.",
    ]
    return lines


def _of(found: Mapping[str, float], name: str) -> list[float]:
    return [value for key, value in found.items() if key.rpartition("/")[0] == name]


def of(name: str) -> list[float]:
    """Of all seeds, of a way or an ε."""
    return _of(figures(), name)


def _shown(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def written(page: str, found: Mapping[str, float]) -> str:
    """The page with what was measured in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(table(found)) + "\n" + END + after


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures()), encoding="utf-8")
        return
    measured(arguments.seeds, arguments.pairs)


if __name__ == "__main__":
    main()
