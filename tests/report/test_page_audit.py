import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests import nightly
from tests.errors import refused
from tests.report.conftest import Copy, page_of
from tests.report.findings import audit, finding, interval, leak
from veilgraph.audit.finding import Finding
from veilgraph.core.errors import RunError
from veilgraph.report.audit import is_found, words_of

NOT_FOUND = {"found": False, "auc": 0.7, "p_value": 0.002, "level": 0.001, "against": 0.5}


@nightly
def test_every_finding_has_a_verdict_in_words(runs: dict[str, Path]) -> None:
    page = page_of(runs["plain"])
    *rows, epsilon = (text for text in page.within["tr"] if " against B: " in text or " against A: " in text)
    verdicts = [
        "better than without: a disclosed leak",
        "says no more than it knew before",
        "no better than guessing",
        "better than guessing: a disclosed leak",
        "no better than guessing",
    ]
    assert len(rows) == len(verdicts)
    assert [verdict for row, verdict in zip(rows, verdicts, strict=True) if verdict in row] == verdicts
    assert "above the limit of 0.6" in rows[1]
    assert "within its limit of 0.9" in rows[0]
    assert "no more than the ledger's ε allows" in epsilon
    assert "C receives no gradient in this job" in page.text
    assert len([svg for svg in page.attributes("svg") if svg.get("class") == "roc"]) == 5


def test_a_leak_fails_the_audit_and_none_passes_it(copy: Copy) -> None:
    run = copy("plain")
    for more, verdict in (((), "passed"), ((leak(),), "failed")):
        report = audit(job="plain", more=more)
        report["findings"] = [each for each in report["findings"] if each["limit"] != 0.6]
        (run / "audit.json").write_text(json.dumps(report))
        page = page_of(run)
        assert page.within["dd"][2] == f"{verdict}2 of 3 secrets found"
        assert ("LEAK: masked evidence tells something" in page.text) == bool(more)


def test_without_limits_the_top_of_the_page_says_what_was_found(copy: Copy) -> None:
    run, report = copy("plain"), audit(job="plain")
    report["findings"] = [{**each, "limit": None, "passed": None} for each in report["findings"] if each["permitted"]]
    for kept, verdict, tone in (
        (slice(None), "2 of 4 secrets found", "leak"),
        (slice(1, 3), "0 of 2 secrets", "plain"),
    ):
        content = {**report, "findings": report["findings"][kept]}
        (run / "audit.json").write_text(json.dumps(content))
        page = page_of(run)
        assert page.within["dd"][2].startswith(verdict)
        assert page.within["dd"][2].endswith("no limits set")
        strongest = max(each["value"]["value"] for each in content["findings"] if each["measure"] == "auc")
        assert (f"the strongest with AUC {strongest:.3f}; 0.500 by guessing" in page.within["dd"][2]) == (
            tone == "leak"
        )
        assert tone in [each.get("class") for each in page.attributes("dd")]


def test_errors_of_attacks_and_a_restricted_audit_are_said(copy: Copy) -> None:
    run, report = copy("plain"), audit(job="plain")
    report["findings"] = [each for each in report["findings"] if each["limit"] != 0.6]
    report["skipped"][0] |= {"name": "label-norm", "why": "ValueError: <b>", "raised": True}
    (run / "audit.json").write_text(json.dumps({**report, "attacks": ["epsilon"], "adversaries": ["server", "A"]}))
    page = page_of(run)
    assert page.within["dd"][2].startswith("failed")
    assert "only a part was asked for" in page.within["dd"][2]
    assert "1 attack ended with an error, below: the audit does not pass." in page.text
    assert "ended with an error: ValueError: <b>" in page.text
    assert "Only a part was asked for: attacks epsilon; adversaries server, A." in page.text


