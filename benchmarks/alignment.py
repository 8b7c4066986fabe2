"""Private alignment: seconds and bytes, every party in a process of its own.

``python -m benchmarks.alignment [--ids N ...]``
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import goals
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import SERVER, Link
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.factory import LINKS
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.intersect import PIECE_ROWS, TOKEN_BYTES, align_holder, align_server
from veilgraph.mpc.x25519 import POINT_BYTES
from veilgraph.runtime.launch.processes import end_with_launcher, report_failure, run_processes

HOLDERS = ("A", "B", "C")
SIZES = (10_000, 100_000)
_TIMEOUT_S = 600.0
_IDS = "--ids"


@dataclass(frozen=True)
class AlignmentFigures:
    """One alignment of sets of ``ids`` ids of which half are common.

    ``seconds`` is the slowest party's, ``cpu_seconds`` a holder's own work; bytes are those sent, headers included.
    """

    ids: int
    common: int
    seconds: float
    cpu_seconds: float
    holder_bytes: int
    server_bytes: int
    formula_bytes: int


def measure(ids: int) -> AlignmentFigures:
    """Aligns three holders over local sockets."""
    with tempfile.TemporaryDirectory() as folder:
        parties = (*HOLDERS, SERVER)
        run_processes("benchmarks.alignment", {party: [folder, party, str(ids)] for party in parties}, _nothing)
        results = {party: json.loads((Path(folder) / f"{party}.json").read_text("utf-8")) for party in parties}
    holders = [results[holder] for holder in HOLDERS]
    return AlignmentFigures(
        ids,
        results[SERVER]["common"],
        max(result["seconds"] for result in results.values()),
        max(result["cpu_seconds"] for result in holders),
        max(result["bytes"] for result in holders),
        results[SERVER]["bytes"],
        holder_bytes(ids, len(HOLDERS)),
    )


def holder_bytes(ids: int, holders: int) -> int:
    """Bytes that each of ``holders`` holders with ``ids`` ids sends (docs/explanation/alignment.md)."""
    blinded = holders * (POINT_BYTES * ids + HEADER_BYTES * (ids // PIECE_ROWS + 1))
    return blinded + TOKEN_BYTES * ids + HEADER_BYTES


def _own_ids(party: str, count: int) -> list[str]:
    """Half of the ids are every holder's, half the holder's alone."""
    return [f"customer {number}" if number % 2 else f"customer {number} of {party}" for number in range(count)]


def _party(folder: str, party: str, count: int, joined: Link) -> None:
    link = RecordedLink(joined)
    own = _own_ids(party, count)
    started, cpu_started = time.perf_counter(), time.process_time()
    common = align_server(link, HOLDERS).common if party == SERVER else len(align_holder(link, HOLDERS, own).rows)
    result = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "common": common,
        "bytes": sum(entry.bytes for entry in link.traffic() if entry.direction == "sent"),
    }
    link.close()
    (Path(folder) / f"{party}.json").write_text(json.dumps(result), "utf-8")


def _nothing() -> None:
    pass


def main(arguments: list[str]) -> int:
    """Measures and prints a table, of sizes that follow ``--ids``; with other arguments, runs one party."""
    if arguments and arguments[0] != _IDS:
        folder, party, count, report, wire, *invitation = arguments
        end_with_launcher()
        try:
            _party(folder, party, int(count), LINKS[wire].join(party, invitation, _TIMEOUT_S))
        except VeilgraphError as error:
            return report_failure(error, int(report))
        return 0
    print("| ids of each of 3 holders | in common | seconds | CPU seconds of a holder | holder sends | server sends |")
    print("|---|---|---|---|---|---|")
    for ids in map(int, arguments[1:]) if arguments else SIZES:
        figures = measure(ids)
        goals.keep(f"alignment {ids}", figures.seconds)
        print(
            f"| {ids:,} | {figures.common:,} | {figures.seconds:.1f} | {figures.cpu_seconds:.1f} | "
            f"{figures.holder_bytes / 1e6:.2f} MB (formula: {figures.formula_bytes / 1e6:.2f}) | "
            f"{figures.server_bytes / 1e6:.2f} MB |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
