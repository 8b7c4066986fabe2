"""Time and peak memory of a world of payments: making it, and writing it as tables, of 10 million transfers.

``python -m benchmarks.payments [--customers N] [--transfers T]``; each line is measured in a fresh process, and the
tables go to a temporary folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from veilgraph_datasets.payments_tables import export_payments
from veilgraph_datasets.settings import PaymentsSettings
from veilgraph_datasets.world import payments_world

from benchmarks.tables import peak_gib

CUSTOMERS, TRANSFERS = 1_000_000, 10_000_000
WHAT = ("made", "csv", "parquet")


def _measure(what: str, settings: PaymentsSettings) -> None:
    start = time.perf_counter()
    size = 0
    if what == "made":
        payments_world(settings, 0)
    else:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "world"
            export_payments(settings, out, 0, "csv" if what == "csv" else "parquet")
            size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    seconds = time.perf_counter() - start
    print(f"| {what} | {size / 1e9:.1f} GB | {seconds:.0f} | {time.process_time():.0f} | {peak_gib():.2f} GiB |")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.payments", description=__doc__)
    parser.add_argument("--customers", type=int, default=CUSTOMERS)
    parser.add_argument("--transfers", type=int, default=TRANSFERS)
    parser.add_argument("--only", choices=WHAT, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only is not None:
        _measure(asked.only, PaymentsSettings(customers=asked.customers, transfers=asked.transfers))
        return
    print("| | files | seconds | of a core | peak memory |\n|---|---:|---:|---:|---:|", flush=True)
    sizes = ["--customers", str(asked.customers), "--transfers", str(asked.transfers)]
    for what in WHAT:
        subprocess.run([sys.executable, "-m", "benchmarks.payments", "--only", what, *sizes], check=True)


if __name__ == "__main__":
    _main()
