"""How well groups of nodes are predicted, by a column of the label holder's tables."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import veilgraph as vg
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.report.conftest import Copy, part_of
from tests.report.made import with_ids
from tests.report.markup import Page
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.report.page import page_html
from veilgraph.report.ranking import ByColumn, alarms, groups, read_column_of
from veilgraph.report.run_data import LabelledPredictions, Split, read_predictions, read_run
from veilgraph.report.tables import Grid
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.nodes import read_values
from veilgraph.tables.settings import TableSettings

COUNT = 400
THRESHOLD = 0.4


def drawn() -> LabelledPredictions:
    generator = np.random.default_rng(3)
    labels = (generator.random(COUNT) < 0.3).astype(np.int64)
    one = 1 / (1 + np.exp(1 - generator.normal(2.0 * labels, 1)))
    likely = np.stack([1 - one, one], axis=1)
    split = Split(np.arange(COUNT)[::-1].copy(), labels, likely, likely.argmax(axis=1), likely)
    return LabelledPredictions("A", ("no", "yes"), split, split, False, tuple(f"n{row}" for row in range(COUNT)))


TOLD = drawn()


def by(values: Sequence[str | None]) -> ByColumn:
    """The values of the test nodes in their order, which is the other way round than their rows'."""
    return ByColumn("x", {f"n{COUNT - 1 - place}": value for place, value in enumerate(values) if value is not None})


def sizes(found: Grid) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in found.rows}


def test_a_groups_figures_are_of_its_own_nodes() -> None:
    values = ["left" if place % 4 else "right" for place in range(COUNT)]
    found = groups(TOLD, by(values), THRESHOLD)
    assert sizes(found) == {"left": 300, "right": 100}
    mine = np.arange(COUNT) % 4 == 0
    at = alarms(TOLD.test.labels[mine] == 1, TOLD.test.likely[mine, 1], THRESHOLD)
    row = found.rows[1]
    shown = dict(zip(found.columns, row, strict=True))
    assert shown["recall at the threshold"].startswith(f"{100 * at.recall.value:.1f} % (")
    assert shown["flagged"].startswith(f"{100 * at.raised.value:.1f} % (")
    assert shown["of yes"].startswith(f"{100 * TOLD.test.labels[mine].mean():.1f} % (")
    assert 0.5 < float(shown["AUC"].split()[0]) < 1
    plain = groups(TOLD, by(values), None)
    assert list(plain.columns) == ["x", "nodes", "accuracy"]
    right = (TOLD.test.taken == TOLD.test.labels)[mine].mean()
    assert plain.rows[1][2].startswith(f"{100 * right:.1f} % (")


def test_few_nodes_are_no_group_of_their_own() -> None:
    names = ["a"] * 200 + ["b"] * 150 + ["c"] * 20 + ["d"] * 19 + ["e"] * 11
    assert sizes(groups(TOLD, by(names), THRESHOLD)) == {"a": 200, "b": 150, "c": 20, "others (2 groups)": 30}
    few = ["a"] * 200 + ["b"] * 185 + ["c"] * 15
    assert sizes(groups(TOLD, by(few), THRESHOLD)) == {"a": 200, "others (2 groups)": 200}
    one = ["a"] * 395 + [None] * 5
    assert sizes(groups(TOLD, by(one), THRESHOLD)) == {"others (2 groups)": 400}
    many = [f"g{place % 16}" for place in range(320)] + [f"h{place % 80}" for place in range(80)]
    found = groups(TOLD, by(many), THRESHOLD)
    assert "are joined" in found.caption
    assert sizes(found)["others (80 groups)"] == 80


