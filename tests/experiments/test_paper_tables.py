import json
import math
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner

from research import __main__ as command
from research import grid
from research.grid import Entry
from research.markdown import mean_and_spread, privacy_costs
from research.paper_tables import TABLES, reproduce
from veilgraph.core.errors import ConfigError
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.samples.shipped import shipped_job

CLASSICAL = math.sqrt(2 * math.log(1.25 / 1e-4))
"""σ·ε of the paper's Definition 3 at its δ of Table 5."""


def quiet(what, done, total):
    pass


def make(out, **changes):
    arguments = {"seeds": 2, "datasets": None, "out": out, "progress": quiet, "engine": "plaintext"}
    return reproduce("tiny", **{**arguments, **changes})


def accuracies(out, row):
    records = [json.loads(line) for line in (out / "tiny.jsonl").read_text().splitlines()]
    return [record["test_accuracy"] for record in records if record["row"] == row]


@pytest.mark.usefixtures("tiny_table")
def test_the_markdown_has_both_figures_and_where_they_come_from(tmp_path):
    text = make(tmp_path)
    lines = text.splitlines()
    assert lines[0] == "# A tiny table"
    assert lines[2:4] == ["| model | engine | synthetic | paper |", "|---|---|---:|---:|"]
    for line, (row, paper) in zip(
        lines[4:7], [("alone", "0.500"), ("together", "0.750"), ("everything", "–")], strict=True
    ):
        values = accuracies(tmp_path, row)
        assert len(values) == 2
        assert line == f"| {row} | plaintext | {fmean(values):.3f} ± {stdev(values):.3f} | {paper} |"
    assert "over 2 seeds (0, 1) of partition and weights" in text
    assert "protocols' plaintext twin" in text
    assert "- A note." in lines
    assert "- Data sets of this table that were not run: digits." in lines
    assert "- 6 trainings, " in text
    assert " seconds; veilgraph " in text
    assert lines[-1] == "- Made with `python -m research tiny --seeds 2 --plaintext`."
    assert (tmp_path / "tiny.md").read_text() == text


@pytest.mark.usefixtures("tiny_private_table")
def test_a_private_table_tells_what_a_release_and_what_a_run_costs(tmp_path):
    text = reproduce("tiny-private", seeds=1, datasets=None, out=tmp_path, progress=quiet, engine="plaintext")
    lines = text.splitlines()
    assert lines[2:4] == ["| training | engine | ε 4 | ε 8 |", "|---|---|---:|---:|"]
    assert [line.split(" | ")[0] for line in lines[4:6]] == ["| alone", "| noised"]
    assert lines[7:9] == ["| what it costs | ε 4 | ε 8 |", "|---|---:|---:|"]
    sigma, one = "1.086 | 0.543 |", "3.451 | 8.002 |"
    once, twice, thrice = (
        " | ".join(f"{gaussian_epsilon(math.sqrt(releases) * epsilon / CLASSICAL, 1e-4):.4g}" for epsilon in (4, 8))
        for releases in (1, 6, 8)
    )
    assert f"{once} |" == one
    noise, each = "noise σ (standard deviation / clip)", "true ε of one release"
    whole = "**true total ε** (δ = 0.0001, row under zero-out)"
    assert lines[9:15] == [
        f"| every-step, A, has the labels, 8 releases: {noise} | {sigma}",
        f"| every-step, A, has the labels, 8 releases: {each} | {one}",
        f"| every-step, A, has the labels, 8 releases: {whole} | {thrice} |",
        f"| every-step, B, 6 releases: {noise} | {sigma}",
        f"| every-step, B, 6 releases: {each} | {one}",
        f"| every-step, B, 6 releases: {whole} | {twice} |",
    ]
    assert "- Test accuracy after the last epoch where no epoch may be chosen (`select_by: last`); one seed" in text


@pytest.mark.usefixtures("tiny_table")
def test_every_figure_names_its_own_engine(tmp_path):
    text = make(tmp_path, seeds=1, engine="federated", datasets=["synthetic"])
    engines = [line.split(" | ")[1] for line in text.splitlines()[4:7]]
    assert engines == ["plaintext", "federated", "plaintext"]
    assert "- Engine federated: " in text
    assert "twin" not in text
    assert "±" not in text
    assert "MB sent between the parties" in text
    assert "`python -m research tiny --seeds 1 --datasets synthetic`" in text


