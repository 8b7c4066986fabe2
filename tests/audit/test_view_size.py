"""Recorded views: how large they will be is said before training, and large ones keep fewer passes."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store import run_directory

JOBS: dict[str, dict[str, Any]] = {
    "vertical": {"model": {"dim": 8}, "train": {"epochs": 12, "patience": None}},
    "secure-sum": {"model": {"dim": 8, "initial": {"method": "secure-sum"}}, "train": {"epochs": 6, "patience": None}},
    "averaging": {"paradigm": "averaging", "train": {"epochs": 4, "patience": None}},
    "sealed": {"paradigm": "sealed", "train": {"epochs": 2}},
}


def views(run: Path) -> int:
    return sum(path.stat().st_size for path in run.glob("parties/*/view/*.messages"))


def job(name: str, **train: int) -> JobSettings:
    content = {"data": {"dataset": "synthetic", "holders": 2}, **JOBS[name]}
    return parse_job(content | {"train": content["train"] | train})


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("name", JOBS)
def test_the_size_is_said_before_training_and_how_views_are_deleted(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "veilgraph"):
        train(job(name), tmp_path / "run", record_views=True)
    (said,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("views:")]
    size = re.search(r"at most about ([\d.]+) (k|M)B in", said)
    assert size is not None, said
    most = float(size[1]) * {"k": 1e3, "M": 1e6}[size[2]]
    assert most / 5 < views(tmp_path / "run") < 1.1 * most
    assert said.endswith(f"rm -r {tmp_path / 'run' / 'parties' / '*' / 'view'}")
    caplog.clear()
    train(job(name), tmp_path / "without")
    assert not [record for record in caplog.records if record.getMessage().startswith("views:")]


@nightly
def test_a_large_view_keeps_fewer_passes_and_can_be_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(job("vertical", epochs=70), tmp_path / "whole", record_views=True)
    monkeypatch.setattr(run_directory, "VIEW_BYTES", 100_000)
    train(job("vertical", epochs=70), tmp_path / "thin", record_views=True)
    train(job("vertical", epochs=70), tmp_path / "asked", record_views=True, view_passes=50)
    assert views(tmp_path / "thin") < views(tmp_path / "whole") / 2
    assert views(tmp_path / "asked") == views(tmp_path / "whole"), "what is asked for is kept whatever its size"
    plan = AuditPlan(attacks=("uniformity", "link-similarity", "reconstruction", "link-propagation"))
    shares, rows = list[float](), list[str]()
    result = audit(tmp_path / "thin", plan, at=shares.append, row=lambda finding: rows.append(finding.attack))
    assert not result.failed
    assert {"uniformity", "link-similarity"} <= {finding.attack for finding in result.findings}
    assert rows == [finding.attack for finding in result.findings], "each as soon as it is known"
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1
