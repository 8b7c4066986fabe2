"""Whole sealed jobs beside vertical ones: ``python -m benchmarks.sealed [--data cora ...] [--out FILE]``.

Every party is a process, every message sealed between its two ends; a row's jobs run in turn. On a slow network each
party sends 100 Mbit a second, and a round trip takes 40 ms. With ``--trust``, in place of these: jobs of three holders
dealt by the server and by a holder, and of two dealt by the server and by nobody, in turn; then by nobody with
one of its networks.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import goals
from benchmarks.step import DIM, pyg_ms
from benchmarks.wires import LINK, installed
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.pooling import pool
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.run_directory import Record
from veilgraph.samples.shipped import shipped_job, with_overrides

DATASETS = ("cora", "citeseer", "pubmed")
MBIT, ROUND_TRIP_MS = 100.0, 40.0
_REPEATS, _VERTICAL_STEPS = 3, 20


@dataclass(frozen=True)
class SealedFigures:
    """Medians over repeats; seconds, milliseconds of a step, bytes.

    Attributes:
        dataset: its name.
        whole_s: the sealed job from the command to the predictions, processes started and stopped.
        step_ms: one of its steps, the mean of all: steps of several trials may come with one.
        accuracy: on the test nodes.
        sent: by each party.
        vertical_ms: a step of the shipped vertical job.
        pyg_ms: a step of the pooled PyG model.
        slow_s: the sealed job on the slow network.
        slow_floor_s: what its bytes, or its rounds if these take longer, take there.
    """

    dataset: str
    whole_s: float
    step_ms: float
    accuracy: float
    sent: dict[str, int]
    vertical_ms: float
    pyg_ms: float
    slow_s: float
    slow_floor_s: float


def measure(dataset: str) -> SealedFigures:
    """Sealed, vertical and PyG in turn, several times; then once over the slow network."""
    job = with_overrides(shipped_job(f"{dataset}-sealed"), {"timeout_s": 900})
    vertical = with_overrides(
        shipped_job(dataset),
        {"train.epochs": _VERTICAL_STEPS, "train.patience": None, "train.evaluate_every": _VERTICAL_STEPS},
    )
    everything = pool(load_parties(vertical.data, 0), "A")
    rounds = []
    with installed(job.data.names):
        for _ in range(_REPEATS):
            rounds.append((ran(job), ran(vertical), pyg_ms(everything)))
    with installed(job.data.names, mbit=MBIT, round_trip_ms=ROUND_TRIP_MS):
        slow = ran(job)
    return SealedFigures(
        dataset,
        statistics.median(own.whole_s for own, _, _ in rounds),
        statistics.median(own.step_ms for own, _, _ in rounds),
        slow.summary["test_accuracy"],
        slow.summary["sent_bytes"],
        statistics.median(other.step_ms for _, other, _ in rounds),
        statistics.median(pyg for _, _, pyg in rounds),
        slow.whole_s,
        max(8e-6 * max(slow.summary["sent_bytes"].values()) / MBIT, _rounds(job) * ROUND_TRIP_MS / 2e3),
    )


def _rounds(job: JobSettings) -> int:
    graphs = load_parties(job.data, 0)
    sizes = {graph.party: size_of(graph, job.inputs) for graph in graphs}
    costs = paradigm_of(job).session.costs(job, graphs[0].common, sizes)
    return costs.rounds if costs else 0


@dataclass(frozen=True)
class Ran:
    """A job: seconds from the command to the predictions, the mean step in milliseconds, and its summary."""

    whole_s: float
    step_ms: float
    summary: Record


def ran(job: JobSettings) -> Ran:
    """Runs it with every party a process, over the link that is ``installed``."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        found = train(job, Path(folder) / "run", options=RunOptions(processes=True, link=LINK))
        seconds = time.perf_counter() - started
    return Ran(seconds, 1e3 * statistics.fmean(record["step_seconds"] for record in found.metrics), found.summary)


TRUSTS = {3: ("dealer", "majority"), 2: ("dealer", "nobody")}
LONG: dict[str, object] = {"train.checkpoint_every": 1000, "timeout_s": 1800}


@dataclass(frozen=True)
class TrustFigures:
    """Medians over repeats of a job, by ``trust``.

    Attributes:
        dataset: its name.
        holders: how many.
        trust: who deals.
        whole_s: seconds from the command to the predictions.
        core_s: seconds of a core, of all parties together.
        sent: bytes by each party.
        accuracy: on the test nodes, of every repeat.
    """

    dataset: str
    holders: int
    trust: str
    whole_s: float
    core_s: float
    sent: dict[str, int]
    accuracy: list[float]


