"""The project file: who takes part, where the server is, who deals. From it come one start-up kit per participant."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from cryptography import x509
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.impl.cert import DEFAULT_CERT_VALID_DAYS, CertBuilder
from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from veilgraph.core.errors import RunError
from veilgraph.core.files import check_private, make_private, private_folder, write_whole
from veilgraph.core.settings import unsettled
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.yaml_file import read_yaml
from veilgraph.deploy.certificates import keep_issued
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.quiet import no_prints
from veilgraph.deploy.roles import Roles, write_roles
from veilgraph.link.identity import BACKDATED, read_key

_HOST: Final = r"^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$"
_SITE: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
_ADMINISTRATOR: Final = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"
_ROOT_DAYS: Final = 3650
"""The participants' certificates are valid for 360 days, and renewed."""

Port = Annotated[int, Field(ge=1, le=65535)]


class ServerAddress(BaseModel):
    """Where the holders find the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(pattern=_HOST, max_length=253, description="its name in the network")]
    port: Port = Field(8002, description="for the holders")
    admin_port: Port = Field(8003, description="for the administrators")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.port == self.admin_port:
            raise ValueError(f"port and admin_port are both {self.port}; choose two ports")
        return self


class ProjectSettings(BaseModel):
    """One consortium."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=_SITE, description="of the consortium")]
    server: ServerAddress
    holders: tuple[Annotated[PartyId, Field(pattern=_SITE)], ...] = Field(
        min_length=2, max_length=26, description="their names, as jobs name them"
    )
    dealer: Annotated[PartyId, Field(pattern=_SITE)] | None = Field(
        None,
        description="a machine of its own that does the server's part in every job, deals what sealed jobs are masked "
        "with and has no data; the server then relays what is sealed from it. null: the server does both",
    )
    administrators: tuple[Annotated[str, Field(pattern=_ADMINISTRATOR)], ...] = Field(
        min_length=1, description="e-mail addresses of those who submit jobs"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [*self.sites, self.server.host, *self.administrators]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is named twice; every participant has a name of its own")
        if SERVER in self.sites:
            raise ValueError(
                f"a holder may not be called {SERVER!r}, nor the dealer: that is the server's name; rename it"
            )
        return self

    @property
    def sites(self) -> tuple[PartyId, ...]:
        """Who joins beside the server: the holders and, where it is a machine of its own, the dealer."""
        return self.holders if self.dealer is None else (*self.holders, self.dealer)

    @property
    def roles(self) -> Roles:
        """What every kit says of who is who."""
        return Roles(project=self.name, server=self.server.host, dealer=self.dealer, holders=self.holders)


def read_project(path: Path) -> ProjectSettings:
    """Reads and validates a project file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    try:
        return ProjectSettings.model_validate(read_yaml(path, "project file"))
    except ValidationError as error:
        raise unsettled(error, str(path)) from error


def draft_project(
    name: str,
    server: tuple[str, int, int],
    holders: Sequence[PartyId],
    administrators: Sequence[str],
    dealer: str | None,
) -> str:
    """The text of a project file.

    Args:
        name: of the consortium.
        server: its host, its port for holders and that for administrators.
        holders: their names.
        administrators: e-mail addresses.
        dealer: a machine of its own that deals; None: the server does.

    Raises:
        ConfigError: it would break a rule.
    """
    host, port, admin_port = server
    content = {
        "name": name,
        "server": {"host": host, "port": port, "admin_port": admin_port},
        "holders": list(holders),
        **({} if dealer is None else {"dealer": dealer}),
        "administrators": list(administrators),
    }
    try:
        ProjectSettings.model_validate(content)
    except ValidationError as error:
        raise unsettled(error, "project") from error
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def provision(project: ProjectSettings, out: Path) -> dict[str, Path]:
    """Makes the certificates and one start-up kit per participant.

    ``out/kits/<participant>`` goes to that participant, over a safe channel: it holds its private key.
    ``out/authority`` holds the key that signs certificates: keep it off the server and off line. Every participant's
    key is made here: whoever provisions could have kept a copy.

    Args:
        project: who takes part.
        out: folder to make.

    Returns:
        Participant → its kit. The server is called ``server``, a dealer apart by its name.

    Raises:
        RunError: ``out`` exists and is not empty, or cannot be written; provisioning failed.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(
                f"{out} exists and is not an empty directory; choose another --out: a project is provisioned once"
            )
        check_private(private_folder(out))
        with tempfile.TemporaryDirectory(dir=out, prefix=".provisioning-") as workspace:
            made = _provision_with_flare(project, Path(workspace))
            kits = {SERVER: out / "kits" / SERVER}
            kits.update({name: out / "kits" / name for name in (*project.sites, *project.administrators)})
            private_folder(out / "kits")
            _keep_authority(made / "state" / "cert.json", out / "authority")
            root_key = read_key(out / "authority" / "rootCA.key", None)
            for name, kit in kits.items():
                shutil.move(made / "prod_00" / (project.server.host if name == SERVER else name), kit)
                write_roles(kit / "startup", project.roles, root_key)
                Kit.open(kit).confine()
                make_private(kit)
            keep_issued({str(name): kit for name, kit in kits.items()}, out / "authority")
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return kits


def _keep_authority(state: Path, folder: Path) -> None:
    """Keeps the root certificate and its key; FLARE's file also holds every participant's private key."""
    made = json.loads(state.read_text(encoding="utf-8"))
    private_folder(folder)
    for name, content in (("rootCA.pem", made["root_cert"]), ("rootCA.key", made["root_pri_key"])):
        write_whole(folder / name, content.encode("ascii"))


class BackdatedCertificates(CertBuilder):  # type: ignore[misc]
    """FLARE's maker of the root and of the first certificates, each valid from ``BACKDATED`` before its making."""

    @staticmethod
    def _generate_cert(
        *names: Any,  # noqa: ANN401  (FLARE's own arguments)
        valid_days: int = DEFAULT_CERT_VALID_DAYS,
        not_valid_before: datetime | None = None,
        not_valid_after: datetime | None = None,
        **others: Any,  # noqa: ANN401
    ) -> x509.Certificate:
        now = not_valid_before or datetime.now(UTC)
        until = not_valid_after or now + timedelta(days=valid_days)
        made: x509.Certificate = CertBuilder._generate_cert(
            *names, not_valid_before=now - BACKDATED, not_valid_after=until, **others
        )
        return made


def _provision_with_flare(project: ProjectSettings, workspace: Path) -> Path:
    def organisation(name: str) -> str:
        return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)

    participants: list[dict[str, Any]] = [
        {
            "name": project.server.host,
            "type": "server",
            "org": organisation(project.server.host),
            "fed_learn_port": project.server.port,
            "admin_port": project.server.admin_port,
        }
    ]
    participants += [
        {"name": name, "type": "client", "org": organisation(name), "allow_log_streaming": False}
        for name in project.sites
    ]
    participants += [
        {"name": name, "type": "admin", "org": organisation(name.partition("@")[2]), "role": "project_admin"}
        for name in project.administrators
    ]
    implementation = "nvflare.lighter.impl"
    definition: dict[str, Any] = {
        "api_version": 3,
        "name": project.name,
        "description": f"veilgraph project {project.name}",
        "participants": participants,
        "builders": [
            {"path": f"{implementation}.workspace.WorkspaceBuilder", "args": {"template_file": "master_template.yml"}},
            {
                "path": f"{implementation}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": f"{__name__}.{BackdatedCertificates.__name__}", "args": {"root_valid_days": _ROOT_DAYS}},
            {"path": f"{implementation}.signature.SignatureBuilder"},
        ],
    }
    try:
        with no_prints():  # its progress is not for users
            flare_project = prepare_project(definition)
            context = Provisioner(str(workspace), prepare_builders(definition), None).provision(flare_project)
    except (ValueError, RuntimeError, TypeError) as error:
        raise RunError(f"the project {project.name!r} cannot be provisioned: {error}") from error
    if context.get(CtxKey.BUILD_ERROR):
        raise RunError(f"the project {project.name!r} cannot be provisioned: {context.get(CtxKey.ERRORS)}")
    return workspace / project.name
