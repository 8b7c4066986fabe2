"""What a terminal is told: of data, disclosures, progress, releases, and who is better off alone."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table

from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import TrafficEntry
from veilgraph.paradigms.horizontal.tally import VALUE_MEASURES
from veilgraph.protocol.figures import CLASS_MEASURES
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import disclosure_lines, disclosures
from veilgraph.report import training as progress
from veilgraph.report.budget import protection_of
from veilgraph.report.disclosures import disclosure_table, left_out_line
from veilgraph.report.run_data import read_disclosures
from veilgraph.report.tables import data_table, run_table
from veilgraph.report.training import TrainingBars, alone_words, draw_curves, heartbeat
from veilgraph.runtime.store.results import judge_of

JOB = parse_job({})


def cells(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def test_the_data_table_counts_what_each_holder_has() -> None:
    mask = torch.tensor([True, False, False, False])
    labelled = PartyGraph(
        "A",
        torch.zeros(4, 3),
        torch.tensor([[0, 1, 2], [1, 0, 0]]),
        edge_weight=torch.tensor([0.0, 2.0, 3.0]),
        labels=torch.tensor([0, 1, 0, 1]),
        train_mask=mask,
        val_mask=mask.roll(1),
        num_classes=2,
    )
    other = PartyGraph("B", torch.zeros(4, 5), torch.empty(2, 0, dtype=torch.int64), num_common=3)
    rows = {name: found for name, *found in cells(data_table([labelled, other]))}
    assert rows["degrees"] == ["0 to 2", "0 to 0"]
    assert rows["isolated nodes"] == ["3", "4"], "an edge of weight 0 is none"
    assert rows["nodes"] == ["4", "4"]
    assert rows["of them common"] == ["4", "3"]
    assert rows["train labels"] == ["1 (1, 0)", "–"]
    assert rows["test labels"] == ["–", "–"]
    assert rows["features"] == ["3", "5"]


@pytest.mark.parametrize("own", [True, False])
def test_a_result_says_on_whose_nodes_it_is_where_that_is_one_holder(own: bool) -> None:
    job = parse_job({"paradigm": "union"})
    here = {"together": {"test_accuracy": 0.8 if own else 0.7, "val_accuracy": 0.1}, "alone": {}}
    summary: dict[str, Any] = {
        "best_epoch": 1,
        "test_accuracy": 0.8,
        "seconds_per_step": 1.0,
        "started_at": 0,
        "sent_bytes": {},
    }
    summary["alone"] = {job.data.label_party: here}
    judge = judge_of(job, summary)
    assert judge == (job.data.label_party if own else "")
    assert run_table(summary, judge=judge).title == ("Result on A's own nodes" if own else "Result")


@pytest.mark.parametrize("ranked", [True, False])
def test_a_result_without_scores_has_accuracy_in_place_of_auc(ranked: bool) -> None:
    shown = {"val_accuracy": 0.5, "test_accuracy": 0.75, "val_auc": 0.9, "test_auc": 0.8}
    summary = {name: value if ranked or "auc" not in name else None for name, value in shown.items()}
    rest = {"best_epoch": 1, "seconds_per_step": 1.0, "started_at": 0, "sent_bytes": {}}
    measures = parse_job({"paradigm": "sealed", "train": {"select_by": "auc"}}).measures
    names, values = (list(column.cells) for column in run_table({**summary, **rest}, measures).columns)
    rows = {str(name): str(value) for name, value in zip(names, values, strict=True)}
    assert rows["validation AUC" if ranked else "validation accuracy"] == ("0.9" if ranked else "50.0 %")
    assert [str(name) for name in names].count("test accuracy") == 1
    assert "–" not in rows.values()


# Disclosures


def lines(work: Any, *sent: tuple[str, Kind, int]) -> str:
    """What holders sent to the server."""
    entries = [TrafficEntry(party, SERVER, "sent", kind, 2, size) for party, kind, size in sent]
    return disclosure_lines(JOB, work, disclosures(JOB, entries), datetime(2024, 5, 1, tzinfo=UTC))


def test_of_many_disclosures_the_least_protected_are_shown_and_the_page_has_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    sent = [(party, kind, 8) for party in "AB" for kind in (Kind.HELLO, Kind.MASKED)]
    works = ("align", "train", "predict")
    path.write_text("".join(lines(work, *sent, ("A", Kind.GRADIENT, 8)) for work in works))
    records = read_disclosures(path)
    shown = cells(disclosure_table(records))
    assert len(shown) == 12
    assert [row[4] for row in shown][:3] == ["none"] * 3
    assert left_out_line(records).endswith(f"the page and --json have all {len(records)}")
    assert len(records) > 12
    assert left_out_line(records[:12]) == ""
    assert len(cells(disclosure_table(records[:12]))) == 12


def test_sessions_are_added_up_and_what_nothing_protects_stands_out(tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    training = lines("train", ("B", Kind.MASKED, 1500), ("A", Kind.GRADIENT, 92))
    path.write_text(training + training + lines("predict", ("B", Kind.MASKED, 700)))
    table = disclosure_table(read_disclosures(path))
    assert sorted((work, party, messages, size) for work, party, *_, messages, size in cells(table)) == [
        ("predict", "B", "2", "700 B"),
        ("train", "A", "4", "184 B"),
        ("train", "B", "4", "3.0 kB"),
    ]
    assert {row[1] for row, shown in zip(cells(table), table.rows, strict=True) if shown.style == "bold"} == {"A"}
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    assert "No differential privacy" in captured.get().replace("\n", " ")
    assert all(len(line) <= 80 for line in captured.get().splitlines())


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:40],
        lambda line: "{}",
        lambda line: line.replace('"mask"', '"magic"'),
        lambda line: line.replace('"messages":2', '"messages":-2'),
        lambda line: line.replace('total":null', 'total":-1.5'),
        lambda line: line.replace("2024-05-01T00:00:00Z", "2024-05-01T00:00:00"),
    ],
)
def test_a_malformed_line_is_named(damage: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "disclosures.jsonl"
    whole = lines("train", ("B", Kind.MASKED, 1))
    path.write_text(f"{whole}{damage(whole.strip())}\n{whole}")
    with refused(RunError, key=path, value=2):
        read_disclosures(path)


# Progress


def test_without_a_terminal_a_line_now_and_then_says_what_is_done_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    text = io.StringIO()

    def await_line(part: str) -> None:
        until = monotonic() + 20
        while part not in text.getvalue():
            assert monotonic() < until, text.getvalue()
            sleep(0.005)

    with TrainingBars(Console(file=text, width=120)) as bars:
        with bars.stage("boosting (2 of 9)", 0):
            await_line("boosting (2 of 9): working, 0 s so far\n")
        with bars.stage("pooled", 20) as show:
            show([])
            show([{"epoch": 10, "loss": 1.25}])
            await_line("pooled: epoch 10/20  loss 1.250, at most 0 s left, ")
        bars.at(1, 4)
        with bars.stage("sealed (2 of 4)", 20) as show:
            show([])
            show([{"epoch": 10, "loss": 1.25}])
            await_line("sealed (2 of 4): epoch 10/20  loss 1.250, at most 0 s left, about 0 s left in all, ")
        ended = len(text.getvalue())
        sleep(0.1)
        assert len(text.getvalue()) == ended, "nothing is being done"
    assert "epoch 10/20  loss 1.250" in text.getvalue().strip().splitlines()[-1], "the last state of each"
    shown = io.StringIO()
    with heartbeat(Console(file=shown, force_terminal=True), lambda: "working", 0.01):
        sleep(0.1)
    assert shown.getvalue() == ""


def test_the_time_left_of_a_resumed_training_is_by_the_epochs_since(monkeypatch: pytest.MonkeyPatch) -> None:
    now, text = [0.0], io.StringIO()
    monkeypatch.setattr(progress, "EVERY_S", 0.02)
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])

    def left_after(epoch: int, at_s: float) -> str:
        """What the first line says after so many epochs at a time."""
        now[0] = at_s
        show([{"epoch": each} for each in range(1, epoch + 1)])
        until = monotonic() + 20
        while "\n" not in (told := text.getvalue().partition(f"epoch  {epoch}/100")[2]):
            assert monotonic() < until, text.getvalue()
            sleep(0.005)
        return told.splitlines()[0]

    with TrainingBars(Console(file=text, width=120)) as bars, bars.stage("digits", 100) as show:
        assert left_after(93, 0.0) == ", 0 s so far", "no epoch is done yet, so nothing is known"
        assert left_after(90, 5.0) == ", 5 s so far", "it went back to its last checkpoint"
        assert left_after(95, 25.0) == ", at most 20 s left, 25 s so far"


@nightly
@pytest.mark.parametrize("epochs", [(), (1,), (2, 4)], ids=["nothing yet", "one epoch", "some epochs"])
def test_curves_are_drawn_whatever_was_evaluated(epochs: tuple[int, ...], tmp_path: Path) -> None:
    accuracies = {"train_accuracy": 0.7, "val_accuracy": 0.6, "test_accuracy": None}
    evaluated = {"train_loss": 1.0, "val_loss": 1.1, **accuracies}
    metrics = [
        {"epoch": epoch, "step_seconds": 0.1, "loss": 2.0 / epoch, **(evaluated if epoch in epochs else {})}
        for epoch in range(1, max(epochs, default=0) + 1)
    ]
    path = tmp_path / "curves.png"
    draw_curves(metrics, path, {"A alone": 0.4}, title="job", best_epoch=1)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert [found.name for found in tmp_path.iterdir()] == ["curves.png"]
    with refused(RunError, key=tmp_path / "none" / "curves.png"):
        draw_curves(metrics, tmp_path / "none" / "curves.png", {}, title="job", best_epoch=1)


# What nodes release, and who is better off alone


def notes(holders: int, labels: dict[str, Any] | None = None, **features: Any) -> list[str]:
    release = {"features": {"epsilon": 1.5, **features}, "labels": labels}
    settings = parse_job({"paradigm": "node-dp", "data": {"holders": holders}, "release": release})
    return protection_of(settings).notes()


def test_notes_of_a_release_say_what_epsilon_is_about() -> None:
    found = notes(2, low=-1, high=3)
    assert "neighbouring relation: replacement: the node's own values, or any others from -1 to 3" in found
    assert "features: multi-bit, ε 1.5, perturbed once at B" in found
    assert any(each.startswith("Edges are not noised: A, which learns") for each in found)
    more = notes(3, {"holder": "B", "epsilon": 2})
    assert "Which nodes there are, and which have a label for training, is not hidden." in more
    assert any("what a node releases at all of these has a total ε of 5" in each for each in more)


def figures(together: float | None, alone: float | None, figure: str = "accuracy") -> dict[str, Any]:
    ways = {"together": together, "alone": alone}
    return {way: {f"val_{figure}": value, f"test_{figure}": value} for way, value in ways.items()}


def test_who_is_better_off_alone_is_named_with_figures() -> None:
    told = {"A": figures(0.8, 0.83), "B": figures(0.9, 0.9), "C": figures(0.9, 0.7)}
    better, rest = alone_words({"alone": told}, CLASS_MEASURES)
    assert better.startswith("A is better off alone")
    assert "83.0 % alone and 80.0 % with this model" in better
    assert rest.startswith("B and C are no worse off with this model")
    errors = {"A": figures(2.0, 1.0, "rmse"), "B": figures(1.0, 2.0, "rmse")}
    assert alone_words({"alone": errors}, VALUE_MEASURES)[0].startswith("A is better off alone"), "less error is better"
    chosen = {
        way: {**by, "val_auc": auc, "test_auc": auc}
        for (way, by), auc in zip(told["A"].items(), (0.9, 0.8), strict=True)
    }
    (by_auc,) = alone_words({"alone": {"A": {**chosen, "judged_by": "auc"}}}, CLASS_MEASURES)
    assert by_auc.startswith("A is no worse off"), "by what it chose by, though its accuracy is less"
    (unknown,) = alone_words({"alone": {"A": figures(None, 0.5)}}, CLASS_MEASURES)
    assert unknown.startswith("Whether A is better off alone is not known")
    assert alone_words({}, CLASS_MEASURES) == []
