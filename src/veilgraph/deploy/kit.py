"""A start-up kit: one participant's certificate, key and settings, and the policy that its own machine enforces."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.identity import Identity, load_identity

KitKind = Literal["server", "holder", "administrator"]
_KINDS: Final[dict[str, KitKind]] = {
    "fed_server.json": "server",
    "fed_client.json": "holder",
    "fed_admin.json": "administrator",
}
ALLOWED_CLASSES: Final = ("veilgraph.deploy.engine.HolderExecutor", "veilgraph.deploy.engine.ServerController")
"""All that a submitted job can make a site run: installed code, chosen by name, given settings."""

TASK: Final = "veilgraph"
"""FLARE's name for a party's part of a job."""

SEE_ITS_LOG: Final = "failed; its own log says why"
"""All that others are told of a party's own error."""

SiteWork = Literal["align", "train", "predict"]
"""What a submitted job asks of its parties; ``paradigms.site`` does it."""

_SITE_FILE: Final = "veilgraph.json"


@dataclass(frozen=True)
class Kit:
    """One participant's kit on its own machine.

    Attributes:
        path: the folder.
        kind: which participant it is for.
        name: the participant's name: a holder's, ``server``, or an administrator's address.
    """

    path: Path
    kind: KitKind
    name: PartyId

    @classmethod
    def open(cls, path: Path) -> Kit:
        """Finds out whose kit it is.

        Raises:
            ConfigError: the folder is no start-up kit.
        """
        path = path.absolute()
        kind = next((kind for file, kind in _KINDS.items() if (path / "startup" / file).is_file()), None)
        if kind is None:
            raise ConfigError(f"{path} is not a start-up kit; give a folder that veilgraph provision made under kits/")
        certificate = path / "startup" / ("server.crt" if kind == "server" else "client.crt")
        try:
            subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
            name = str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
        except (OSError, ValueError, IndexError) as error:
            raise ConfigError(f"{certificate}: cannot be read ({error}); ask for a new start-up kit") from error
        return cls(path, kind, SERVER if kind == "server" else name)

    @property
    def runs(self) -> Path:
        """Where this participant's runs are kept unless ``join`` was told otherwise."""
        return self.path / "runs"

    @property
    def consent(self) -> Path:
        """Where a holder counts its jobs, and keeps what a person is asked."""
        return self.path / "consent"

    def identity(self) -> Identity:
        """The holder's certificate, key and trusted root.

        Raises:
            ConfigError: one of them cannot be read.
        """
        startup = self.path / "startup"
        return load_identity(startup / "client.crt", startup / "client.key", startup / "rootCA.pem")

    def startup_settings(self) -> dict[str, Any]:
        """FLARE's own settings of the kit."""
        file = next(file for file, kind in _KINDS.items() if kind == self.kind)
        return _read_json(self.path / "startup" / file)

    def prepare(self, party_file: Path | None, runs: Path) -> None:
        """Writes the policy of this machine: what FLARE may run here, and where data and runs are.

        Only veilgraph's own two classes may be built, jobs that bring code are refused, logs are not streamed, and
        FLARE keeps what it stores inside the kit.
        """
        local = self.path / "local"
        resources = _read_json(local / "resources.json.default")
        resources["class_allow_list"] = list(ALLOWED_CLASSES)
        resources["class_list_enforcement_mode"] = "enforce"
        if self.kind == "holder":
            resources["allow_log_streaming"] = False
            resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
        else:
            storage = self.path / "storage"
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
            for part in resources["components"]:
                if part["id"] == "job_manager":
                    part["args"]["uri_root"] = str(storage / "jobs")
        _write_json(local / "resources.json", resources)
        authorization = _read_json(local / "authorization.json.default")
        for role, rights in authorization["permissions"].items():
            if rights == "any":
                authorization["permissions"][role] = dict.fromkeys(_RIGHTS, "any")
            if isinstance(authorization["permissions"][role], dict):
                authorization["permissions"][role].update(_NEVER)
        _write_json(local / "authorization.json", authorization)
        site = {"party_file": None if party_file is None else str(party_file.absolute()), "runs": str(runs.absolute())}
        _write_json(local / _SITE_FILE, site)

    def party_file(self) -> Path | None:
        """The party file that this site joined with."""
        value = _read_json(self.path / "local" / _SITE_FILE)["party_file"]
        return None if value is None else Path(value)

    def runs_now(self) -> Path:
        """Where this site keeps its runs."""
        return Path(_read_json(self.path / "local" / _SITE_FILE)["runs"])


_RIGHTS: Final = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "get_job_log")
_NEVER: Final = {"byoc": "none", "shell_commands": "none", "server-predeployed-flwr": "none"}
"""Nobody may bring code, or run shell commands on another's machine, whatever role FLARE gives them."""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); ask for a new start-up kit") from error
    return content


def _write_json(path: Path, content: dict[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(content, indent=2).encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); unpack the kit where you may write") from error
