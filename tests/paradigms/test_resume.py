"""A run that was cut off goes on to the bit-identical result, wherever and however it was cut."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.errors import refused
from tests.faults.host import Host, Order
from tests.paradigms.cutting import (
    CutError,
    alive,
    as_training_leaves_it,
    checkpoint,
    cut_at,
    cut_run,
    epochs_of,
    lines_of,
    one_thread,
    wait_for,
)
from tests.paradigms.runs import assert_same_run, saved_job
from tests.roles.federation import OwnModel, Settings, small_job, small_parties
from veilgraph.core.errors import RunError, VeilgraphError
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.runtime.launch.jobs import RunOptions, TrainResult, load_result, predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import Record, RunDirectory, save_tensors

SHORT: Settings = {"train": {"epochs": 9, "checkpoint_every": 2}}
VARIANTS: dict[str, Settings] = {
    "collaborative": {"model": {"initial": {"weight_decay": 0.1}}},
    "secure-sum, rounds, lstm": {
        "model": {
            "rounds": 2,
            "initial": {"method": "secure-sum"},
            "combine": {"strategy": "regression"},
            "local": {"model": "sage-lstm"},
        }
    },
    "concat, no server layers": {
        "model": {
            "combine": {"strategy": "concat"},
            "server": {"layers": 0},
            "local": {"model": "gat"},
            "initial": {"method": "individual"},
        }
    },
}


@dataclass(frozen=True)
class Short:
    """A job, its whole run, and the same run cut at epoch 7, of which a test takes a copy."""

    settings: JobSettings
    whole: TrainResult
    at_7: Path

    def cut(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.at_7, folder / "cut"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Short:
    folder = tmp_path_factory.mktemp("short")
    settings = saved_job(folder / "data", SHORT)
    return Short(settings, train(settings, folder / "whole"), cut_run(settings, folder / "cut", 7))


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("variant", "epochs"),
    list(zip(VARIANTS.values(), [(1, 9), (6,), (3,)], strict=True)),
    ids=VARIANTS.keys(),
)
def test_cut_at_any_epoch(tmp_path: Path, variant: Settings, epochs: tuple[int, ...]) -> None:
    settings = saved_job(tmp_path / "data", SHORT, variant)
    whole = train(settings, tmp_path / "whole")
    for epoch in epochs:
        run = cut_run(settings, tmp_path / f"cut{epoch}", epoch)
        with refused(RunError, key=run):
            load_result(run)
        resumed = resume(run)
        assert_same_run(whole, resumed)
        assert resumed.summary["started_at"] == max(0, (epoch - 1) // 2 * 2)


@nightly
def test_cut_between_stopping_early_and_the_summary(tmp_path: Path) -> None:
    """The last checkpoint says that training is over: every party must know, not the label holder alone."""
    stops = {"epochs": 80, "patience": 1, "checkpoint_every": 1, "evaluate_every": 3}
    settings = saved_job(tmp_path / "data", {"train": {**stops, "learning_rate": 0.3}})
    whole = train(settings, tmp_path / "whole")
    assert len(whole.metrics) < 80
    cut = tmp_path / "cut"
    shutil.copytree(whole.path, cut)
    (cut / "summary.json").unlink()
    for party in ("A", "B", SERVER):
        (cut / "parties" / party / "model.safetensors").unlink()
    resumed = resume(cut)
    assert_same_run(whole, resumed)
    assert resumed.summary["started_at"] == len(whole.metrics)


@nightly
def test_a_checkpoint_that_all_are_known_to_have_is_left_behind_by_leave_alone(tmp_path: Path, short: Short) -> None:
    for victim in ("A", SERVER):
        run = short.cut(tmp_path / victim)
        assert set(map(tuple, epochs_of(run).values())) == {(4, 6)}
        checkpoint(run, victim, 6).unlink()
        with refused(RunError, code="restart"):
            resume(run)
        resumed = resume(run, restart=True)
        assert resumed.summary["started_at"] == 4
        assert_same_run(short.whole, resumed)


@nightly
def test_parties_with_no_common_checkpoint_start_again_by_leave_alone(tmp_path: Path, short: Short) -> None:
    run = short.cut(tmp_path)
    checkpoint(run, "A", 6).unlink()
    checkpoint(run, "B", 4).unlink()
    with refused(RunError, code="restart"):
        resume(run)
    resumed = resume(run, restart=True)
    assert resumed.summary["started_at"] == 0
    assert_same_run(short.whole, resumed)


@nightly
def test_a_checkpoint_of_an_earlier_session_is_not_mixed_with_a_later_ones(tmp_path: Path, short: Short) -> None:
    """A saved epoch 4 and B did not; after the resume B saved it and A did not: the two shares of W do not fit."""
    run = cut_run(short.settings, tmp_path / "cut", 5)
    checkpoint(run, "B", 4).unlink()
    checkpoint(run, SERVER, 4).unlink()
    for party in ("A", "B", SERVER):  # nobody knows that all had it
        (run / "parties" / party / "checkpoints" / "common.json").unlink()
    saved = Checkpoints.save
    refused: list[int] = []

    def save(self: Checkpoints, epoch: int, tensors: dict[str, torch.Tensor], facts: Record) -> None:
        if self.path(epoch).parents[1].name == "A" and epoch == 4:
            refused.append(epoch)
            wait_for(checkpoint(run, "B", 4).exists, 20, "B to save its own")
            raise CutError
        saved(self, epoch, tensors, facts)

    Checkpoints.save = save  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(CutError):
            resume(run)
    finally:
        Checkpoints.save = saved  # type: ignore[method-assign]
    assert refused == [4]
    assert 4 in epochs_of(run)["B"]
    resumed = resume(run)
    assert resumed.summary["started_at"] == 2
    assert_same_run(short.whole, resumed)


@nightly
@pytest.mark.parametrize("torn", ['{"epoch": 8, "step_seco', '{"epoch": 8, "step_seconds": 0.1}'])
def test_a_torn_last_line_of_the_metrics(tmp_path: Path, short: Short, torn: str) -> None:
    run = short.cut(tmp_path)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert len(RunDirectory.open(run).metrics()) == 7
    resumed = resume(run)
    assert_same_run(short.whole, resumed)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 10))


def test_a_complete_run_is_returned_as_it_is(short: Short) -> None:
    whole = short.whole
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in whole.path.rglob("*") if path.is_file()}
    again = resume(whole.path)
    assert again.summary == whole.summary
    assert again.metrics == whole.metrics
    assert torch.equal(again.predictions.probabilities, whole.predictions.probabilities)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in whole.path.rglob("*") if path.is_file()}
    assert after == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def no_facts(path: Path) -> None:
    save_tensors(path, {"weights/x": torch.zeros(1)}, {})


def of_another_party(path: Path) -> None:
    other = "B" if "parties/A" in str(path) else "A"
    shutil.copy(Path(str(path).replace("parties/B", "parties/X").replace("parties/A", f"parties/{other}")), path)


DAMAGES = [truncate, no_facts, of_another_party]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_clear_error(tmp_path: Path, short: Short, damage: Callable[[Path], None]) -> None:
    run = short.cut(tmp_path)
    damage(checkpoint(run, "A", 6))
    started = time.perf_counter()
    with refused(RunError, key=Path("checkpoints/epoch-000006.safetensors")) as caught:
        resume(run)
    assert time.perf_counter() - started < 10
    assert "resume" in str(caught.value)


def test_the_way_out_of_a_damaged_checkpoint_works(tmp_path: Path, short: Short) -> None:
    run = short.cut(tmp_path)
    truncate(checkpoint(run, "B", 6))
    with refused(RunError, key=tmp_path / "cut" / "parties" / "B" / "checkpoints" / "epoch-000006.safetensors"):
        resume(run)
    checkpoint(run, "B", 6).unlink()
    with refused(RunError, code="restart", party="B"):
        resume(run)
    assert_same_run(short.whole, resume(run, restart=True))


@pytest.mark.parametrize(
    "name", ["parties/B/graph.safetensors", "parties/B/seed.json", "summary.json", "metrics.jsonl"]
)
def test_a_part_of_the_run_that_is_missing_or_damaged_is_one_clear_error(
    tmp_path: Path, short: Short, name: str
) -> None:
    path = short.cut(tmp_path) / name
    if path.suffix == ".jsonl" or path.name == "summary.json":
        path.write_text("{\n")
    else:
        path.unlink()
    with pytest.raises(VeilgraphError, match=name):
        resume(tmp_path / "cut")


def test_what_is_no_run_is_one_clear_error(tmp_path: Path, short: Short) -> None:
    run = short.cut(tmp_path)
    with refused(RunError, key=tmp_path / "nowhere"):
        resume(tmp_path / "nowhere")
    (run / "job.yaml").write_text("seed: minus one\n")
    with pytest.raises(RunError, match="seed"):
        resume(run)


@nightly
def test_a_moved_run_goes_on(tmp_path: Path, short: Short) -> None:
    run = cut_run(saved_job(tmp_path / "data", SHORT), tmp_path / "cut", 5).rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "data")
    assert_same_run(short.whole, resume(run))


@nightly
def test_private_seeds_come_back(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data", SHORT)
    with as_training_leaves_it():
        whole = train(settings, tmp_path / "whole", private_seeds=True)
    cut = tmp_path / "cut"
    shutil.copytree(whole.path, cut)
    (cut / "summary.json").unlink()
    for party in ("A", "B", SERVER):
        checkpoint(cut, party, 8).unlink()
    resumed = resume(cut, restart=True)
    assert resumed.summary["started_at"] == 6
    assert_same_run(whole, resumed)


@nightly
def test_graphs_given_directly_and_an_own_model(tmp_path: Path) -> None:
    settings = small_job(2, SHORT, {"model": {"local": {"model": "custom"}}})
    whole = train(settings, tmp_path / "whole", parties=small_parties(2), options=RunOptions(custom=OwnModel))
    with cut_at(6), pytest.raises(CutError):
        train(settings, tmp_path / "cut", parties=small_parties(2), options=RunOptions(custom=OwnModel))
    assert_same_run(whole, resume(tmp_path / "cut", options=RunOptions(custom=OwnModel)))


# Real kills

LONG: Settings = {"train": {"epochs": 80, "checkpoint_every": 7, "evaluate_every": 3}}

TRAIN_IN_FORKS = """
import json, os, sys
import torch
torch.set_num_threads(1)
from pathlib import Path
from veilgraph.protocol.job_file import read_job
from veilgraph.runtime.launch.jobs import train
job, *outs = sys.argv[1:]
pids = {}
for out in outs:
    pid = os.fork()
    if pid == 0:
        train(read_job(Path(job)), Path(out))
        os._exit(0)
    pids[out] = pid
    print(json.dumps([out, pid]), flush=True)
    os.waitpid(pid, 0)
