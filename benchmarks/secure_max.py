"""The secure maximum: seconds and bytes per party at 2708 × 64 (Cora's nodes, d = 64) for two to four holders.

``python -m benchmarks.secure_max [--rows N] [--columns D] [--repeats K]``; all parties are threads of one process.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilgraph.core.randomness import system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.recorded import RecordedLink
from veilgraph.mpc.compare import MaxServer, SecureMax
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.plain import plain_max
from veilgraph.roles.launch import run_threads

ROWS, COLUMNS, REPEATS = 2708, 64, 5
HOLDERS = (2, 3, 4)
UNKNOWN = 0.3
"""Share of the nodes that a holder does not know."""


@dataclass(frozen=True)
class MaxFigures:
    """One maximum. Bytes are of the party that sends most.

    Attributes:
        seconds: until the server has the maximum and every holder its wins, dealing included.
        online_seconds: the same after everything was dealt ahead.
        holder_bytes: sent by a holder.
        dealer_bytes: sent by the server; 0 where there is no dealer.
    """

    seconds: float
    online_seconds: float
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


PROTOCOLS: dict[str, Measurement] = {"ours": measure_ours}
"""Name → how it is measured: one column of the table for each."""


def table(rows: int = ROWS, columns: int = COLUMNS, repeats: int = REPEATS) -> list[str]:
    """Lines of Markdown: every protocol on the same values, one after another in one run."""
    titles = [f"{name}: seconds (online), MB sent by a holder + the dealer" for name in PROTOCOLS]
    lines = [
        f"| holders | {' | '.join(titles)} |",
        "|---" * (1 + len(PROTOCOLS)) + "|",
    ]
    for holders in HOLDERS:
        values = _values(holders, rows, columns)
        cells = []
        for measure in PROTOCOLS.values():
            figures = measure(values, repeats)
            cells.append(
                f"{figures.seconds:.3f} ({figures.online_seconds:.3f}), "
                f"{figures.holder_bytes / 1e6:.2f} + {figures.dealer_bytes / 1e6:.2f}"
            )
        lines.append(f"| {holders} | {' | '.join(cells)} |")
    return lines


def _values(holders: int, rows: int, columns: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(rows, columns, generator=generator) for _ in range(holders)]
    for own in values:
        own[torch.rand(rows, generator=generator) < UNKNOWN] = float("-inf")
    return values


def _sent(link: RecordedLink) -> int:
    return sum(entry.bytes for entry in link.traffic() if entry.direction == "sent")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure_max", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    print("\n".join(table(arguments.rows, arguments.columns, arguments.repeats)))


if __name__ == "__main__":
    _main()
