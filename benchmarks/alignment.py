"""Private alignment: seconds and bytes, every party in a process of its own.

``python -m benchmarks.alignment [--ids SIZES ...]``: N ids of each of three holders, or N:M, of two with N and M.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import goals
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import SERVER, Link
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.factory import LINKS
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.hash_to_curve import POINT_BYTES
from veilgraph.mpc.intersect import PIECE_ROWS, RING, TOKEN_BYTES, align_holder, align_server
from veilgraph.runtime.launch.processes import end_with_launcher, report_failure, run_processes

HOLDERS = ("A", "B", "C")
SIZES = ("10000", "100000")
_TIMEOUT_S = 3600.0
_IDS = "--ids"


@dataclass(frozen=True)
class AlignmentFigures:
    """One alignment of which half of the smallest set is common.

    ``seconds`` is the slowest party's, ``cpu_seconds`` (those that hash included) and ``gigabytes`` (at its peak) of
    the holder with most; bytes are those sent, headers included.
    """

    common: int
    seconds: float
    cpu_seconds: float
    gigabytes: float
    holder_bytes: int
    server_bytes: int
    formula_bytes: int


def measure(sizes: Sequence[int]) -> AlignmentFigures:
    """Aligns holders with sets of these sizes over local sockets."""
    with tempfile.TemporaryDirectory() as folder:
        parties, stated = (*HOLDERS[: len(sizes)], SERVER), ":".join(map(str, sizes))
        run_processes("benchmarks.alignment", {party: [folder, party, stated] for party in parties}, _nothing)
        results = {party: json.loads((Path(folder) / f"{party}.json").read_text("utf-8")) for party in parties}
    holders = [results[holder] for holder in parties[:-1]]
    return AlignmentFigures(
        results[SERVER]["common"],
        max(result["seconds"] for result in results.values()),
        max(result["cpu_seconds"] for result in holders),
        max(result["gigabytes"] for result in holders),
        max(result["bytes"] for result in holders),
        results[SERVER]["bytes"],
        holder_bytes(sizes),
    )


def holder_bytes(sizes: Sequence[int]) -> int:
    """Bytes that the holder with the largest of these sets sends (docs/explanation/alignment.md)."""
    points = [POINT_BYTES * ids + HEADER_BYTES * (ids // PIECE_ROWS + 1) for ids in sizes]
    tokens = TOKEN_BYTES * max(sizes) + HEADER_BYTES
    return sum(points) + tokens if len(sizes) >= RING else min(points) + 2 * tokens


def _own_ids(party: str, count: int, common: int) -> list[str]:
    """The first are every holder's, the others the holder's alone."""
    shared = min(count, common)
    return [
        *(f"customer {number}" for number in range(shared)),
        *(f"customer {number} of {party}" for number in range(shared, count)),
    ]


def _party(folder: str, party: str, sizes: Sequence[int], joined: Link) -> None:
    link, holders = RecordedLink(joined), HOLDERS[: len(sizes)]
    stated = dict(zip(holders, sizes, strict=True))
    own = [] if party == SERVER else _own_ids(party, stated[party], min(sizes) // 2)
    started, cpu_started = time.perf_counter(), sum(os.times()[:4])
    if party == SERVER:
        common = align_server(link, holders).common
    else:
        common = len(align_holder(link, holders, own, stated=stated).rows)
    result = {
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": sum(os.times()[:4]) - cpu_started,
        "common": common,
        "bytes": sum(entry.bytes for entry in link.traffic() if entry.direction == "sent"),
    }
    link.close()
    (Path(folder) / f"{party}.json").write_text(json.dumps(result), "utf-8")


def _sizes(stated: str) -> list[int]:
    sizes = list(map(int, stated.split(":")))
    return sizes if len(sizes) > 1 else len(HOLDERS) * sizes


def _nothing() -> None:
    pass


def main(arguments: list[str]) -> int:
    """Measures and prints a table, of sizes that follow ``--ids``; with other arguments, runs one party."""
    if arguments and arguments[0] != _IDS:
        folder, party, stated, report, wire, *invitation = arguments
        end_with_launcher()
        try:
            _party(folder, party, _sizes(stated), LINKS[wire].join(party, invitation, _TIMEOUT_S))
        except VeilgraphError as error:
            return report_failure(error, int(report))
        return 0
    print("| ids | in common | seconds | CPU seconds of a holder | its memory | holder sends | server sends |")
    print("|---|---|---|---|---|---|---|")
    for stated in arguments[1:] or SIZES:
        sizes = _sizes(stated)
        figures = measure(sizes)
        goals.keep(f"alignment {stated}", figures.seconds)
        sent = f"{figures.holder_bytes / 1e6:.2f} MB (formula: {figures.formula_bytes / 1e6:.2f})"
        print(
            f"| {', '.join(f'{ids:,}' for ids in sizes)} | {figures.common:,} | {figures.seconds:.1f} | "
            f"{figures.cpu_seconds:.1f} | {figures.gigabytes:.2f} GB | {sent} | {figures.server_bytes / 1e6:.2f} MB |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
