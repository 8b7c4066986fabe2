"""What it costs to find out who deviates from a sealed job: ``python -m benchmarks.deviation [--counted]``.

The shipped Cora job with and without ``disputes``, in turn, every party a process; then its replay by an auditor. With
``--counted`` no job is run: what authenticated shares would add to its messages is counted on shapes. They are those of
SPDZ2k (Cramer et al., CRYPTO 2018) with 64 bits of statistical security, from a dealer that deals the MACs as well: a
word of n bits becomes a share and a MAC of n + 64 bits each where it is dealt, and n + 64 bits where it is opened. A
dealt bit becomes 65 bits.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from typing_extensions import override

from benchmarks.wires import LINK, installed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.dataset import load_parties
from veilgraph.link.identity import Trust
from veilgraph.mpc.sealed.comparison import Negative
from veilgraph.mpc.sealed.correlations import Operation, Result
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.hops import Hop
from veilgraph.mpc.sealed.opening import Open
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.runtime.session.dispute import dispute
from veilgraph.runtime.session.witness import Evidence
from veilgraph.samples.shipped import shipped_job, with_overrides

_REPEATS: Final = 3
_SECURITY_BITS: Final = 64
_SAMPLED_S: Final = 0.02
_TICKS: Final = 100.0
"""Of a second, in /proc."""


class Processes(threading.Thread):
    """Samples seconds of a core and peak memory of the parties' processes until it is stopped."""

    def __init__(self, parties: Sequence[PartyId]) -> None:
        super().__init__(daemon=True)
        self._parties, self._done = set(parties), threading.Event()
        self.core_s = dict.fromkeys(parties, 0.0)
        self.peak_mib = dict.fromkeys(parties, 0.0)

    def run(self) -> None:
        """Sample."""
        while not self._done.wait(_SAMPLED_S):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    name = (folder / "comm").read_text().strip()
                    if name in self._parties:
                        fields = (folder / "stat").read_text().rpartition(")")[2].split()
                        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                        self.core_s[name] = (int(fields[11]) + int(fields[12])) / _TICKS
                        self.peak_mib[name] = int(status["VmHWM"].split()[0]) / 1024
                except (OSError, KeyError, ValueError):
                    continue

    def stop(self) -> None:
        """End the sampling."""
        self._done.set()
        self.join()


def measure(job: JobSettings) -> None:
    """Run the job with and without disputes, in turn, and its replay; print medians."""
    jobs = {value: with_overrides(job, {"disputes": value}) for value in (False, True)}
    rows: dict[bool, list[list[float]]] = {value: [] for value in jobs}
    parties = (*job.data.names, SERVER)
    with installed(job.data.names), tempfile.TemporaryDirectory() as folder:
        for number in range(_REPEATS):
            for value, each in jobs.items():
                path, watched, started = Path(folder) / f"{number} {value}", Processes(parties), time.perf_counter()
                watched.start()
                found = train(each, path, options=RunOptions(processes=True, link=LINK))
                seconds = time.perf_counter() - started
                watched.stop()
                figures = [seconds, *watched.core_s.values(), *watched.peak_mib.values()]
                rows[value].append([*figures, sum(found.summary["sent_bytes"].values()) / 1e6])
        kept = {party: path / "parties" / party / "dispute" for party in parties}
        sizes = {party: sum(file.stat().st_size for file in folder.iterdir()) for party, folder in kept.items()}
        started = time.perf_counter()
        verdict = dispute([Evidence.read(each) for each in kept.values()], Trust())
        replayed = time.perf_counter() - started
    columns = ["whole, s", *(f"{each}, core s" for each in parties), *(f"{each}, MiB" for each in parties)]
    print(f"| disputes | {' | '.join(columns)} | all send, MB |")
    for value, repeats in rows.items():
        print(f"| {value} | {' | '.join(f'{statistics.median(each):.1f}' for each in zip(*repeats, strict=True))} |")
    print(f"replay {replayed:.1f} s, {sum(verdict.compared.values())} messages compared, named: {verdict.named}")
    print({party: f"{size / 1e6:.1f} MB" for party, size in sizes.items()})


