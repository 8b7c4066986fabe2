"""A consortium of processes on this machine, and its jobs."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.processes import processes_of
from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import LocalNetwork, free_port, join_site, local_network
from veilgraph.deploy.key_file import PASSPHRASE_VARIABLE, protect
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import SiteJobs
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import submit
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_dataset

HOLDERS = ("A", "B", "C")


JOB: dict[str, Any] = {
    "data": {"holders": list(HOLDERS), "label_holder": "A", "feature_scaling": "standard"},
    "model": {"dim": 8},
    "train": {"epochs": 8, "checkpoint_every": 2, "patience": None},
    "timeout_s": 120,
}


PROTECTED = (SERVER, "B", "ops@example.org")


WORDS = b"four words of a dictionary"
"""The passphrase of the keys of ``PROTECTED``; the others' lie in the clear."""


@dataclass(frozen=True)
class Consortium:
    network: LocalNetwork
    out: Path
    port: int

    def run(self, party: str, name: str) -> RunDirectory:
        return RunDirectory.open(self.network.runs(party) / name)

    def submit(self, settings: JobSettings, work="train", **options) -> list[str]:
        said: list[str] = []
        options = {"resume": False, "wait": True, **options}
        submit(self.network.administrator, settings, work, report=said.append, **options)
        return said

    def join(self, party: str) -> None:
        """Starts the site of ``party``, which has ended, again."""
        party_file = None if party == SERVER else self.party_file(party)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(PASSPHRASE_VARIABLE, WORDS.decode())
            self.network.sites[party] = join_site(self.network.kits[party], party_file, 1)

    def party_file(self, party: str) -> Path:
        """With which the site of a holder joined."""
        return self.out / "tables" / party / "party.yaml"

    @contextmanager
    def changed(self, lines: Mapping[str, str] | str, **others: Path) -> Iterator[None]:
        """The same line more, or each holder's own, in the party files; ``others`` are put back afterwards as well."""
        files = {party: self.party_file(party) for party in HOLDERS}
        before = {file: file.read_text(encoding="utf-8") for file in (*files.values(), *others.values())}
        try:
            for party, file in files.items():
                line = lines if isinstance(lines, str) else lines.get(party, "")
                file.write_text(f"{before[file]}\n{line}\n", encoding="utf-8")
            yield
        finally:
            for file, text in before.items():
                file.write_text(text, encoding="utf-8")


def job(name: str, **changes) -> JobSettings:
    return parse_job({"name": name, **JOB, **changes})


def job_processes(consortium: Consortium, party: str) -> list[int]:
    """The processes that run a job in the kit of ``party``."""
    found = processes_of(consortium.network.kits[party])
    return [pid for pid, command in found.items() if "veilgraph.deploy.part" in command]


def await_quiet(consortium: Consortium) -> None:
    """Until no site knows of a job that runs."""
    kits = [Kit.open(path) for path in consortium.network.kits.values()]
    deadline = time.monotonic() + 60
    while any(job.state == "running" for kit in kits if kit.kind != "administrator" for job in SiteJobs(kit).now()):
        assert time.monotonic() < deadline
        time.sleep(0.5)


@contextmanager
def started(out: Path, dealer: str | None = None) -> Iterator[Consortium]:
    """The consortium, joined, while the block lasts."""
    party_files = export_dataset(DataSettings(dataset="synthetic", holders=3), out / "tables", overlap=0.8, seed=1)
    for file in party_files.values():  # so that the run can be repeated in one process
        file.write_text(file.read_text(encoding="utf-8") + "\nseed: job\n", encoding="utf-8")
    port = free_port()
    project = ProjectSettings.model_validate(
        {
            "name": "consortium",
            "server": {"host": "localhost", "port": port},
            "holders": HOLDERS,
            "dealer": dealer,
            "administrators": ["ops@example.org"],
        }
    )
    with ExitStack() as stack:
        before = os.umask(0)  # what provisioning and the sites make must be private all the same
        try:
            kits = provision(project, out / "project")
            for name in PROTECTED:
                opened = Kit.open(kits[name])
                protect(opened.key_file, opened.path, lambda: WORDS)
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv(PASSPHRASE_VARIABLE, WORDS.decode())
                network = stack.enter_context(local_network(kits, party_files, report=lambda line: None))
        finally:
            os.umask(before)
        administrator = replace(network.administrator, passphrase=lambda: WORDS)
        yield Consortium(replace(network, administrator=administrator), out, port)
