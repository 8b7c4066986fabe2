"""What a job says of itself to people, and what could go wrong with it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from tests.report.conftest import Copy, page_of
from tests.report.markup import Page
from tests.roles.federation import merge
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory

SYNTHETIC: dict[str, Any] = {"data": {"dataset": "synthetic"}}
RECORD = {"purpose": "to find <i>fraud</i>\nand nothing else", "retention": "one year; the bank deletes"}
PARADIGMS = ("vertical", "sealed", "averaging", "horizontal")
ACROSS: dict[str, Any] = {"data": {"holders": ["bank", "shop"], "label_holder": "bank"}}


def test_parties_agree_to_every_word_of_a_record() -> None:
    hashes = {parse_job(SYNTHETIC).hash()}
    for record in (RECORD, {**RECORD, "purpose": "to sell"}, {"retention": RECORD["retention"]}, {"roles": "none"}):
        job = parse_job({**SYNTHETIC, "record": record})
        hashes.add(job.hash())
        assert parse_job(job.model_dump(mode="json")).hash() == job.hash()
    assert len(hashes) == 5


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"purpose": " "}, "record.purpose"),
        ({"purpose": "\x1b[2Jnothing"}, "record.purpose"),
        ({"roles": "x" * 2001}, "record.roles"),
        ({"aim": "x"}, "record.aim"),
        ({"purpose": 3}, "record.purpose"),
        ({}, "record"),
    ],
)
def test_a_record_that_says_nothing_or_deceives_is_refused(record: dict[str, Any], key: str) -> None:
    with refused(ConfigError, key=key):
        parse_job({**SYNTHETIC, "record": record})


def test_check_shows_the_record(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**SYNTHETIC, "record": RECORD}))
    result = veilgraph("check", file)
    assert result.exit_code == 0, result.output
    assert "purpose: to find <i>fraud</i> and nothing else\n" in result.stdout
    assert "retention: one year; the bank deletes\n" in result.stdout
    assert "roles" not in result.stdout
    file.write_text(yaml.safe_dump({**SYNTHETIC, "record": {"purpose": ""}}))
    assert "record.purpose" in one_error(veilgraph("check", file))


def test_the_page_shows_what_is_said_and_what_is_not(copy: Copy) -> None:
    run = copy("private")
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"record": RECORD})))
    page = page_of(run)
    assert RECORD["purpose"] in page.within["dd"]
    assert "i" not in {tag for tag, _ in page.elements}
    assert page.within["dd"].count("not said: the job has none (record)") == 1
    assert "Not audited: run veilgraph audit private, after training again with --record-views." in page.within["dd"]
    assert "ε bounds what was released with noise" in risks(page)["The model remembers"]


def test_what_an_audit_found_is_said_beside_the_purpose(runs: dict[str, Path]) -> None:
    (found,) = {text for text in page_of(runs["plain"]).within["dd"] if "mounted. Of" in text}
    assert "not audited" not in found


def risks(page: Page) -> dict[str, str]:
    return dict(zip(page.within["dt"], page.within["dd"], strict=True))


def test_what_could_go_wrong_is_that_of_the_job(tmp_path: Path) -> None:
    def said(**job: Any) -> dict[str, str]:
        run = tmp_path / str(len([*tmp_path.iterdir()]))
        RunDirectory.create(run, parse_job({**SYNTHETIC, **job}))
        return risks(page_of(run))

    plain, apart = said(), said(**ACROSS)
    assert "All parties are on one machine" in plain
    assert "That somebody is known is news" not in plain
    assert "All parties are on one machine" not in apart
    assert "bank and shop learns which" in apart["That somebody is known is news"]
    assert "Nothing is noised, so no ε" in plain["The model remembers"]
    private = said(
        paradigm="sealed",
        model={"network": "linear", "edge_slots": 4096},
        train={"select_by": "last"},
        privacy={"unit": "edge", "epsilon_total": 4},
    )
    assert "ε bounds what was released with noise" in private["The model remembers"]
    together = {name: said(paradigm=name)["Parties work together"] for name in PARADIGMS}
    assert len(set(together.values())) == len(PARADIGMS)
    assert "all features of all other holders" in together["vertical"]
    assert "features" not in private["Parties work together"]
    assert "The server and 2 holders" in together["averaging"]
    assert "A party makes more of what it is told" in plain