class OperationsCounter(CountingMachine):
    """Counts messages by operation, and not by the part of the program."""

    @override
    def at(self, place: str) -> None:
        if place.startswith("/") or not self.costs:
            super().at(place)

    @override
    def run(self, operation: Operation[Result]) -> Result:
        name = type(operation).__name__
        if isinstance(operation, Open | Hop):
            name += " of 32 bits" if (operation.width if isinstance(operation, Open) else 32) == 32 else ""
        elif not isinstance(operation, Negative):
            hold = getattr(operation, "hold")  # noqa: B009 - of a step a function, named by what made it
            name = hold.__qualname__.split(".")[1] if "<locals>" in hold.__qualname__ else name
        self.at(f"/{name}")
        return super().run(operation)


def count(job: JobSettings) -> None:
    """Print what the job sends by operation, and what authenticated shares would make of it."""
    own = sealed(job)
    context, _ = twin_context(own, load_parties(own.data, own.seed))
    machine = OperationsCounter(list(context.sizes.columns), SERVER)
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    best = program.shares()
    for step in range(own.train.epochs):
        program.step(step, best)
        if (step + 1) % own.train.evaluate_every == 0 or step + 1 == own.train.epochs:
            program.score(step + 1)
    program.predict()
    dealt, sent, dealt_then, sent_then = (Counter[str]() for _ in range(4))
    for place, cost in machine.costs.items():
        name = place.removeprefix("/") or "seeds"
        bits = 32 if "32" in name else 64
        dealt[name] = cost.sent[SERVER]
        sent[name] = sum(size for party, size in cost.sent.items() if party != SERVER)
        if name == "Negative":  # bits, and eight bytes an entry
            dealt_then[name], sent_then[name] = dealt[name] * (1 + _SECURITY_BITS), sent[name]
        else:
            dealt_then[name] = dealt[name] * 2 * (bits + _SECURITY_BITS) // bits
            sent_then[name] = sent[name] * (bits + _SECURITY_BITS) // bits
    print("| operation | dealt, MB | authenticated | holders send, MB | authenticated |")
    for name in sorted(dealt, key=lambda each: -dealt[each] - sent[each]):
        of = [each[name] / 1e6 for each in (dealt, dealt_then, sent, sent_then)]
        print(f"| {name} | {' | '.join(f'{each:.1f}' for each in of)} |")
    totals = [sum(each.values()) / 1e6 for each in (dealt, dealt_then, sent, sent_then)]
    print(f"| all | {' | '.join(f'{each:.0f}' for each in totals)} |")
    _time_products()


def _time_products() -> None:
    """Time a product of matrices mod 2^64, and of value and MAC mod 2^128 by six limbs: 21 products each."""
    left, right = torch.randint(-(2**62), 2**62, (2708, 1433)), torch.randint(-(2**62), 2**62, (1433, 7))
    limbs = (left & (2**22 - 1)).double(), (right & (2**22 - 1)).double()

    def seconds(product: object, times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            torch.mm(*product)  # type: ignore[misc]
        return (time.perf_counter() - started) / times

    plain = min(seconds((left, right), 5) for _ in range(3))
    both = 42 * min(seconds(limbs, 42) for _ in range(3))
    print(f"[2708, 1433] by [1433, 7]: {plain * 1e3:.1f} ms mod 2^64, {both * 1e3:.1f} ms value and MAC mod 2^128")


def main() -> None:
    """Measure, or count, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deviation", description=__doc__)
    parser.add_argument("--counted", action="store_true", help="count what authenticated shares would add")
    asked = parser.parse_args()
    job = with_overrides(shipped_job("cora-sealed"), {"train.checkpoint_every": 1000, "timeout_s": 900})
    (count if asked.counted else measure)(job)


if __name__ == "__main__":
    main()
