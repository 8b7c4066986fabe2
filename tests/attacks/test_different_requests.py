"""Parties that were asked for different work, or run different software, in one session."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.errors import refused
from tests.faults.runs import table_job
from tests.paradigms.apart import apart
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.page import page_html
from veilgraph.runtime.launch import site
from veilgraph.runtime.launch.site import SiteWork
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.runtime.store.session_log import SOFTWARE_FILE, installed_software, software_words


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[PartyId, Path]:
    parties = table_job(tmp_path_factory.mktemp("tables")).data.parties or {}
    return {party: path for party, path in parties.items() if path is not None}


@pytest.fixture(scope="module")
def settings(files: Mapping[PartyId, Path]) -> JobSettings:
    holders = list(files)
    data = {"holders": holders, "label_holder": holders[0]}
    train = {"epochs": 1, "patience": None, "select_by": "last"}
    return parse_job({"name": "job", "data": data, "model": {"dim": 4}, "train": train})


@pytest.mark.parametrize("other", ["align", "predict", "audit"])
@pytest.mark.parametrize("odd", [1, SERVER])
def test_one_party_cannot_align_or_predict_while_another_trains(
    files: dict[PartyId, Path], settings: JobSettings, tmp_path: Path, other: SiteWork, odd: PartyId | int
) -> None:
    """The attack: a kit, or the engine's server, starts different work at one party. Today they exchange ids."""
    names = [*files, SERVER]
    asked: dict[PartyId, SiteWork] = dict.fromkeys(names, "train")
    asked[names[odd] if isinstance(odd, int) else odd] = other
    with refused(ConfigError, code="other-work"):
        apart(tmp_path, files, settings, asked)
    assert not list(tmp_path.rglob("alignment.json"))


def test_one_party_cannot_resume_while_another_begins(
    files: dict[PartyId, Path], settings: JobSettings, tmp_path: Path
) -> None:
    with refused(ConfigError, code="other-work"):
        apart(tmp_path, files, settings, resume={party: party == SERVER for party in (*files, SERVER)})
    assert not list(tmp_path.rglob("alignment.json"))


def test_software_is_recorded_every_session_and_a_difference_is_shown(
    files: dict[PartyId, Path],
    settings: JobSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Second session: one party has installed another release in between."""
    runs = apart(tmp_path, files, settings, "align")
    assert "software differs" not in caplog.text
    names, stated = iter(range(3)), installed_software()

    def software() -> dict[str, str]:
        return {**stated, "torch": "9.9"} if next(names) == 1 else stated

    monkeypatch.setattr(site, "installed_software", software)
    apart(tmp_path, files, settings, resume=True)
    assert "the parties' software differs" in caplog.text
    for party, run in runs.items():
        folder = run / "parties" / party
        first, second = [json.loads(line) for line in (folder / SOFTWARE_FILE).read_text().splitlines()]
        assert first["work"] == "align"
        assert set(first["software"]) == {*files, SERVER}
        assert list(first["software"].values()) == [stated] * 3
        assert sorted(each["torch"] for each in second["software"].values()) == sorted([stated["torch"]] * 2 + ["9.9"])
        words = software_words([folder])
        assert words.startswith(f"all parties with veilgraph {stated['veilgraph']}")
        assert "torch 9.9" in words
    page = page_html(RunDirectory.open(runs[next(iter(files))]))
    assert "torch 9.9" in page


@pytest.mark.parametrize("field", [{"x": "1\n2"}, {"x\x1b": "1"}, {"x": "y" * 65}, {str(n): "1" for n in range(33)}])
def test_what_a_peer_states_of_its_software_is_bounded(field: dict[str, Any]) -> None:
    from veilgraph.protocol.agreement import Hello  # noqa: PLC0415

    with pytest.raises(ValueError, match="software"):
        Hello(job="a", software=field)
