import pytest
from rich.console import Console
from rich.table import Table

from veilgraph.report.tables import human_bytes, run_table

SUMMARY = {
    "best_epoch": 7,
    "val_accuracy": 0.5,
    "test_accuracy": None,
    "seconds_per_step": 0.0123,
    "started_at": 0,
    "sent_bytes": {"A": 1500, "server": 2_000_000},
}


def shown(table: Table) -> str:
    console = Console(width=100, record=True, quiet=True)
    console.print(table)
    with console.capture() as captured:
        console.quiet = False
        console.print(table)
    return captured.get()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (999_500_000, "1.0 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_bytes_read_well(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_the_run_table_tells_result_and_traffic() -> None:
    text = shown(run_table(SUMMARY))
    for part in ("best epoch", "50.0 %", "0.012", "sent by server", "2.0 MB"):
        assert part in text
