import json
from statistics import fmean, stdev

import pytest

from research.paper_tables import TABLES, reproduce


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
    assert make(tmp_path) == text, "it was trained anew: seconds are others"


@pytest.mark.cases(5)
@pytest.mark.parametrize("table", TABLES)
def test_every_place_is_a_valid_job_on_its_data_set(table):
    entries = TABLES[table].entries
    assert len({(entry.row, entry.column) for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.settings.data.dataset == entry.dataset
