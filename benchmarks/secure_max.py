"""The secure maximum: seconds and bytes per party at 2708 × 64 (Cora's nodes, d = 64) for two to four holders.

``python -m benchmarks.secure_max [--rows N] [--columns D] [--repeats K] [--spu PYTHON]``. Ours runs in threads of one
process; SPU, on the same values in the same run, in processes of the Python that has it (``make bench-spu`` makes one).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from veilgraph_testing.twins import plain_max

from veilgraph.core.errors import ConfigError, RunError, VeilgraphError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.compare import MaxServer, SecureMax
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.runtime.launch.processes import run_threads

ROWS, COLUMNS, REPEATS = 2708, 64, 5
HOLDERS = (2, 3, 4)
UNKNOWN = 0.3
"""Share of the nodes that a holder does not know."""

SPU_PYTHON = Path(__file__).parents[1] / ".venv-spu" / "bin" / "python"
"""Made by ``make bench-spu``."""
SPU_SCRIPT = Path(__file__).parent / "spu" / "maximum.py"
SPU_PROTOCOLS = {"SEMI2K": HOLDERS, "ABY3": (3,)}
"""SPU's protocol → for how many holders it is there."""
SPU_TIMEOUT_S = 3600
_WITHOUT_SPU = "SPU is left out: `make bench-spu` installs it in an environment of its own, `--spu PYTHON` names one."
_ABOUT_SPU = [
    "SPU 0.9.5 ran in the same run, with a process for each party. SEMI2K gets its randomness from the first holder, "
    "which could unmask everything. Under ABY3, for three holders only, any two of them together know everything. Ours "
    "gets it from the server, and all but one of the holders may collude.",
]


@dataclass(frozen=True)
class MaxFigures:
    """One maximum. Bytes are of the party that sends most.

    Attributes:
        seconds: until the server has the maximum and every holder its wins, dealing included.
        online_seconds: the same after everything was dealt ahead; None where nothing can be.
        holder_bytes: sent by a holder.
        dealer_bytes: sent by the server; 0 where there is no dealer.
    """

    seconds: float
    online_seconds: float | None
    holder_bytes: int
    dealer_bytes: int


Measurement = Callable[[Sequence[Tensor], int], MaxFigures]
"""(every holder's values, repeats) → medians; the result is checked against the plain maximum."""


def measure_ours(values: Sequence[Tensor], repeats: int) -> MaxFigures:
    """Our protocol: every second maximum is dealt ahead, before the clock starts."""
    names = [f"holder{number}" for number in range(len(values))]
    own = dict(zip(names, values, strict=True))
    shape, dtype = values[0].shape, values[0].dtype
    maximum, winners = plain_max(values)
    meet = threading.Barrier(len(names) + 1)
    seconds: dict[bool, list[float]] = {False: [], True: []}

    def holder(link: Link) -> int:
        recorded = RecordedLink(link)
        secure = SecureMax(recorded, names, PairwiseMasks.agree(recorded, names, system_secrets), dtype)
        before = _sent(recorded)
        for step in range(2 * repeats):
            meet.wait()
            won = secure.compete(own[link.party], step, 0)
            meet.wait()
            if not torch.equal(won, winners[names.index(link.party)]):
                raise RuntimeError(f"{link.party} was told the wrong wins")
        return (_sent(recorded) - before) // (2 * repeats)

    def server(link: Link) -> int:
        recorded = RecordedLink(link)
        side = MaxServer(recorded, names, system_secrets, dtype)
        side.send_seeds()
        before = _sent(recorded)
        for step in range(2 * repeats):
            ahead = step % 2 == 1
            if ahead:
                side.deal(shape, step, 0)
            meet.wait()
            start = time.perf_counter()
            if not ahead:
                side.deal(shape, step, 0)
            received = side.receive(shape, step, 0)
            meet.wait()
            seconds[ahead].append(time.perf_counter() - start)
            if not torch.equal(received, maximum):
                raise RuntimeError("the server was told the wrong maximum")
        return (_sent(recorded) - before) // (2 * repeats)

    programs: dict[PartyId, Callable[[Link], int]] = {**dict.fromkeys(names, holder), SERVER: server}
    sent = run_threads(programs, 600, lambda: None)
    return MaxFigures(
        statistics.median(seconds[False]),
        statistics.median(seconds[True]),
        max(sent[name] for name in names),
        sent[SERVER],
    )


