"""Three machines with certificates of one project, over the in-memory link, and what is on the disk of each."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from tests import about
from tests.faults.runs import table_job
from tests.link.certificates import Project, pem
from veilgraph.core.types import SERVER, Link
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.launch.site import SiteWork, take_part
from veilgraph.runtime.store.records import VerifiedRecord, verify
from veilgraph.runtime.store.run_directory import RunDirectory

HOLDERS = ("A", "B")
PARTIES = (*HOLDERS, SERVER)
HOST = "relay.example.org"
JOB: dict[str, Any] = {
    "name": "job",
    "paradigm": "node-dp",
    "data": {"holders": list(HOLDERS), "label_holder": "A"},
    "model": {"dim": 4, "hops": "auto"},
    "train": {"epochs": 2, "checkpoint_every": 1, "patience": None, "select_by": "last"},
    "release": {"features": {"mechanism": "laplace", "epsilon": 1.0}},
    "privacy": {"unit": "edge", "epsilon_total": 1.0, "delta": 1e-4},
}
"""The nodes of B release their features, and what A learns from its edges has noise: each has a ledger."""


class Sites:
    """Three machines. ``runs`` and ``before``, the same after the first session, are copied for every attack."""

    def __init__(self, folder: Path, data: Path, project: Project, identities: Mapping[str, Identity | None]) -> None:
        self.folder, self.data, self.project, self.identities = folder, data, project, identities
        self.settings: JobSettings = parse_job(JOB)

    def session(self, work: SiteWork = "predict") -> None:
        def program(party: str) -> Callable[[Link], None]:
            def take(link: Link) -> None:
                recorder = RecordedLink(link)
                take_part(
                    self.folder / party,
                    self.settings,
                    party,
                    work,
                    recorder,
                    recorder,
                    party_file=None if party == SERVER else self.data / party / "party.yaml",
                    resume=True,
                    identity=self.identities[party],
                    names={SERVER: HOST},
                    job_id=uuid4().hex,
                    consent=self.folder / party / "consent",
                    learning=self.folder / party / "learning",
                    seen=self.folder / party / "ledgers",
                )

            return take

        run_threads({party: program(party) for party in PARTIES}, 20, lambda: None)

    def run(self, party: str) -> RunDirectory:
        return RunDirectory.open(self.folder / party / "job")

    def file(self, party: str, name: str) -> Path:
        return self.run(party).party_path(party) / name

    def verify(self, party: str) -> list[VerifiedRecord]:
        return verify(self.run(party), (self.project.root,))

    def root(self) -> Path:
        path = self.folder / "rootCA.pem"
        path.write_bytes(pem(self.project.root))
        return path


def made(folder: Path, most: float) -> Sites:
    """Sites that have done nothing yet, whose holders accept so large a total ε."""
    project = Project()
    for party, path in (table_job(folder / "data").data.parties or {}).items():
        said = yaml.safe_load(path.read_text())
        said["nodes"]["features"] = [{"columns": ["x", "y"], "scale": {"low": -10, "high": 10}}]
        protects = about.EDGES if party == "A" else about.NODES
        path.write_text(yaml.safe_dump(said | {"limits": {"leakage": [], **protects, "max_epsilon": most}}))
    identities = {party: project.identity(HOST if party == SERVER else party) for party in PARTIES}
    return Sites(folder / "now", folder / "data", project, identities)


def never_released(data: Path, folder: Path) -> Path:
    """The same tables, of which nothing was ever released."""
    return shutil.copytree(data, folder, ignore=shutil.ignore_patterns("ledger"))
