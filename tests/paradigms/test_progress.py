"""What a party's log says of how far it is, and what is noted of its bytes, while a job runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from veilgraph.core.files import write_whole
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime import store as names
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import party as computing
from veilgraph.runtime.store import session_log as sending

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


def test_a_note_has_the_bytes_of_all_of_the_session_and_the_log_every_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[dict[str, int]] = []
    write = write_whole

    def kept(path: Path, content: bytes) -> None:
        if path.name == names.SENDING and path.parent.name == "A":
            notes.append(json.loads(content)["session"])
        write(path, content)

    monkeypatch.setattr(sending, "write_whole", kept)
    with caplog.at_level(logging.INFO, "veilgraph"):
        run = train(parse_job(JOB), tmp_path / "run")
    assert sorted(set(told(caplog))) == ["epoch 2 of at most 5", "epoch 4 of at most 5"]
    for direction in ("sent", "received"):
        counts = [note[direction] for note in notes]
        assert counts == sorted(counts), "blocks that are on record count on"
        rows = json.loads((run.path / "parties" / "A" / "traffic.json").read_text())
        total = sum(row["bytes"] for row in rows if row["direction"] == direction)
        assert total / 2 < counts[-1] <= total
