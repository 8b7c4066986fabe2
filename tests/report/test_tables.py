import pytest
import torch
from rich.console import Console
from rich.table import Table

from veilgraph.core.text import human_bytes
from veilgraph.graph.party import PartyGraph
from veilgraph.report.tables import data_table, run_table

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
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1500, "1.5 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (127_968_538, "128 MB"),
        (999_499_999, "999 MB"),
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


def test_the_data_table_counts_what_each_holder_has() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 0, 0]])
    mask = torch.tensor([True, False, False, False])
    labelled = PartyGraph(
        "A",
        torch.zeros(4, 3),
        edges,
        edge_weight=torch.tensor([0.0, 2.0, 3.0]),
        labels=torch.tensor([0, 1, 0, 1]),
        train_mask=mask,
        val_mask=mask.roll(1),
        num_classes=2,
    )
    other = PartyGraph("B", torch.zeros(4, 5), torch.empty(2, 0, dtype=torch.int64), num_common=3)
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:4]
        for line in shown(data_table([labelled, other])).splitlines()
        if "│" in line
    }
    assert [cell.strip() for cell in rows["degrees"]] == ["0 to 2", "0 to 0"]
    assert [cell.strip() for cell in rows["isolated nodes"]] == ["3", "4"], "an edge of weight 0 is none"
    assert [cell.strip() for cell in rows["nodes"]] == ["4", "4"]
    assert [cell.strip() for cell in rows["of them common"]] == ["4", "3"]
    assert [cell.strip() for cell in rows["train labels"]] == ["1 (1, 0)", "–"]
    assert [cell.strip() for cell in rows["test labels"]] == ["–", "–"]
    assert [cell.strip() for cell in rows["features"]] == ["3", "5"]