@pytest.mark.usefixtures("tiny_table")
def test_a_second_call_trains_only_what_is_missing(tmp_path, monkeypatch):
    original, ran = grid.run_cell, []

    def counted(cell, progress):
        ran.append(cell)
        return original(cell, progress)

    monkeypatch.setattr(grid, "run_cell", counted)
    first = make(tmp_path, seeds=1)
    assert len(ran) == 3
    assert make(tmp_path, seeds=1) == first
    assert len(ran) == 3
    make(tmp_path, seeds=2)
    assert [cell.seed for cell in ran[3:]] == [1, 1, 1]


@pytest.mark.usefixtures("tiny_table")
def test_an_interrupted_table_goes_on_where_it_stopped(tmp_path, monkeypatch):
    original, ran = grid.run_cell, []

    def stops(cell, progress):
        ran.append(cell.row)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return original(cell, progress)

    monkeypatch.setattr(grid, "run_cell", stops)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, seeds=1)
    with (tmp_path / "tiny.jsonl").open("a") as file:
        file.write('{"key": "to')
    make(tmp_path, seeds=1)
    assert ran == ["alone", "together", "together", "everything"]


@pytest.mark.usefixtures("tiny_table")
def test_only_the_rows_asked_for_are_run_and_the_others_are_named(tmp_path):
    text = make(tmp_path, seeds=1, rows="alone")
    assert "| alone |" in text
    assert "| together |" not in text
    assert "Rows that were not run: together; everything." in text
    assert "--rows alone" in text
    assert "Rows that were not run" not in make(tmp_path, seeds=1, rows="e")


@pytest.mark.usefixtures("tiny_table")
def test_a_data_set_on_request_runs_when_named(tmp_path):
    text = make(tmp_path, seeds=1, datasets=["digits"])
    assert "| model | engine | digits | paper |" in text
    assert "not run: synthetic." in text


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (
            "table9",
            {},
            r"'table9' does not exist; choose from table2, table3, table4, table5, private-totals, private-units",
        ),
        (
            "table2",
            {"datasets": ["cora", "karate"]},
            r"'karate' is not in table2; .* cora, pubmed, citeseer, ogbn-arxiv",
        ),
        ("table3", {"datasets": ["pubmed"]}, r"'pubmed' is not in table3; choose from cora$"),
        ("table4", {"datasets": []}, r"no data set of table4 is named; choose from cora$"),
        ("table3", {"rows": "nobody"}, r"rows='nobody' is part of no row's name; they are '"),
        ("table2", {"seeds": 0}, r"seeds=0 must be at least 1"),
        ("table2", {"engine": "quantum"}, r"'quantum' does not exist; choose from federated, plaintext"),
    ],
)
def test_wrong_choices_are_refused_by_name_before_anything_is_made(tmp_path, table, changes, message):
    arguments = {"seeds": 1, "datasets": None, "out": tmp_path / "out", "progress": quiet}
    with pytest.raises(ConfigError, match=message):
        reproduce(table, **{**arguments, **changes})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("table", TABLES)
