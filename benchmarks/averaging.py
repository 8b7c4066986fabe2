"""Averaging under masks beside Flower's FedAvg, in one run: ``python -m benchmarks.averaging [--seeds S]``.

The same parts, first weights and training at home; every party is a process on this machine. Flower, which
``make bench-averaging`` installs, carries weights in the clear.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.wires import LINK, installed
from veilgraph.deploy.demo import free_port
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.store.run_directory import Record
from veilgraph.samples.shipped import shipped_job, with_overrides

_WARM = 5
"""Rounds before the first that is timed."""


@dataclass(frozen=True)
class Rounds:
    """What one training came to.

    Attributes:
        accuracy: of the test nodes, after the round that fits the validation nodes best.
        round_s: seconds of a round with its evaluation, the mean after the first few.
        whole_s: from the start of the processes to their end.
    """

    accuracy: float
    round_s: float
    whole_s: float


def ours(job: JobSettings) -> Rounds:
    """Over sockets, every message sealed between its ends."""
    times: list[float] = []

    def progress(records: list[Record]) -> None:
        times.extend([time.perf_counter()] * (len(records) - len(times)))

    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        found = train(job, Path(folder) / "run", options=RunOptions(processes=True, link=LINK, progress=progress))
        whole = time.perf_counter() - started
    return Rounds(_chosen(found.metrics), _round_s(times), whole)


def flower(job: JobSettings, python: Path) -> Rounds:
    """Under Flower.

    Raises:
        RuntimeError: a party failed; its own error is on stderr.
    """
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        path = Path(folder) / "job.yaml"
        write_job(job, path)
        parties = ["server", *map(str, range(len(job.data.names)))]
        started = time.perf_counter()
        processes = [
            subprocess.Popen(
                [str(python), "-W", "ignore", "-m", "benchmarks.flower.party", party, address, str(path)],
                stdout=subprocess.PIPE if party == "server" else subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )
            for party in parties
        ]
        while all(process.poll() in (None, 0) for process in processes) and processes[0].poll() is None:
            time.sleep(0.05)
        for process in processes:
            if any(other.poll() for other in processes):
                process.kill()
        said = [process.communicate()[0] for process in processes]
        whole = time.perf_counter() - started
        if any(process.returncode for process in processes):
            errors.seek(0)
            raise RuntimeError(errors.read())
    rounds: list[dict[str, Any]] = json.loads(said[0].splitlines()[-1])["rounds"]
    return Rounds(_chosen(rounds), _round_s([each["at"] for each in rounds]), whole)


def _round_s(times: list[float]) -> float:
    return (times[-1] - times[_WARM]) / (len(times) - 1 - _WARM)


def _chosen(rounds: list[dict[str, Any]]) -> float:
    best = max(rounds, key=lambda each: each["val_accuracy"])
    return float(best["test_accuracy"])


def section(found: list[tuple[Rounds, Rounds]]) -> list[str]:
    """The table, in Markdown."""
    lines = [
        "| seed | test accuracy | Flower's | a round, s | Flower's | whole, s | Flower's |",
        "|---|---|---|---|---|---|---|",
    ]
    for seed, (one, two) in enumerate(found):
        lines.append(
            f"| {seed} | {one.accuracy:.3f} | {two.accuracy:.3f} | {one.round_s:.3f} | {two.round_s:.3f} | "
            f"{one.whole_s:.1f} | {two.whole_s:.1f} |"
        )
    ratio = statistics.median(own.round_s / other.round_s for own, other in found)
    own, other = (statistics.fmean(each.accuracy for each in column) for column in zip(*found, strict=True))
    said = f"Mean accuracy {own:.3f} and {other:.3f}; the median of the ratios of a round's seconds is {ratio:.2f}."
    lines += ["", said]
    return lines


def main() -> None:
    """Measures seed after seed, ours and Flower's in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.averaging", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--python", type=Path, default=Path(".venv-flower/bin/python"))
    asked = parser.parse_args()
    found = []
    for seed in range(asked.seeds):
        job = with_overrides(shipped_job("cora-averaging"), {"seed": seed, "train.patience": None})
        with installed(job.data.names):
            found.append((ours(job), flower(job, asked.python)))
        print(found[-1], file=sys.stderr, flush=True)
    print("\n".join(section(found)))


if __name__ == "__main__":
    main()
