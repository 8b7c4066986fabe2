"""Three organisations, the server and an administrator as processes of their own on this machine, with mutual TLS."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from veilgraph.core.errors import LinkTimeout, RunError
from veilgraph.core.files import locked, os_errors_as, private_folder, whole_file, write_whole
from veilgraph.core.text import Report
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.project import provision, read_project
from veilgraph.deploy.submit import submit
from veilgraph.graph.settings import DataSettings
from veilgraph.mpc.ring import available_cores
from veilgraph.protocol.job_file import read_job
from veilgraph.samples.organisations import export_dataset

_GRACE_S: Final = 20.0
_POLL_S: Final = 0.2
_UNFINISHED: Final = "unfinished"
_TRIED_PORTS: Final = 100


@dataclass(frozen=True)
class LocalNetwork:
    """A provisioned project whose sites run on this machine."""

    kits: Mapping[PartyId, Path]
    administrator: Kit
    sites: dict[PartyId, subprocess.Popen[bytes]]

    def site(self, party: PartyId) -> PartyId:
        """The site of a party of jobs: of the same name; for ``server`` the dealer, where there is one."""
        return Kit.open(self.kits[SERVER]).roles.dealer or SERVER if party == SERVER else party

    def runs(self, party: PartyId) -> Path:
        """Where a party keeps its runs."""
        return Kit.open(self.kits[self.site(party)]).runs


def run_network_demo(out: Path, report: Report, epochs: int = 60) -> Path:
    """Train and predict over a local network, with digits divided among three sites; return the label holder's run."""
    with _demo_folder(out):
        tables = out / "organisations"
        party_files = export_dataset(DataSettings(dataset="digits", holders=3), tables, overlap=0.8, seed=0)
        report(f"wrote the tables and party files of {', '.join(party_files)} to {tables}")
        project = tables / "project.yaml"
        content = yaml.safe_load(project.read_text(encoding="utf-8"))
        content["server"] = {"host": "localhost", "port": free_port(), "listen": None}
        write_whole(project, yaml.safe_dump(content, sort_keys=False).encode())
        kits = provision(read_project(project), out / "consortium")
        report(f"provisioned {', '.join(kits)} in {out / 'consortium'}")
        settings = read_job(tables / "network-job.yaml")
        train = settings.train.model_copy(update={"epochs": min(epochs, settings.train.epochs)})
        settings = settings.model_copy(update={"train": train})
        with local_network(kits, party_files, report) as network:
            submit(network.administrator, settings, "train", resume=False, wait=True, report=report)
            submit(network.administrator, settings, "predict", resume=False, wait=True, report=report)
            run = network.runs(settings.data.label_party) / settings.name
        (out / _UNFINISHED).unlink()
    return run


@contextmanager
def _demo_folder(out: Path) -> Iterator[None]:
    """Make, lock and empty the folder; ``RunError``: it is in use, or has more than an unfinished demonstration."""
    with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
        private_folder(out)
    with locked(out, f"{out} is in use by another demonstration; choose another --out"):
        if any(out.iterdir()) and not (out / _UNFINISHED).is_file():
            raise RunError(f"{out} exists and is not an empty directory; choose another --out or remove it")
        write_whole(out / _UNFINISHED, b"This demonstration is not through, or failed. The next one here removes it.\n")
        for found in filter(Path.is_dir, out.iterdir()):
            shutil.rmtree(found)
        yield


@contextmanager
def local_network(
    kits: Mapping[PartyId, Path], party_files: Mapping[PartyId, Path], report: Report
) -> Iterator[LocalNetwork]:
    """Join all sites, each in a process, for a block; ``LinkTimeout``: one did not come up; ``RunError``: one ended."""
    opened = [Kit.open(kit) for kit in kits.values()]
    administrator = next(kit for kit in opened if kit.kind == "administrator")
    others = [kit.name for kit in opened if kit.kind in ("broker", "dealer")]
    with ExitStack() as stack:
        sites: dict[PartyId, subprocess.Popen[bytes]] = {}
        stack.callback(_end_sites, sites)
        threads = max(1, available_cores() // len(party_files))
        for party in (SERVER, *others, *party_files):
            sites[party] = join_site(kits[party], party_files.get(party), threads)
        for party, site in sites.items():
            _await_joined(kits[party], site)
            report(f"{party} has joined (process {site.pid})")
        yield LocalNetwork(kits, administrator, sites)


def join_site(kit: Path, party_file: Path | None, threads: int, *options: str) -> subprocess.Popen[bytes]:
    """Starts ``veilgraph net join`` in a process of its own; what it says goes to join.log in the kit."""
    party = [] if party_file is None else ["--party", str(party_file)]
    with whole_file(kit / "join.log") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "veilgraph", "net", "join", str(kit), *party, *options],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _await_joined(kit: Path, site: subprocess.Popen[bytes], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while "is connected" not in (said := (kit / "join.log").read_text(encoding="utf-8", errors="replace")):
        if site.poll() is not None:
            raise RunError(f"{kit.name} could not join: {said.strip()}")
        if time.monotonic() > deadline:
            raise LinkTimeout(f"{kit.name} did not join in {limit_s:g} s; see {kit / 'join.log'}")
        time.sleep(_POLL_S)


def _end_sites(sites: Mapping[PartyId, subprocess.Popen[bytes]]) -> None:
    for site in sites.values():
        site.send_signal(signal.SIGTERM)
    for site in sites.values():
        with suppress(subprocess.TimeoutExpired):
            site.wait(_GRACE_S)
        site.kill()
        site.wait()


def free_port() -> int:
    """A port that was free a moment ago, below those that Linux gives to whoever asks for any; or ``OSError``."""
    with socket.socket() as one:
        for _ in range(_TRIED_PORTS):
            with suppress(OSError):  # another has it
                one.bind(("localhost", 20_000 + secrets.randbelow(12_000)))
                break
        else:
            one.bind(("localhost", 0))
        return int(one.getsockname()[1])