def test_every_place_is_a_valid_job_on_its_data_set(table):
    entries = TABLES[table].entries
    assert len({(entry.row, entry.column) for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.settings.data.dataset == entry.dataset


@pytest.mark.parametrize(
    ("table", "row", "column", "paper"),
    [
        ("table2", "GraphSAGE_B", "pubmed", 0.703),
        ("table2", "VFGNN_C", "cora", 0.790),
        ("table2", "VFGNN_M", "citeseer", 0.695),
        ("table2", "VFGNN_R", "ogbn-arxiv", 0.518),
        ("table2", "GraphSAGE_A+B", "citeseer", 0.700),
        ("table3", "9:1", "VFGNN_M", 0.805),
        ("table3", "7:3", "VFGNN_R", 0.803),
        ("table4", "3", "VFGNN_C", 0.749),
        ("table4", "4", "VFGNN_R", 0.722),
        ("table5", "Gaussian", "per-step ε 4", 0.502),
        ("table5", "James-Stein", "per-step ε 64", 0.804),
        ("rounds", "4", "cora", 0.733),
        ("rounds", "4", "pubmed", None),
        ("rounds", "pooled", "pubmed", 0.791),
    ],
)
def test_figures_of_the_paper_stand_in_their_places(table, row, column, paper):
    (entry,) = [entry for entry in TABLES[table].entries if (entry.row, entry.column) == (row, column)]
    assert entry.paper == paper


def test_the_tables_vary_what_they_say():
    (uneven,) = [e for e in TABLES["table3"].entries if (e.row, e.column) == ("8:2", "VFGNN_C")]
    settings = uneven.settings
    assert settings.data.feature_proportions == settings.data.edge_proportions == (8, 2)
    assert vertical(settings).model.combine.strategy == "concat"
    (many,) = [e for e in TABLES["table4"].entries if (e.row, e.column) == ("4", "VFGNN_R")]
    settings = many.settings
    assert (settings.data.holders, vertical(settings).model.combine.strategy) == (4, "regression")
    (ours,) = [e for e in TABLES["rounds"].entries if (e.row, e.column) == ("3", "pubmed")]
    settings = ours.settings
    assert (settings.data.holders, vertical(settings).model.combine.strategy) == (3, "degree-weighted")


def privacy_of(entry: Entry) -> PrivacySettings:
    found = entry.settings.privacy
    assert found is not None
    return found


def test_table_5_has_the_papers_noise():
    for entry in TABLES["table5"].entries:
        job, privacy = entry.settings, privacy_of(entry)
        sigmas = [planned.multiplier for planned in map(partial(plan, job), ("A", "B")) if planned is not None]
        epsilon = float(entry.column.split()[-1])
        assert sigmas == pytest.approx([CLASSICAL / epsilon] * 2, rel=1e-12)
        assert (job.data.holders, vertical(job).model.combine.strategy, vertical(job).model.initial.method) == (
            2,
            "mean",
            "collaborative",
        )
        assert {"Gaussian": "gaussian", "James-Stein": "james-stein"}[entry.row] == privacy.mechanism


def test_private_totals_compare_at_equal_totals():
    rows: dict[str, list[Entry]] = {}
    for entry in TABLES["private-totals"].entries:
        rows.setdefault(entry.row, []).append(entry)
        job, total = entry.settings, float(entry.column.split()[-1])
        if entry.row == "A alone":
            assert (entry.kind, job) == ("isolated-A", shipped_job("cora-private-once"))
        else:
            assert privacy_of(entry).schedule == entry.row
            plans = {party: plan(job, party) for party in job.data.names}
            costs = {party: planned.epsilon_total for party, planned in plans.items() if planned is not None}
            assert costs == {"A": pytest.approx(0 if entry.row == "once" else total), "B": pytest.approx(total)}
    assert [len(entries) for entries in rows.values()] == [7, 7, 7]


def test_one_value_has_no_spread():
    assert mean_and_spread([0.8]) == "0.800"
    assert mean_and_spread([0.8, 0.82]) == "0.810 ± 0.014"


def test_private_units_start_with_a_control_and_cost_what_they_say() -> None:
    for entry in TABLES["private-units"].entries:
        total = float(entry.column.removeprefix("total ε "))
        assert privacy_of(entry).once
        assert privacy_of(entry).unit in entry.row
        planned = plan(entry.settings, "B")
        assert planned is not None
        assert planned.epsilon_total == pytest.approx(total, rel=1e-3)
    costs = privacy_costs([(entry.column, entry.settings) for entry in TABLES["private-units"].entries])
    assert {row.partition(", B")[0] for row in costs if ", B" in row} == {"once", "once, unit edge", "once, unit node"}
    columns = [entry.column for entry in TABLES["private-units"].entries]
    assert columns[: len(columns) // 3][0] == "total ε 0.0001"


def test_the_command_names_the_tables_there_are(tmp_path: Path) -> None:
    error = CliRunner().invoke(command.app, ["table9", "--out", str(tmp_path)]).stderr
    assert "'table9' does not exist; choose from table2" in error


def test_the_command_hands_its_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def reproduce(table: str, **arguments: Any) -> str:
        arguments.pop("progress")("cora", 1, 2)
        asked.update(arguments, table=table)
        return "| a table |"

    monkeypatch.setattr(command, "reproduce", reproduce)
    given = ["table2", "--seeds", "2", "--datasets", "cora, pubmed", "--rows", "VFGNN", "--out", str(tmp_path)]
    result = CliRunner().invoke(command.app, given)
    assert result.stdout == "| a table |\n"
    assert asked == {
        "table": "table2",
        "seeds": 2,
        "datasets": ["cora", "pubmed"],
        "rows": "VFGNN",
        "out": tmp_path,
        "engine": "federated",
    }
