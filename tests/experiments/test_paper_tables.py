import json
import math
from functools import partial
from statistics import fmean, stdev

import pytest

from research.grid import Entry
from research.paper_tables import TABLES, reproduce
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
    assert make(tmp_path) == text, "it was trained anew: seconds are others"


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


@pytest.mark.cases(5)
@pytest.mark.parametrize("table", TABLES)
def test_every_place_is_a_valid_job_on_its_data_set(table):
    entries = TABLES[table].entries
    assert len({(entry.row, entry.column) for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.settings.data.dataset == entry.dataset


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
