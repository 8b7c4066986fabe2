"""What one bank sees of a payment between two others that is no longer there when banks predict again.

    python -m research.union_differences --edges 40

A union of three banks of a made-up world trains once. Then it predicts again and again, each time with tables that lack
the payments from one account of the second bank to one of the third, and the first bank looks at the largest change of
its own predictions. The control predicts with the same tables. Every prediction is the whole protocol.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from torch import Tensor
from veilgraph_datasets.payments_tables import export_payments
from veilgraph_datasets.settings import PaymentsSettings

from veilgraph.protocol.job_file import read_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

ENDS = ["payer", "payee"]


def main() -> None:
    """See the head of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--customers", type=int, default=3000)
    parser.add_argument("--edges", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        world, run = Path(folder) / "world", Path(folder) / "run"
        export_payments(PaymentsSettings(customers=asked.customers, transfers=10 * asked.customers), world, 0)
        job = read_job(world / "union.yaml")
        watcher, *others = job.data.names
        train(job, run)

        def seen() -> Tensor:
            predict(run)
            return load_predictions(RunDirectory.open(run).party(watcher)).uncalibrated.double()

        before = seen()
        same = [float((seen() - before).abs().max()) for _ in range(max(2, asked.edges // 4))]
        ledgers = [world / bank / "transfers.csv" for bank in others]
        books = pd.read_csv(ledgers[0], dtype=str)
        across = books[(books.payer_bank == others[0]) & (books.payee_bank == others[1])]
        pairs = sorted(set(across[ENDS].itertuples(index=False, name=None)))
        changed, classes = list[float](), 0
        for pair in random.Random(0).sample(pairs, asked.edges):  # noqa: S311 - which payments are looked at
            with without(ledgers, pair):
                after = seen()
            changed.append(float((after - before).abs().max()))
            classes += bool((after.argmax(1) != before.argmax(1)).any())
    told = sum(each > max(same) for each in changed)
    sys.stdout.write(
        f"largest change of {watcher}'s predictions: {max(same):.5f} with the same tables; with one pair less median "
        f"{median(changed):.5f}, largest {max(changed):.5f}, beyond the former {told} "
        f"of {len(changed)}, a class {classes}\n"
    )


@contextmanager
def without(ledgers: list[Path], pair: tuple[str, str]) -> Iterator[None]:
    """Takes the payments of a pair of accounts out of ledgers for a block."""
    kept = {ledger: ledger.read_bytes() for ledger in ledgers}
    for ledger in ledgers:
        rows = pd.read_csv(ledger, dtype=str, keep_default_na=False)
        rows[~((rows.payer == pair[0]) & (rows.payee == pair[1]))].to_csv(ledger, index=False)
    try:
        yield
    finally:
        for ledger, content in kept.items():
            ledger.write_bytes(content)


if __name__ == "__main__":
    main()
