"""The page of a comparison, and that of several runs."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.report.conftest import Copy
from tests.report.made import JOB, study
from tests.report.markup import Page, loads_nothing
from tests.roles.federation import merge
from veilgraph.comparison.study import FOUND, Number
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.protocol.limits import revelations
from veilgraph.report.comparison import (
    comparison_html,
    read_comparison,
    remarks,
    study_table,
    verdict,
    write_comparison,
)
from veilgraph.report.page import several_html
from veilgraph.runtime.store.run_directory import RunDirectory


def test_the_page_of_a_comparison_has_every_way_with_its_interval(tmp_path: Path) -> None:
    made = study(tmp_path / "study")
    source = comparison_html(read_comparison(tmp_path / "study"))
    page = Page(source)
    loads_nothing(source, page)
    assert "i" not in {tag for tag, _ in page.elements}
    for line in made.ways:
        auc = line.figures["auc"]
        shown = (
            f"{line.name}{' (this job)' * (line.name == 'vertical')}{auc.value:.3f} ({auc.low:.3f} to {auc.high:.3f})"
        )
        assert any(text.startswith(shown) for text in page.within["tr"]), shown
        assert any(text == f"{line.name}about {line.name}{line.shares}" for text in page.within["tr"])
    assert page.attributes("tr").count({"class": "chosen"}) == 3
    marks = [svg for svg in page.attributes("svg") if svg["class"] == "ways"]
    assert len(marks) == 1
    assert "pooled 0." in marks[0]["aria-label"]
    for sentence in revelations(JOB).values():
        assert sentence in page.text
    assert "Recall is of class 1, among the 10 % of the nodes" in page.text


@pytest.mark.parametrize(
    ("way", "auc", "said"),
    [
        ("A alone", 0.996, "Likely leak: the test AUC is 0.996 of A alone, so"),
        ("pooled", 0.6, "is above pooled (0.600): pooled is one network on all data"),
    ],
)
def test_a_likely_leak_and_a_job_above_its_pooled_reference_are_told(
    way: str, auc: float, said: str, tmp_path: Path
) -> None:
    study(tmp_path / "study")
    plain = read_comparison(tmp_path / "study")
    assert list(remarks(plain)) == []
    assert said not in comparison_html(plain)
    path = tmp_path / "study" / FOUND
    told = json.loads(path.read_text())
    next(each for each in told["ways"] if each["name"] == way)["figures"]["auc"]["value"] = auc
    path.write_text(json.dumps(told))
    found = read_comparison(tmp_path / "study")
    assert said in comparison_html(found)
    (remark,) = remarks(found)
    assert said in remark
    if way == "A alone":  # of more classes than two there is no recall, and that AUC without a leak
        for each in told["ways"]:
            del each["figures"]["recall"]
        path.write_text(json.dumps(told))
        assert list(remarks(read_comparison(tmp_path / "study"))) == []
    if way == "pooled":
        (other,) = (each for each in told["ways"] if each["name"] == way)
        path.write_text(json.dumps(told | {"ways": [*told["ways"], other | {"name": "pooled: boosting"}]}))
        assert "pooled is the better of two models" in next(remarks(read_comparison(tmp_path / "study")))
    undefined = next(each for each in told["ways"] if each["name"] == "pooled")["figures"]["auc"]
    undefined.update(value=None, low=None, high=None)
    path.write_text(json.dumps(told))
    found = read_comparison(tmp_path / "study")
    assert not any("above pooled" in each for each in remarks(found))
    assert "–" in [str(cell) for column in study_table(found).columns for cell in column.cells]


def test_differences_have_intervals_and_say_whether_they_are_chance(tmp_path: Path) -> None:
    made = study(tmp_path / "study")
    page = Page(comparison_html(read_comparison(tmp_path / "study")))
    by_name = {line.name: line for line in made.ways}

    def row(name: str) -> str:
        (found,) = [text for text in page.within["tr"] if re.match(rf"{re.escape(name)}( \(this job\))?[–+-]", text)]
        return found

    def signed(one: Number) -> str:
        return f"{one.value:+.3f} ({one.low:+.3f} to {one.high:+.3f})"

    alone, pooled = by_name["A alone"], by_name["pooled"]
    assert alone.to_job is not None
    assert pooled.to_job is not None
    assert pooled.gain is not None
    assert row("A alone") == f"A alone–{signed(alone.to_job['auc'])}less, by more than chance"
    assert float(alone.to_job["auc"].high or 0) < 0
    assert row("pooled") == f"pooled{signed(pooled.gain['auc'])}{signed(pooled.to_job['auc'])}{'more than chance'}"
    assert row("vertical").endswith("––")
    over, (first, other) = made.over_home, (by_name[name].figures["auc"].value for name in ("vertical", "A: <i>"))
    assert over is not None
    assert first is not None
    assert other is not None
    assert over.value == pytest.approx(first - other, abs=2e-6)  # of the best at home, not of the network alone
    assert f"AUC {signed(over)} above the best at home, more than chance. The best at home is 'A: <i>'" in page.text
    assert "more than chance" in verdict(read_comparison(tmp_path / "study"))


def test_report_writes_the_page_of_a_comparison_anew(tmp_path: Path) -> None:
    path = tmp_path / "study"
    study(path)
    result = veilgraph("report", path)
    assert result.exit_code == 0, result.output
    assert f"page    {path / 'comparison.html'}" in result.stdout
    assert write_comparison(path, tmp_path / "other.html").read_bytes() == (path / "comparison.html").read_bytes()
    told = json.loads((path / FOUND).read_text())
    del told["ways"][0]["to_job"]
    (path / FOUND).write_text(json.dumps(told))
    with refused(RunError, key=path / FOUND):
        read_comparison(path)
    (path / FOUND).unlink()
    assert "is not complete" in one_error(veilgraph("report", path))


# Several runs


def test_several_runs_show_what_differs_and_what_each_reached(runs: dict[str, Path], copy: Copy) -> None:
    other = copy("plain")
    job = yaml.safe_load((other / "job.yaml").read_text())
    (other / "job.yaml").write_text(yaml.safe_dump(merge(job, {"seed": 9, "model": {"local": {"hops": 4}}})))
    summary = json.loads((runs["plain"] / "summary.json").read_text())
    source = several_html([RunDirectory.open(path) for path in (runs["plain"], other, runs["horizontal"])])
    page = Page(source)
    loads_nothing(source, page)
    names = ["/".join(path.parts[-2:]) for path in (runs["plain"], other)]
    (differing,) = [text for text in page.within["table"] if "All others are the same" in text]
    rows = [re.sub(r"\s*\n\s*", "|", text) for text in page.within["tr"]]
    assert f"seed{job['seed']}90" in rows
    assert f"model.local.hops{job['model']['local']['hops']}4–" in rows
    assert "precision" not in differing
    assert all(name in page.text for name in names)
    reached = [text for text in page.within["tr"] if f"{100 * summary['test_accuracy']:.1f} % (" in text]
    assert len(reached) >= 2
    charts = [text.strip() for text in page.within["figcaption"]]
    assert charts == ["Loss of validation nodes", "Accuracy of validation nodes"]
    assert len(page.attributes("polyline")) == 6
    assert {line["class"] for line in page.attributes("polyline")} == {"s1", "s2", "s3"}


def test_several_runs_of_one_command(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = veilgraph("report", runs["plain"], runs["private"], "--out", page)
    assert result.exit_code == 0, result.output
    assert page.is_file()
    assert veilgraph("report", runs["plain"], runs["private"]).exit_code == 0
    assert (runs["plain"].parent / "runs.html").read_bytes() == page.read_bytes()
    assert "--verify" in usage_error(veilgraph("report", runs["plain"], runs["private"], "--verify"))
    with refused(ConfigError, key="runs"):
        several_html([RunDirectory.open(runs["plain"])] * 2)
    with refused(ConfigError, key="runs", value=7):
        several_html([RunDirectory.open(runs["plain"])] * 7)
