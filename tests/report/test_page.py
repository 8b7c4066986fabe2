import json
import re
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.report.conftest import Copy, page_of, part_of
from tests.report.findings import audit, finding
from tests.report.markup import Page, loads_nothing
from tests.roles.federation import merge
from veilgraph.protocol.judge import Predicted
from veilgraph.report.page import page_html
from veilgraph.report.tables import percent
from veilgraph.runtime.store.predictions import load_predictions, save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>'
SECTIONS = [
    "How well it predicts",
    "Who learned what",
    "Privacy ledger",
    "Audit",
    "Purpose and risks",
    "The job in words",
    "Training",
    "Traffic",
    "Glossary",
]
FIRST_SCREEN = 250
"""Words."""


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["plain", "private", "horizontal", "local"])
def test_a_page_is_whole_loads_nothing_and_can_be_read_aloud(name: str, runs: dict[str, Path]) -> None:
    source = page_html(RunDirectory.open(runs[name]))
    page = Page(source)
    assert [text.strip() for text in page.within["h2"]] == SECTIONS
    loads_nothing(source, page)
    assert page.attributes("svg")
    before, _, _ = source.partition('id="judged"')
    assert len(re.sub(r"<style>.*?</style>|<[^>]*>", " ", before, flags=re.DOTALL).split()) < FIRST_SCREEN
    told = [text for tag in ("p", "li", "dd", "caption") for text in page.within[tag]]
    assert not [text for text in told if re.search(r"\b([a-z]+) \1\b", text)], "a word twice"


def test_the_head_says_who_trained_what_together_and_how_it_went(runs: dict[str, Path]) -> None:
    page = page_of(runs["plain"])
    summary = json.loads((runs["plain"] / "summary.json").read_text())
    assert page.within["h1"] == ["plain"]
    assert (
        "A and B trained one model together that predicts which of 3 classes a node is of, on the 60 nodes" in page.text
    )
    accuracy, privacy, verdict, clear = page.within["dd"][:4]
    assert accuracy.startswith(percent(summary["test_accuracy"]))
    assert (privacy, verdict) == ("none", "failed2 of 4 secrets found")
    assert clear.startswith("5 of 13 things")


def test_words_of_others_are_text(copy: Copy) -> None:
    run = copy("plain")
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"data": {"root": f"/{HOSTILE}/"}})))
    store = RunDirectory.open(run).party("A")
    held = load_predictions(store)
    save_predictions(store, Predicted(held.probabilities), held.ids, [HOSTILE, "b", "c"])
    report = audit(
        job="plain", more=(finding(HOSTILE, HOSTILE, "edges", "attribute", 0.6, evidence=HOSTILE, note=HOSTILE),)
    )
    report["skipped"][0]["why"] = HOSTILE
    (run / "audit.json").write_text(json.dumps(report))
    records = run / "parties" / "A" / "disclosures.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    records.write_text("".join(json.dumps({**line, "what": HOSTILE, "why": HOSTILE}) + "\n" for line in lines))
    page = page_of(run)
    tags = [tag for tag, _ in page.elements]
    assert "script" not in tags
    assert "img" not in tags
    for place in ("pre", "th", "td"):
        assert any(HOSTILE in text for text in page.within[place]), place
    assert [name for name in page.within["th"] if name == HOSTILE]


def test_what_left_in_the_clear_comes_first_and_says_what_follows(runs: dict[str, Path]) -> None:
    page = page_of(runs["plain"])
    (everything,) = [text for text in page.within["table"] if "The least protected first" in text]
    assert everything.index("gradient of z_L in the clear") < everything.index("masked embeddings")
    assert "Not protected: the receiver can infer training nodes" in everything
    (follows,) = [text for text in page.within["table"] if "What came true" in text]
    assert "training-rows" in follows
    assert "single-embeddings" not in follows


def test_who_deals_is_named_where_parties_have_certificates(copy: Copy) -> None:
    run = part_of(copy("plain"), "B")
    assert "certified as" not in page_of(run).text
    (file,) = run.glob("parties/*/evidence.jsonl")
    beginning = json.loads(file.read_bytes().splitlines()[0])
    beginning["begins"]["names"] = {"server": "notary"}
    file.write_text(json.dumps(beginning) + "\n")
    assert "combines embeddings; has no data; certified as notary" in page_of(run).text
    assert "party server is certified as notary" in veilgraph("report", run).stdout


def test_an_unfinished_run_says_how_far_it_is(copy: Copy) -> None:
    run = copy("plain")
    (run / "summary.json").unlink()
    assert "The training is not complete: 6 epochs of at most 6 are done." in page_of(run).text
    for path in [path for path in run.iterdir() if path.name != "job.yaml"]:
        path.rename(run.parent / path.name)
    text = page_of(run).text
    assert "Nothing has been trained in this run yet." in text
    assert "Nothing is on record as sent yet" in text
    assert "none has ended here yet" in text


def test_other_paradigms_are_put_into_words(runs: dict[str, Path]) -> None:
    text = page_of(runs["horizontal"]).text
    assert "have the same columns of different nodes" in text
    assert "Each of two holders can subtract its own part from the sums of weight gradients" in text
    text = page_of(runs["local"]).text
    assert "by multi-bit with ε = 1.5, before anybody sees them" in text
    assert "total ε 3.5" in text
    assert "No confusion matrix: the true labels are B's, and A never learns them." in text


def test_the_command_writes_the_page_and_prints_where(copy: Copy, tmp_path: Path) -> None:
    run, elsewhere = copy("plain"), tmp_path / "page.html"
    result = veilgraph("report", run)
    assert result.exit_code == 0, result.output
    assert f"page    {run / 'report.html'}" in result.stdout
    assert "Disclosures" in result.stdout
    assert veilgraph("report", run, "--out", elsewhere).exit_code == 0
    assert elsewhere.read_bytes() == (run / "report.html").read_bytes()
    assert "must end in .html" in usage_error(veilgraph("report", run, "--out", run / "job.yaml"))
    assert "choose another --out" in one_error(veilgraph("report", run, "--out", tmp_path / "none" / "page.html"))