def measure_spu(python: Path, protocol: str, values: Sequence[Tensor], repeats: int) -> MaxFigures:
    """SPU's maximum, in processes of their own; how, and what it reveals: ``benchmarks/spu/maximum.py``.

    Args:
        python: interpreter of the environment that has SPU.
        protocol: a key of ``SPU_PROTOCOLS``.
        values: float32 [N, D] of every holder.
        repeats: maxima after the first, which compiles.

    Raises:
        RunError: if the script fails, is not done in an hour, or prints no figures.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        np.savez(path, *(own.numpy() for own in values))
        command = [str(python), str(SPU_SCRIPT), str(path), "--protocol", protocol, "--repeats", str(repeats)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SPU_TIMEOUT_S, check=True)
            # SPU's native code may log before.
            printed = json.loads(done.stdout.splitlines()[-1])
            return MaxFigures(float(printed["seconds"]), None, int(printed["sent_bytes"]), 0)
        except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
            raise RunError(
                f"SPU's {protocol} with {python} gave no figures: {error}", code="no-figures", key=python
            ) from error


def protocols(holders: int, spu: Path | None) -> dict[str, Measurement]:
    """Name → how it is measured; SPU's where there is an interpreter that has it."""
    measured: dict[str, Measurement] = {"veilgraph": measure_ours}
    if spu is not None:
        names = [name for name, numbers in SPU_PROTOCOLS.items() if holders in numbers]
        measured |= {f"SPU {name}": partial(measure_spu, spu, name) for name in names}
    return measured


def table(spu: Path | None, rows: int = ROWS, columns: int = COLUMNS, repeats: int = REPEATS) -> list[str]:
    """Lines of Markdown: every protocol on the same values, one after another in one run."""
    lines = [
        "| holders | protocol | seconds | after dealing ahead | MB sent by a holder | MB sent by the server, ahead |",
        "|---|---|---|---|---|---|",
    ]
    for holders in HOLDERS:
        values = _values(holders, rows, columns)
        for name, measure in protocols(holders, spu).items():
            figures = measure(values, repeats)
            online = "–" if figures.online_seconds is None else f"{figures.online_seconds:.3f}"
            dealt = f"{figures.dealer_bytes / 1e6:.1f}" if figures.dealer_bytes else "–"
            sent = f"{figures.holder_bytes / 1e6:.1f}"
            lines.append(f"| {holders} | {name} | {figures.seconds:.3f} | {online} | {sent} | {dealt} |")
    return lines


def section(spu: Path | None, rows: int = ROWS, columns: int = COLUMNS, repeats: int = REPEATS) -> list[str]:
    """Lines of Markdown: what is measured, the table, and what SPU's version reveals."""
    lines = [
        "## The secure maximum",
        "",
        f"One maximum of {rows} × {columns} float32 values, until the server has it and every holder knows where it "
        f"won; a holder does not know {100 * UNKNOWN:.0f} % of the rows. Median of {repeats}. Ours runs in threads of "
        "one process.",
        "",
        *table(spu, rows, columns, repeats),
        "",
    ]
    return lines + ([_WITHOUT_SPU, ""] if spu is None else [*_ABOUT_SPU, ""])


def spu_python(given: Path | None) -> Path | None:
    """The interpreter to use: the one that is given, else the Makefile's, else none.

    Raises:
        ConfigError: if the given one does not exist.
    """
    if given is not None and not given.exists():
        raise ConfigError(
            f"--spu {given}: no such interpreter; make bench-spu makes .venv-spu/bin/python",
            key="--spu",
            value=str(given),
        )
    return given or (SPU_PYTHON if SPU_PYTHON.exists() else None)


def _values(holders: int, rows: int, columns: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(rows, columns, generator=generator) for _ in range(holders)]
    for own in values:
        own[torch.rand(rows, generator=generator) < UNKNOWN] = float("-inf")
    return values


def _sent(link: RecordedLink) -> int:
    return sum(entry.bytes for entry in link.traffic() if entry.direction == "sent")


def main() -> None:
    """Prints the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure_max", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--spu", type=Path, metavar="PYTHON", help=f"Python that has SPU (default: {SPU_PYTHON})")
    arguments = parser.parse_args()
    try:
        print("\n".join(section(spu_python(arguments.spu), arguments.rows, arguments.columns, arguments.repeats)))
    except VeilgraphError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
