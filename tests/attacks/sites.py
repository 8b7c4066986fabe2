"""A provisioned project whose sites run on this machine, and participants of it that attack with a kit of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from unittest import mock

from veilgraph.deploy.demo import LocalNetwork, free_ports, local_network
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import submit
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.organisations import export_dataset

HOLDERS = ("A", "B", "C")
ADMINISTRATOR = "ops@example.org"
TRACER = Path(__file__).parent / "tracer"
ROOT = Path(__file__).parents[2]


@dataclass
class Attacker:
    """A process that has one kit, and a name of its choice or the connections of a job."""

    told: IO[str]
    answers: IO[str]
    process: subprocess.Popen[str] | None = None

    def __call__(self, channel: str, topic: str, target: str, **attempt: Any) -> dict[str, Any]:
        """Makes an attempt; what it came to."""
        attempt |= {"channel": channel, "topic": topic, "target": target}
        print(json.dumps(attempt), file=self.told, flush=True)
        answer: dict[str, Any] = json.loads(self.answers.readline())
        assert not answer.get("error", "").startswith(("AttributeError", "NameError", "TypeError")), answer
        return answer

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        else:
            self.told.close()


@dataclass
class Attacked:
    """The project under attack.

    Attributes:
        network: its sites.
        out: folder of all that it wrote.
        port: of the server, for sites; ``admin_port`` for administrators.
        traces: what FLARE registered in which process.
    """

    network: LocalNetwork
    out: Path
    port: int
    admin_port: int
    traces: Path
    attackers: list[Attacker] = field(default_factory=list)

    def kit(self, party: str) -> Path:
        return self.network.kits[party]

    def log(self, party: str) -> str:
        return (self.kit(party) / "site.log").read_text(encoding="utf-8", errors="replace")

    def token(self, cell: str) -> dict[str, str]:
        """The credentials that FLARE gave a cell; an attacker has those of its own."""
        found: dict[str, str] = json.loads((self.traces / f"token {cell}").read_text())
        return found

    def attacker(self, party: str, name: str, port: int | None = None) -> Attacker:
        """Connects with a participant's kit under a name."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.attacks.attacker", str(self.kit(party))),
                *(f"grpc://localhost:{port or self.port}", name),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        made = Attacker(process.stdin, process.stdout, process)
        self.attackers.append(made)
        assert process.stdout.readline() == "ready\n"
        return made

    def insider(self, job_id: str) -> Attacker:
        """C's process of a job, which goes on with the job as well."""
        door, deadline = self.traces / f"in {job_id[:8]}", time.monotonic() + 60
        while not door.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(door))
            lines = end.makefile("rw", encoding="utf-8")
        made = Attacker(lines, lines)
        self.attackers.append(made)
        return made

    def submit(self, settings: JobSettings, **options: Any) -> list[str]:
        said: list[str] = []
        options = {"resume": False, "wait": True, **options}
        submit(self.network.administrator, settings, "train", report=said.append, **options)
        return said

    def registered(self) -> set[tuple[str, str, str]]:
        """(Cell, channel, topic) of all that FLARE's processes take, as they registered it themselves."""
        lines = [line for file in self.traces.glob("*.jsonl") for line in file.read_text().splitlines()]
        return {(cell, channel, topic) for cell, channel, topic in map(json.loads, lines)}


@contextmanager
def attacked(out: Path, *, guarded: bool = True) -> Iterator[Attacked]:
    """Provisions and joins three holders and the server.

    Args:
        out: folder to make everything in.
        guarded: False: as FLARE would have it, without what stands in front of it.
    """
    party_files = export_dataset(DataSettings(dataset="synthetic", holders=3), out / "tables", overlap=0.8, seed=1)
    for file in party_files.values():  # so that the run can be repeated in one process
        file.write_text(file.read_text(encoding="utf-8") + "\nseed: job\n", encoding="utf-8")
    port, admin_port = free_ports()
    project = ProjectSettings.model_validate(
        {
            "name": "attacked",
            "server": {"host": "localhost", "port": port, "admin_port": admin_port},
            "holders": HOLDERS,
            "administrators": [ADMINISTRATOR],
        }
    )
    kits = provision(project, out / "project")
    traces = out / "traces"
    traces.mkdir()
    with (
        mock.patch.dict(os.environ, _traced(traces, guarded=guarded)),
        local_network(kits, party_files, report=lambda line: None) as network,
    ):
        found = Attacked(network, out, port, admin_port, traces)
        try:
            yield found
        finally:
            for attacker in found.attackers:
                attacker.end()


def _traced(traces: Path, *, guarded: bool) -> Mapping[str, str]:
    path = os.pathsep.join([str(TRACER), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "ATTACK_TRACES": str(traces)} | ({} if guarded else {"ATTACK_UNGUARDED": "1"})


def job(name: str, **changes: Any) -> JobSettings:
    """A job that takes about as long as it must."""
    return parse_job(
        {
            "name": name,
            "data": {"holders": list(HOLDERS), "label_holder": "A", "feature_scaling": "standard"},
            "model": {"dim": 8},
            "train": {"epochs": 8, "checkpoint_every": 4, "patience": None},
            "timeout_s": 120,
            **changes,
        }
    )