def test_numbers_are_in_quarters_and_those_without_one_by_themselves() -> None:
    values = [None if place < 40 else f"{place / 2:.1f}" for place in range(COUNT)]
    found = sizes(groups(TOLD, by(values), THRESHOLD))
    assert list(found.values()) == [90, 90, 90, 90, 40]
    names = list(found)
    assert names[0].startswith("up to ")
    assert names[3].startswith("above ")
    assert names[4] == "no value"
    codes = [str(place % 3) for place in range(COUNT)]
    assert set(sizes(groups(TOLD, by(codes), THRESHOLD))) == {"0", "1", "2"}
    mixed = [*codes[1:], "x"]
    assert set(sizes(groups(TOLD, by(mixed), THRESHOLD))) >= {"0", "1"}


# The label holder's tables


def test_the_command_judges_groups_of_a_column_that_is_no_feature(copy: Copy) -> None:
    run = copy("plain")
    party = with_ids(run)
    result = veilgraph("report", run, "--by", "region", "--party", party)
    assert result.exit_code == 0, result.output
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    (table,) = [text for text in page.within["table"] if "Test nodes by region" in text]
    assert "<b>north</b>" in table
    assert "b" not in {tag for tag, _ in page.elements}
    (run / "report.html").unlink()
    for column, words in (("none", "'none'"), ("y", "is the label itself"), ("id", "is the nodes' id")):
        assert words in one_error(veilgraph("report", run, "--by", column, "--party", party))
    assert "--party" in one_error(veilgraph("report", run, "--by", "region"))
    assert not (run / "report.html").exists()
    assert "--by" in usage_error(veilgraph("report", run, run, "--by", "region"))
    assert "--party" in usage_error(veilgraph("report", run, "--party", party))
    assert "--by" in usage_error(veilgraph("report", run, "--verify", "--by", "region"))


def test_the_party_file_of_the_job_is_taken_where_it_names_one(copy: Copy) -> None:
    run = copy("plain")
    party = with_ids(run)
    directory = RunDirectory.open(run)
    told = read_predictions(read_run(directory))
    data = directory.settings.data.model_copy(update={"parties": {"A": party}})
    found = read_column_of(directory.settings.model_copy(update={"data": data}), told, "age", None)
    assert found.values["n0"] == str(len(found.values) - 1)  # by id, and not by row
    with pytest.raises(DataError):
        read_column_of(directory.settings, told, "none", party)


def test_who_has_no_labels_or_no_ids_has_no_groups(copy: Copy, runs: dict[str, Path]) -> None:
    with refused(ConfigError, key="by"):
        page_html(RunDirectory.open(runs["plain"]), "region")
    run = copy("plain")
    party = with_ids(run)
    with refused(ConfigError, key="party"):
        vg.load_run(run).report(by="region")
    with refused(ConfigError, key="by"):
        page_html(RunDirectory.open(part_of(run, "B")), "region", party)


def test_values_of_any_type_are_text(tmp_path: Path) -> None:
    content = {"party": "A", "nodes": {"file": "t.parquet", "id": "id", "features": [{"columns": ["real"]}]}}
    columns = {
        "id": pa.array(["a", "b", "c"]),
        "real": pa.array([1.5, None, 2.0]),
        "day": pa.array([0, 1, None], pa.date32()),
        "yes": pa.array([True, False, None]),
        "list": pa.array([[1], [2], []]),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    settings = TableSettings.model_validate(content)
    assert read_values(settings, tmp_path, "real") == {"a": "1.5", "c": "2"}
    assert read_values(settings, tmp_path, "day") == {"a": "1970-01-01", "b": "1970-01-02"}
    assert read_values(settings, tmp_path, "yes") == {"a": "true", "b": "false"}
    with pytest.raises(DataError):
        read_values(settings, tmp_path, "list")
    (tmp_path / "t.csv").write_text('id;real\na;"1,5"\nb;x,y\nc;\n')
    comma = {**content, "nodes": {**content["nodes"], "file": "t.csv", "decimal": ","}}  # type: ignore[dict-item]
    assert read_values(TableSettings.model_validate(comma), tmp_path, "real") == {"a": "1.5", "b": "x,y"}
