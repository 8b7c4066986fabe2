"""What a party's log says of how far it is, and what is noted of its bytes, while a job runs."""

import logging
from pathlib import Path

import pytest

from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import party as computing

JOB = {
    "data": {"dataset": "synthetic"},
    "model": {"dim": 4, "initial": {"method": "individual"}},
    "train": {"epochs": 5, "checkpoint_every": 2, "patience": None},
}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.name == "veilgraph"]
    return [line for line in said if line.startswith("epoch ")]


def test_what_takes_longer_than_half_a_minute_is_told_between_checkpoints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "TOLD_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, "veilgraph"):
        train(parse_job(JOB), tmp_path / "slow")
    lines = told(caplog)
    assert sorted(set(lines)) == [f"epoch {epoch} of at most 5" for epoch in range(1, 6)]
    assert {lines.count(line) for line in lines} == {3}, "once at every party"
