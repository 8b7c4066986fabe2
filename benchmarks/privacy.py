"""What differential privacy costs in time: whole jobs and a training step with and without, and one release.

``python -m benchmarks.privacy`` prints the section of the page alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import step
from benchmarks.graphs import public
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER
from veilgraph.link.factory import MemoryHub
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.nn.combine import Scale, Unchanged
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.publisher import OPEN, NoisedPublisher
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.cut import HolderCut
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.shipped import with_overrides

DATASETS = {"cora": 2708, "pubmed": 19717}
_WARM_UP, _RUNS = 3, 20
_REPEATS = 5
_LAST = {"train.select_by": "last"}
_NOISE = {**_LAST, "privacy": {"unit": "row", "noise_multiplier": 5.0, "schedule": "every-step"}}

_EPOCHS = 100
_HOPS = {"unit": "edge", "aggregation": {"hops": 2, "dim": 64}}
_FIXED = {
    "model.initial.method": "individual",
    "model.local": {"model": "appnp", "hops": 10},
    "model.combine.strategy": "concat",
    "train.evaluate_every": 2,
}
_WHOLE: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "every-step": (_LAST, _NOISE),
    "once, noise in every hop": (
        {**_FIXED, "privacy": {**_HOPS, "noise_multiplier": 0}},
        {**_FIXED, "privacy": {**_HOPS, "epsilon_total": 4}},
    ),
}
"""Schedule → what whole jobs without and with noise have in place of what a benchmark's has."""

_SHARED = (
    "The three parties share two cores here, so the noise that is drawn in the background takes time from the step.",
    "",
)


@dataclass(frozen=True)
class StepFigures:
    """Milliseconds per training step: medians over steps, then over interleaved repeats."""

    without_ms: float
    with_ms: float
    ratio: float
    """Median over the repeats of one over the other."""


def step_figures(dataset: str) -> StepFigures:
    """The step of ``benchmarks.step`` without and with noise on all that is published, in turn, several times."""
    graphs = public(dataset)
    pairs = []
    for _ in range(_REPEATS):
        without, private = (
            step.federated_ms(graphs, with_overrides(step.job(step.STEPS), changes)) for changes in (_LAST, _NOISE)
        )
        pairs.append((without, private))
    without, private = (statistics.median(column) for column in zip(*pairs, strict=True))
    return StepFigures(without, private, statistics.median(after / before for before, after in pairs))


def whole_job_s(dataset: str, schedule: str) -> tuple[float, float, float]:
    """Seconds of a whole job without and with noise, medians of several in turn, and the median of their ratios.

    All that a run does is in it: agreeing, dealing, training, evaluating, predicting, and what is written.
    """
    graphs = public(dataset)
    pairs = []
    for number in range(_REPEATS + 1):
        taken = []
        for changes in _WHOLE[schedule]:
            settings = with_overrides(step.job(_EPOCHS), changes)
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                train(settings, Path(folder) / "run", parties=graphs)
                taken.append(time.perf_counter() - started)
        if number:  # the first imports, and fills caches
            pairs.append((taken[0], taken[1]))
    without, private = (statistics.median(column) for column in zip(*pairs, strict=True))
    return without, private, statistics.median(after / before for before, after in pairs)


def release_ms(name: str, shape: tuple[int, int]) -> float:
    """Median milliseconds of a release of float32 rows by the mechanism of that name, on one thread."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    mechanism = MECHANISMS[name](1.0, 1.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _median_ms(lambda: mechanism.release(x, system_secrets))
    finally:
        torch.set_num_threads(threads)


def embedding_ms(rows: int, *, noisy: bool) -> float:
    """Mean milliseconds of processor time in which a holder publishes an embedding and takes its gradient back.

    Released and hidden under masks in a job with two holders and ``mean``, the next noise drawn meanwhile among it.
    """
    settings = with_overrides(step.job(step.STEPS), {**_NOISE, "model.initial.method": "individual"})
    planned = plan(settings, "A")
    if planned is None:
        raise ValueError("the job has privacy")
    link, masks = MemoryHub(["A", SERVER], 1).link("A"), PairwiseMasks("A", {"B": system_secrets(32)}, bytes(32))
    x, back = torch.randn(rows, step.DIM, requires_grad=True), torch.randn(rows, step.DIM)
    mean = Unchanged() if noisy else Scale(torch.tensor(0.5))
    with NoisedPublisher(planned, None, system_secrets) as door:
        cut = HolderCut(link, masks, 32, torch.float32, door if noisy else OPEN)
        for number in range(_WARM_UP + _RUNS):
            if number == _WARM_UP:
                started = time.process_time()
            release = cut.release(number)
            output = mean(x if release is None else release(x))
            cut.publish(number, 1, output)
            output.backward(back.to(output.dtype))
        return (time.process_time() - started) * 1e3 / _RUNS


def _median_ms(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_WARM_UP + _RUNS):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[_WARM_UP:])


def section() -> list[str]:
    """The lines of the page."""
    lines = [
        "## Differential privacy",
        "",
        "The training step above with `privacy: {unit: row, noise_multiplier: 5, schedule: every-step}`: embeddings "
        "and gradients "
        "clipped, noised and paid for; without and with in turn.",
        "",
        "| data | without | with | with / without |",
        "|---|---|---|---|",
    ]
    for dataset in DATASETS:
        figures = step_figures(dataset)
        lines.append(f"| {dataset} | {figures.without_ms:.1f} ms | {figures.with_ms:.1f} ms | {figures.ratio:.2f} |")
    lines += [
        "",
        f"Whole jobs of {_EPOCHS} epochs, from agreeing to what is written, without and with noise in turn:",
        "",
        "| data | schedule | without | with | with / without |",
        "|---|---|---|---|---|",
    ]
    for dataset in DATASETS:
        for schedule in _WHOLE:
            before, after, ratio = whole_job_s(dataset, schedule)
            lines.append(f"| {dataset} | {schedule} | {before:.2f} s | {after:.2f} s | {ratio:.2f} |")
    lines += [
        "",
        *_SHARED,
        "One release, on one thread; in a job its noise is drawn while the parties are busy with the one before:",
        "",
        "| mechanism | " + " | ".join(f"[{rows}, {step.DIM}]" for rows in DATASETS.values()) + " |",
        "|---|" + "---|" * len(DATASETS),
    ]
    for name in MECHANISMS:
        times = " | ".join(f"{release_ms(name, (rows, step.DIM)):.1f} ms" for rows in DATASETS.values())
        lines.append(f"| {name} | {times} |")
    lines += [
        "",
        "One embedding in such a step, released, hidden under masks, and its gradient taken back, in processor time:",
        "",
        "| rows | without | with |",
        "|---|---|---|",
    ]
    for rows in DATASETS.values():
        without, private = (embedding_ms(rows, noisy=noisy) for noisy in (False, True))
        lines.append(f"| [{rows}, {step.DIM}] | {without:.1f} ms | {private:.1f} ms |")
    return [*lines, ""]


if __name__ == "__main__":
    print("\n".join(section()))