def test_the_terminal_and_the_page_find_by_one_rule() -> None:
    for expected, changes in (
        (True, {"value": interval(0.7), "verdict": NOT_FOUND}),
        (False, {"value": interval(0.51), "verdict": NOT_FOUND}),
        (True, {"value": interval(0.51), "verdict": {**NOT_FOUND, "found": True}}),
        (True, {"value": interval(0.7), "verdict": NOT_FOUND, "without": interval(0.6), "gain": interval(0.1)}),
        (False, {"value": interval(0.7), "verdict": None, "without": interval(0.7), "gain": interval(0)}),
    ):
        content = {**finding("server", "B", "edges", "link-similarity", 0.7), "note": "", **changes}
        one = TypeAdapter(Finding).validate_python(content)
        brief, whole, tone = words_of(one)
        assert is_found(one) == expected
        assert expected == (tone == "leak") == brief.startswith("more than") == whole.startswith("better than")


def test_a_limit_that_nothing_was_held_to_fails_the_audit(copy: Copy) -> None:
    run, report = copy("plain"), audit(job="plain")
    report["findings"] = [each for each in report["findings"] if each["limit"] != 0.6]
    report["skipped"][0] |= {"name": "label-gradient", "limited": True}
    (run / "audit.json").write_text(json.dumps(report))
    page = page_of(run)
    assert page.within["dd"][2] == "failed2 of 3 secrets found"
    assert "Nothing was held to the limits on label-norm: the audit does not pass." in page.text


def test_an_epsilon_above_the_ledgers_fails_the_audit_in_words(copy: Copy) -> None:
    run, report = copy("plain"), audit(job="plain")
    report["findings"] = [each for each in report["findings"] if each["limit"] != 0.6]
    report["findings"][-1] |= {"limit": 1.5, "passed": False, "exceeded": ["epsilon"]}
    (run / "audit.json").write_text(json.dumps(report))
    page = page_of(run)
    assert page.within["dd"][2] == "failed2 of 3 secrets found"
    (row,) = (text for text in page.within["tr"] if "canaries under the noise" in text)
    assert "LEAK: more than the ledger's ε allows" in row
    assert "above its limit of 1.5" in row
    assert "no more than the ledger's ε allows" not in row
    assert "1 did not" in page.text
    tones = [attributes.get("class") for attributes in page.attributes("p")]
    assert (tones.count("bad"), tones.count("leak")) == (2, 2), "the words and the limit of the one that failed"


def test_an_audit_of_another_job_is_said_to_be_that(copy: Copy) -> None:
    run = copy("plain")
    (run / "audit.json").write_text(json.dumps(audit(job="other")))
    text = page_of(run).text
    assert "This audit is of another job, other (vertical): audit the run again." in text
    assert "No limit was set" not in text


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ("[" * 10_000, "damaged"),
        ("[]", "not an audit of version 2"),
        (json.dumps({**audit(job="plain"), "version": 1}), "not an audit of version 2"),
        (json.dumps({**audit(job="plain"), "findings": [{}]}), r"not an audit \(findings"),
    ],
)
def test_a_damaged_audit_is_named(content: str, says: str, copy: Copy) -> None:
    run = copy("plain")
    (run / "audit.json").write_text(content)
    with refused(RunError, key=Path("audit.json")):
        page_of(run)


@nightly
@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": interval(0.7), "verdict": NOT_FOUND}, "better than guessing: a disclosed leak"),
        ({"value": interval(0.51), "verdict": NOT_FOUND}, "no better than guessing"),
        (
            {"value": interval(0.7), "verdict": NOT_FOUND, "without": interval(0.6), "gain": interval(0.1)},
            "better than without",
        ),
        (
            {"value": interval(0.7), "verdict": None, "without": interval(0.7), "gain": interval(0)},
            "says no more than it knew",
        ),
    ],
)
def test_words_never_say_less_than_the_interval_that_is_drawn(changes: dict[str, Any], words: str, copy: Copy) -> None:
    run = copy("plain")
    content = {
        **audit(job="plain"),
        "findings": [{**finding("server", "B", "edges", "link-similarity", 0.7), **changes}],
    }
    (run / "audit.json").write_text(json.dumps(content))
    (row,) = [text for text in page_of(run).within["tr"] if " against B: " in text]
    assert words in row
