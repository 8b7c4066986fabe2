"""Jobs in which a holder has several machines, against the same jobs on one."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.paradigms.runs import lasting, saved_job
from veilgraph.core.errors import ConfigError, LinkError, RunError
from veilgraph.protocol.job import write_job
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.launch import jobs, worker
from veilgraph.runtime.launch.jobs import RunOptions, resume, train
from veilgraph.runtime.session.party import run_simulated

TRAIN = {"epochs": 4, "patience": None, "checkpoint_every": 2}
CHANGES = {"precision": "float64", "timeout_s": 60, "model": {"rounds": 2}, "train": TRAIN}
PARTY = """
party: A
nodes: {{file: nodes.csv, id: id, features: [{{columns: x}}]}}
machines: {{count: 2, address: "{address}"}}
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A job, and its run with one machine for each party."""
    folder = tmp_path_factory.mktemp("alone")
    settings = saved_job(folder / "data", CHANGES)
    return settings, train(settings, folder / "run")


def assert_close(result, expected):
    for one, other in zip(lasting(result.metrics), lasting(expected.metrics), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
    torch.testing.assert_close(result.predictions.probabilities, expected.predictions.probabilities, rtol=0, atol=1e-6)


def test_a_holder_trains_with_several_machines_as_with_one(alone, tmp_path):
    settings, expected = alone
    assert_close(train(settings, tmp_path / "run", options=RunOptions(machines={"A": 2})), expected)


def test_the_command_tells_a_partys_process_how_many_machines_it_has(alone, tmp_path, monkeypatch):
    settings, told = alone[0], {}

    def run_processes(module, arguments, tick, wire):
        for words in arguments.values():
            import_module(module).main([*words, "0", wire])
        raise RunError("enough")

    def run_simulated(run, party, work, link, *, machines):
        told[party] = run.path, work, machines

    monkeypatch.setattr(jobs, "run_processes", run_processes)
    for name in ("end_with_launcher", "keep_freed_memory", "share_cores"):
        monkeypatch.setattr(worker, name, lambda *_: None)
    monkeypatch.setattr(worker, "run_simulated", run_simulated)
    write_job(settings, tmp_path / "job.yaml")
    out = tmp_path / "run"
    assert one_error(veilgraph("train", tmp_path / "job.yaml", "--out", out, "--machines", "A=3")) == "enough"
    assert told == {"A": (out, "train", 3), "B": (out, "train", None), "server": (out, "train", None)}


@contextmanager
def machine(party_file):
    """``veilgraph net machine`` of rank 1."""
    program = [sys.executable, "-W", "ignore", "-m", "veilgraph"]
    command = [*program, "net", "machine", "--party", str(party_file), "--rank", "1"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who ignores it hands that down
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert said.splitlines()[-1] == "veilgraph: stopped"
    finally:
        process.kill()
        process.communicate()


def children(process):
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process.pid:
            found.append(int(folder.name))
    return found


@nightly
def test_a_machine_of_the_party_file_may_die_and_serves_job_after_job(alone, tmp_path, monkeypatch):
    settings = parse_job({**alone[0].model_dump(mode="json"), "train": {**TRAIN, "epochs": 16}})
    expected = train(settings, tmp_path / "alone")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "party.yaml").write_text(PARTY.format(address=address))
    named = read_party_settings(tmp_path / "party.yaml").machines
    assert named is not None

    def simulated(run, party, work, link, custom, _):
        run_simulated(run, party, work, link, custom, named if party == "A" else None)

    monkeypatch.setattr(jobs, "run_simulated", simulated)
    with machine(tmp_path / "party.yaml") as process:

        def kill(records):
            for child in children(process) if len(records) > 2 else ():
                os.kill(child, signal.SIGKILL)

        with refused(LinkError, code="machine-gone"):
            train(settings, tmp_path / "run", options=RunOptions(progress=kill))
        result = resume(tmp_path / "run")
    assert 0 < result.summary["started_at"] < 16
    assert_close(result, expected)


def test_what_cannot_be_spread_is_refused_before_a_run_begins(alone, tmp_path):
    settings, _ = alone
    gat = parse_job({**settings.model_dump(mode="json"), "model": {"local": {"model": "gat"}, "dim": 4}})
    with refused(ConfigError, key="model.local.model", value="gat"):
        train(gat, tmp_path / "run", options=RunOptions(machines={"A": 2}))
    on_a_device = settings.model_copy(update={"device": "auto"})
    for job, machines in ((on_a_device, {"A": 2}), (settings, {"C": 2}), (settings, {"A": 2, "B": 2})):
        with refused(ConfigError, key="machines"):
            train(job, tmp_path / "run", options=RunOptions(machines=machines))
    assert not (tmp_path / "run").exists()
    assert "'A' is not PARTY=COUNT" in usage_error(veilgraph("train", "job.yaml", "--machines", "A"))
    (tmp_path / "party.yaml").write_text(PARTY.format(address="127.0.0.1:29500"))
    error = one_error(veilgraph("net", "machine", "--party", tmp_path / "party.yaml", "--rank", "2"))
    assert error.startswith("--rank 2: the party file has machines.count=2")
    (tmp_path / "party.yaml").write_text(PARTY.format(address="10.0.0.5"))
    error = one_error(veilgraph("net", "machine", "--party", tmp_path / "party.yaml", "--rank", "1"))
    assert "machines.address='10.0.0.5'" in error
    assert "as in 10.0.0.5:29500" in error
