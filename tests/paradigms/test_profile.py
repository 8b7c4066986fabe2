"""Training with a profile: one trace of all parties, in which every message has both its ends and no value is."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.paradigms.runs import saved_job
from tests.paradigms.traces import PARTIES, check_arrows, check_format, party_of, spans, trace_of
from tests.roles.federation import Settings
from veilgraph.core.trace import Event
from veilgraph.core.types import Kind
from veilgraph.runtime.launch.jobs import RunOptions, TrainResult, resume, train

STEPS = 4
SHORT: Settings = {"train": {"epochs": STEPS, "evaluate_every": 2}}
WORK = {"forward", "backward", "update", "evaluate", "checkpoint"}
AHEAD = {f"{work} {direction}" for work in ("prepare", "deal") for direction in ("forward", "backward")}
KINDS = "|".join(kind.name.lower() for kind in Kind)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    folder = tmp_path_factory.mktemp("profile")
    return train(saved_job(folder / "data", SHORT), folder / "run", profile=True)


@pytest.fixture(scope="module")
def events(run: TrainResult) -> list[Event]:
    return trace_of(run.path)


def test_the_trace_is_of_all_parties_and_every_message_has_both_ends(run: TrainResult, events: list[Event]) -> None:
    check_format(events)
    check_arrows(events)
    traffic = json.loads((run.path / "traffic.json").read_text(encoding="utf-8"))
    for name in PARTIES:
        of_party = [span for span in spans(events) if party_of(events)[span["pid"]] == name]
        sent = sum(span["args"]["bytes"] for span in of_party if span["cat"] == "send")
        assert sent == sum(row["bytes"] for row in traffic if row["party"] == name and row["direction"] == "sent")
        work = Counter(span["name"] for span in of_party if span["name"] in WORK)
        assert work == {"forward": STEPS, "backward": STEPS, "update": STEPS, "evaluate": 2, "checkpoint": 2}


def test_it_holds_names_tags_bytes_times_and_nothing_else(events: list[Event]) -> None:
    ours = rf"(send ({KINDS}) to|wait for ({KINDS}) from) ({'|'.join(PARTIES)})"
    for span in spans(events):
        if span["cat"] == "work":
            assert span["args"].keys() <= {"step", "epoch", "block"}, span
            assert span["name"] in WORK | AHEAD, span
        else:
            assert re.fullmatch(ours, span["name"])
            assert re.fullmatch(rf"({KINDS})/step \d+/round \d+", span["args"].pop("tag"))
            assert span["args"].keys() == {"bytes"}
        assert all(type(fact) is int for fact in span["args"].values())


def test_a_session_that_goes_on_writes_its_own_trace(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(records: list[Any]) -> None:
        if len(records) >= 3:
            raise Stopped

    settings = saved_job(tmp_path / "data", {"train": {"epochs": 20, "evaluate_every": 20}})
    with pytest.raises(Stopped):
        train(settings, tmp_path / "run", profile=True, options=RunOptions(progress=stop))
    assert not (tmp_path / "run" / "trace.json").exists()
    (tmp_path / "run" / "summary.json").unlink(missing_ok=True)
    resume(tmp_path / "run")
    started = json.loads((tmp_path / "run" / "parties" / "A" / "result.json").read_text(encoding="utf-8"))["started_at"]
    events = trace_of(tmp_path / "run")
    check_arrows(events)
    names = party_of(events)
    steps = [span for span in spans(events) if span["name"] == "forward" and names[span["pid"]] == "B"]
    assert len(steps) == 20 - started < 20
