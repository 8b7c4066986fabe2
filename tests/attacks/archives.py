"""Submissions and their archives as FLARE itself signs and packs them, and with what an attacker makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import load_private_key_file, sign_folders

from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import write_submission
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

ADMINISTRATOR = "ops@example.org"
PROJECT: Mapping[str, Any] = {
    "name": "signed",
    "server": {"host": "localhost"},
    "holders": ["A", "C"],
    "administrators": [ADMINISTRATOR],
}
Change = Callable[[Path], None]
"""What an attacker does to the folder of a submission before it is signed."""


def settings(**changes: Any) -> JobSettings:
    return parse_job({"name": "fraud", "data": {"holders": ["A", "C"], "label_holder": "A"}, **changes})


@dataclass(frozen=True)
class Submissions:
    """Submissions in a project.

    Attributes:
        kits: of the project.
        folder: to write in.
    """

    kits: Mapping[str, Path]
    folder: Path

    @classmethod
    def provisioned(cls, folder: Path) -> Submissions:
        project = ProjectSettings.model_validate(PROJECT)
        return cls({str(name): kit for name, kit in provision(project, folder / "project").items()}, folder)

    def write(self, change: Change | None = None, signer: str | None = ADMINISTRATOR, **changes: Any) -> Path:
        """A submission's folder, changed and then signed."""
        shutil.rmtree(self.folder / "job", ignore_errors=True)
        made = write_submission(self.folder, settings(**changes), "train", resume=False, sites=("A", "C"))
        if change is not None:
            change(made)
        if signer is not None:
            self.sign(made, signer)
        return made

    def sign(self, folder: Path, signer: str) -> None:
        stem = "server" if signer == "server" else "client"
        startup = self.kits[signer] / "startup"
        sign_folders(str(folder), load_private_key_file(str(startup / f"{stem}.key")), str(startup / f"{stem}.crt"))


def job_of(folder: Path) -> bytes:
    """The archive that an administrator uploads."""
    return bytes(zip_directory_to_bytes(str(folder.parent), folder.name))


def app_of(folder: Path) -> bytes:
    """The archive that the server makes of it for each site."""
    return bytes(zip_directory_to_bytes(str(folder / "veilgraph"), ""))
