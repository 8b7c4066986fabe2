"""Asking the sites of a job beforehand, without an engine: at the server, and at an administrator."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import usage_error, veilgraph
from tests.deploy.asked import job
from tests.deploy.small_project import bank_and_shop
from veilgraph.deploy import checking
from veilgraph.deploy.checking import SiteCheck, site_check_of
from veilgraph.deploy.kit import Kit
from veilgraph.protocol.agreement import PROTOCOL_VERSION
from veilgraph.runtime.launch.site import CheckAnswer

ADMINISTRATOR = "ops@example.org"
FINE = CheckAnswer(version=PROTOCOL_VERSION, job=job().hash())


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Kit]:
    return bank_and_shop(tmp_path_factory.mktemp("project") / "out")


# What an answer says


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({}, "accepts", ""),
        ({"waits": True}, "waits for approval", "net consent"),
        ({"refuses": "limits.max_rounds=1"}, "refuses", "limits.max_rounds=1"),
        ({"refuses": "consent.jobs=0", "waits": True}, "refuses", "consent.jobs=0"),
        ({"unsaid": True}, "refuses", "its operator sees why in its log"),
        ({"version": 7}, "refuses", "speaks protocol version 7"),
        ({"version": PROTOCOL_VERSION + 1, "unsaid": True}, "refuses", "speaks protocol version"),
        ({"job": "0" * 64}, "refuses", "reads other settings"),
        ({"job": ""}, "refuses", "reads other settings"),
    ],
)
def test_what_an_answer_says(changes: dict[str, Any], state: str, said: str) -> None:
    found = site_check_of("bank", job(), FINE.model_copy(update=changes), 1.0)
    assert found.state == state
    assert said in found.says
    assert bool(found.says) == (state != "accepts")


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: fraud\ndata: {holders: [bank, shop], label_holder: bank}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("state", ["accepts", "refuses", "waits for approval", "not connected", "no answer"])
def test_the_command_shows_a_line_for_each_and_ends_well_only_if_all_accept(
    kits: Mapping[str, Kit], job_file: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def asked(kit: Kit, settings: Any, *, within_s: float) -> tuple[SiteCheck, ...]:
        given.append((kit.name, settings.name, within_s))
        return SiteCheck("bank", "accepts"), SiteCheck("shop", state, "because [of] this")

    monkeypatch.setattr(checking, "check_sites", asked)
    kit = kits[ADMINISTRATOR].path
    shown = veilgraph("check", job_file, "--net", kit)
    assert shown.exit_code == (state != "accepts")
    assert all(
        word in shown.stdout for word in ("bank", "shop", state, "because [of] this", "is a valid job", "--kit KIT")
    )
    told = veilgraph("check", job_file, "--net", kit, "--json", "--within", "5")
    assert told.exit_code == (state != "accepts")
    found = json.loads(told.stdout)
    assert found["accepted"] == (state == "accepts")
    assert found["sites"][1] == {"site": "shop", "state": state, "says": "because [of] this"}
    assert given == [(ADMINISTRATOR, "fraud", 120.0), (ADMINISTRATOR, "fraud", 5.0)]


def test_the_command_refuses_what_it_would_ignore(kits: Mapping[str, Kit], job_file: Path, tmp_path: Path) -> None:
    kit = kits[ADMINISTRATOR].path
    assert "--net" in usage_error(veilgraph("check", job_file, "--within", "5"))
    assert "--net" in usage_error(veilgraph("check", job_file, "--passphrase-file", tmp_path / "words"))
    other = veilgraph("check", job_file, "--net", kits["bank"].path)
    assert other.exit_code == 1
    assert "give an administrator's" in other.stderr
    for own in ("data={dataset: synthetic, holders: 2}", "data.holders=[bank, stranger]"):
        of_others = veilgraph("check", job_file, "--set", own, "--net", kit)
        assert of_others.exit_code == 1
        assert "error: data.holders" in of_others.stderr
