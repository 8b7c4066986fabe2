import pytest
import torch
from rich.console import Console
from rich.table import Table

from veilgraph.graph.party import PartyGraph
from veilgraph.report.tables import comparison_table, data_table, human_bytes, percent, run_table, traffic_table

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


def test_a_missing_share_is_a_dash() -> None:
    assert (percent(None), percent(0.8768)) == ("–", "87.7 %")


def test_the_run_table_tells_result_and_traffic() -> None:
    text = shown(run_table(SUMMARY))
    for part in ("best epoch", "50.0 %", "0.012", "sent by server", "2.0 MB"):
        assert part in text


def test_the_run_table_has_auc_and_f1_where_they_are_known() -> None:
    text = shown(run_table({**SUMMARY, "test_auc": 0.93456, "test_f1": 0.5}))
    assert "test AUC" in text
    assert "0.935" in text
    assert "0.500" in text
    undefined = shown(run_table({**SUMMARY, "test_auc": None, "test_f1": 0.5}))
    assert "AUC" not in undefined
    assert "test macro F1" in undefined


def test_a_resumed_run_says_since_when_it_counts_bytes() -> None:
    assert "sent by A since epoch 20" in shown(run_table({**SUMMARY, "started_at": 20}))


def test_the_comparison_has_a_row_for_each_training() -> None:
    text = shown(comparison_table({"A alone": {**SUMMARY, "test_accuracy": 0.25}, "pooled": SUMMARY}, "what it means"))
    assert "A alone" in text
    assert "25.0 %" in text
    assert "what it means" in text


def test_traffic_is_told_by_party() -> None:
    assert "1.5 kB" in shown(traffic_table(SUMMARY["sent_bytes"]))  # type: ignore[arg-type]


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
