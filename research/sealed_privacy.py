"""Sealed jobs with ``privacy``: accuracy at several ε, and what noise costs in time: docs/sealed.md.

``python -m research.sealed_privacy --seeds 10`` measures what ``docs/sealed-privacy.json`` lacks; ``--pairs 3`` times
so many pairs of jobs; ``--write`` puts both into the page. Accuracies are the twin's, which computes what the parties
do, with noise of its own.
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
from scipy.stats import t as student
from torch import Tensor

from veilgraph import __version__
from veilgraph.core.files import write_whole
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.evidence import Known, logits_with_votes
from veilgraph.paradigms.sealed.plan import epsilon_of
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

DOCS: Final = Path(__file__).parent.parent / "docs"
FIGURES: Final = DOCS / "sealed-privacy.json"
PAGE: Final = DOCS / "sealed.md"
BEGIN: Final = "### What noise costs\n"
END: Final = "\n## Across organisations"
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
CONTROL: Final = 1e-4
NO_NOISE: Final = math.inf
_NEXT_TO_NONE: Final = 60.0  # of 10^26 draws one is not 0
BARE: Final = "without privacy"
ALONE: Final = "A alone"
SPLITS: Final[dict[str, list[float] | None]] = {"public split": None, "75/10/15": [0.75, 0.10, 0.15]}
OUTPUTS: Final = ("margins", "classes")


def job_of(seed: int, epsilon: float | None, split: str = "public split") -> SealedJob:
    """The job on Cora at a total ε; infinity: votes without noise, None: without ``privacy``."""
    job: dict[str, Any] = {
        "paradigm": "sealed",
        "seed": seed,
        "data": {"dataset": "cora", "holders": 2, "split": SPLITS[split]},
        "model": {"network": "linear", "blocks": ["pooled.10"]},
        "train": {"select_by": "last"},
        "output": "margins",
    }
    if epsilon is not None:
        job["privacy"] = {"unit": "edge", "epsilon_total": epsilon if math.isfinite(epsilon) else _NEXT_TO_NONE}
        job["model"]["edge_slots"] = 1 << 13
    return sealed(parse_job(job))


def accuracies(seed: int, epsilon: float | None, split: str) -> dict[str, float]:
    """Output → of what the label holder predicts, on test nodes; without ``privacy`` they are alike."""
    job = job_of(seed, epsilon, split)
    graphs = paradigm_of(job).data.load(job).graphs
    program, own = trained_twin(job, graphs), graphs[0]
    found = program.predict()
    assert found is not None
    scores, noise, votes = logits_of(found), epsilon_of(job), program.told
    if noise is None or votes is None:
        return dict.fromkeys(OUTPUTS, _right(scores, own))
    known = Known(own, scores.shape[1])
    return {
        output: _right(logits_with_votes(scores, votes, noise, known, classes_alone=output == "classes"), own)
        for output in OUTPUTS
    }


def _right(logits: Tensor, graph: PartyGraph) -> float:
    assert graph.labels is not None
    assert graph.test_mask is not None
    return float((logits.argmax(1) == graph.labels)[graph.test_mask].double().mean())


def alone(seed: int, split: str) -> dict[str, float]:
    """Of the same network on the label holder's columns and edges."""
    job = job_of(seed, None, split)
    paradigm = paradigm_of(job)
    found = paradigm.baselines.alone(paradigm.data.load(job), "A", lambda _: None)
    assert found is not None
    return dict.fromkeys(OUTPUTS, float(found.summary["test_accuracy"]))


def ratio(pair: int) -> float:
    """Of the processor time of all parties of a job at ε = 4 to that of one without, one after the other in turns."""
    seconds = {}
    for epsilon in (None, 4.0) if pair % 2 else (4.0, None):
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            train(job_of(pair, epsilon), Path(folder) / "run")
        seconds[epsilon] = time.process_time() - started
    return seconds[4.0] / seconds[None]


def measured(seeds: int, pairs: int) -> None:
    """What is not there yet, kept after every figure."""
    ways: dict[str, float | None] = {f"{epsilon:g}": epsilon for epsilon in (*EPSILONS, CONTROL, NO_NOISE)}
    for split in SPLITS:
        for seed in range(seeds):
            for name, epsilon in {**ways, BARE: None}.items():
                _measure(split, name, seed, partial(accuracies, seed, epsilon, split))
            _measure(split, ALONE, seed, partial(alone, seed, split))
    for pair in range(pairs):
        if f"time to bare/{pair}" not in figures():
            _keep({f"time to bare/{pair}": ratio(pair)})


def figures() -> dict[str, float]:
    """What was measured: division, output, way or ε, and seed → test accuracy, or ratio of times."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8"))["figures"]) if FIGURES.exists() else {}


def _measure(split: str, name: str, seed: int, made: Callable[[], Mapping[str, float]]) -> None:
    keys = {output: f"{split}/{output}/{name}/{seed}" for output in OUTPUTS}
    if not set(keys.values()) <= set(figures()):
        _keep({keys[output]: value for output, value in made().items()})


def _keep(more: Mapping[str, float]) -> None:
    found = figures() | {key: round(value, 4) for key, value in more.items()}
    content = {"version": __version__, "torch": torch.__version__, "figures": found}
    write_whole(FIGURES, (json.dumps(content, indent=1) + "\n").encode())
    sys.stderr.write("".join(f"{key}: {found[key]:.4f}\n" for key in more))


def table(found: Mapping[str, float]) -> list[str]:
    """Markdown."""
    columns = [f"{epsilon:g}" for epsilon in EPSILONS]
    heads = [f"ε = {name}" for name in columns]
    seeds = len(_of(found, "public split", "margins", "inf"))
    lines = [
        f"| Cora, two holders, {seeds} seeds | A alone | control | {' | '.join(heads)} | no noise | no `privacy` |",
        f"|---|{'---:|' * (len(columns) + 4)}",
    ]
    for split in SPLITS:
        for output in OUTPUTS:
            of = partial(_of, found, split, output)
            control = of(f"{CONTROL:g}")
            cells = [_shown(of(ALONE)), _shown(control), *(_gain(of(name), control) for name in (*columns, "inf"))]
            lines.append(f"| {split}, `output: {output}` | {' | '.join([*cells, _shown(of(BARE))])} |")
    times = [value for key, value in found.items() if key.startswith("time to bare/")]
    return [
        *lines,
        "",
        f"Control: ε = {CONTROL:g}, where votes say nothing. Below an ε stand points of accuracy above the control, "
        "paired by seed, with 95 % intervals of the mean. A job with noise takes "
        f"{median(times):.2f} times the processor time of one without `privacy` (median of {len(times)} pairs).",
        "",
        f"Made with `python -m research.sealed_privacy --seeds {seeds} --pairs {len(times)}` and `--write`; figures "
        "are in `docs/sealed-privacy.json`. The network is `pooled.10`, linear, and the accuracies are the twin's.",
    ]


def _of(found: Mapping[str, float], split: str, output: str, name: str) -> list[float]:
    wanted = f"{split}/{output}/{name}"
    return [value for key, value in found.items() if key.rpartition("/")[0] == wanted]


def of(split: str, output: str, name: str) -> list[float]:
    """Of all seeds, of a way or an ε."""
    return _of(figures(), split, output, name)


def _shown(values: Sequence[float]) -> str:
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
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), figures()), encoding="utf-8")
        return
    measured(arguments.seeds, arguments.pairs)


if __name__ == "__main__":
    main()