"""


@nightly
def test_killed_early_and_late(tmp_path: Path) -> None:
    """SIGKILL to a process that trains in threads."""
    settings = saved_job(tmp_path / "data", LONG)
    write_job(settings, tmp_path / "job.yaml")
    moments = {tmp_path / "early": 1, tmp_path / "late": 40}
    script = [sys.executable, "-c", TRAIN_IN_FORKS, str(tmp_path / "job.yaml"), *map(str, moments)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, env=one_thread(), text=True) as host:
        assert host.stdout is not None
        for run, line in moments.items():
            name, pid = json.loads(host.stdout.readline())
            assert name == str(run)
            wait_for(lambda run=run, line=line: lines_of(run) >= line, 60, f"{line} epochs")  # type: ignore[misc]
            os.kill(pid, signal.SIGKILL)
        assert host.wait(20) == 0
    whole = train(settings, tmp_path / "whole")
    for run, line in moments.items():
        assert line <= lines_of(run) < 80
        assert not (run / "summary.json").exists()
        resumed = resume(run)
        assert_same_run(whole, resumed)
        assert resumed.summary["started_at"] < 80
        assert resumed.summary["started_at"] >= line - 7 - 3


@nightly
def test_one_partys_process_is_killed(tmp_path: Path, host: Host) -> None:
    """The others stop with a clear error instead of waiting, and the run goes on afterwards."""
    settings = saved_job(tmp_path / "data", {"train": {"epochs": 120, "checkpoint_every": 7, "evaluate_every": 3}})
    run = tmp_path / "run"
    pids = host.begin(Order(settings, run))
    wait_for(lambda: lines_of(run) >= 20 or host.ends_within(0), 90, "20 epochs")
    os.kill(pids["B"], signal.SIGKILL)
    outcome = host.end()
    assert outcome.error == "PeerFailed"
    assert outcome.message.startswith("B's process was killed by signal 9")
    assert outcome.silent == []
    assert alive(pids) == []
    done = lines_of(run)
    assert 20 <= done < 120
    resumed = resume(run)
    assert resumed.summary["started_at"] >= done - 7 - 3
    whole = train(settings, tmp_path / "whole")
    assert_same_run(whole, resumed)
    assert torch.equal(predict(run).probabilities, whole.predictions.probabilities)