def measure_trust(dataset: str, holders: int) -> list[TrustFigures]:
    """The usual job with so many holders by either trust, in turn, several times."""
    content = {"paradigm": "sealed", "preset": "auto", "data": {"dataset": dataset, "holders": holders}}
    jobs = {trust: with_overrides(parse_job({**content, "trust": trust}), LONG) for trust in TRUSTS[holders]}
    rounds: dict[str, list[tuple[Ran, float]]] = {trust: [] for trust in jobs}
    with installed(jobs["dealer"].data.names):
        for _ in range(_REPEATS):
            for trust, each in jobs.items():
                before = _core_seconds()
                rounds[trust].append((ran(each), _core_seconds() - before))
    return [
        TrustFigures(
            dataset,
            holders,
            trust,
            statistics.median(found.whole_s for found, _ in repeats),
            statistics.median(spent for _, spent in repeats),
            repeats[-1][0].summary["sent_bytes"],
            [found.summary["test_accuracy"] for found, _ in repeats],
        )
        for trust, repeats in rounds.items()
    ]


def measure_network(dataset: str, network: str) -> TrustFigures:
    """The usual job of two holders to whom nobody deals, once, with one of its networks alone."""
    content = {"paradigm": "sealed", "preset": "auto", "data": {"dataset": dataset, "holders": 2}}
    job = with_overrides(parse_job({**content, "trust": "nobody", "model": {"network": network}}), LONG)
    with installed(job.data.names):
        before = _core_seconds()
        found = ran(job)
        spent = _core_seconds() - before
    goals.keep(f"nobody {network}", spent)
    summary = found.summary
    return TrustFigures(
        dataset, 2, f"nobody, {network}", found.whole_s, spent, summary["sent_bytes"], [summary["test_accuracy"]]
    )


def _core_seconds() -> float:
    """Seconds of a core of all processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def trust_section(found: list[TrustFigures]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| data | holders | `trust` | whole | of a core | sent, all parties | sent | test accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sent = ", ".join(f"{party} {count / 1e6:.0f} MB" for party, count in row.sent.items())
        lines.append(
            f"| {row.dataset} | {row.holders} | `{row.trust}` | {row.whole_s:.1f} s | {row.core_s:.1f} s | "
            f"{sum(row.sent.values()) / 1e6:,.0f} MB | {sent} | {', '.join(f'{each:.3f}' for each in row.accuracy)} |"
        )
    return lines


def section(found: list[SealedFigures]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "## Whole jobs",
        "",
        "The shipped sealed job of two holders takes 120 steps over [three networks](sealed.md#trials). Every party is "
        "a process.",
        f"`slow` is the same where each party sends {MBIT:g} Mbit/s, round trip {ROUND_TRIP_MS:g} ms; `vertical` a "
        f"step of the shipped vertical job; `PyG` one of the pooled plaintext model of width {DIM}.",
        "",
        "| data | whole | slow | step | vertical | PyG | sent | test accuracy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sent = ", ".join(f"{party} {count / 1e6:.0f} MB" for party, count in row.sent.items())
        lines.append(
            f"| {row.dataset} | {row.whole_s:.1f} s | {row.slow_s:.0f} s | {row.step_ms:.1f} ms | "
            f"{row.vertical_ms:.1f} ms | {row.pyg_ms:.1f} ms | {sent} | {row.accuracy:.3f} |"
        )
    return lines


def main() -> None:
    """Measures and prints; with ``--out`` also writes JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed", description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--trust", action="store_true", help="three and two holders, by who deals")
    asked = parser.parse_args()
    if asked.trust:
        by_trust = [row for dataset in asked.data for each in TRUSTS for row in measure_trust(dataset, each)]
        by_trust += [measure_network(dataset, network) for dataset in asked.data for network in ("linear", "mlp")]
        print("\n".join(trust_section(by_trust)))
        return
    found = []
    for dataset in asked.data:
        found.append(measure(dataset))
        goals.keep(f"slow {dataset}", found[-1].slow_s, found[-1].slow_floor_s)
        print(json.dumps(asdict(found[-1])), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n", encoding="utf-8")
    print(f"{platform.machine()}, PyTorch {torch.__version__}")
    print("\n".join(section(found)))


if __name__ == "__main__":
    main()
