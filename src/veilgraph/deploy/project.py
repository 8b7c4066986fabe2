"""The project file: who takes part, where the server is, who deals. From it come one start-up kit per participant."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from veilgraph.core.errors import RunError
from veilgraph.core.files import check_private, make_private, private_folder, write_whole
from veilgraph.core.settings import unsettled
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.yaml_file import read_yaml
from veilgraph.deploy.authority import BROKERS_ROOT, Authority, issue, make_authority, read_certificate
from veilgraph.deploy.certificates import DAYS, KEY_BITS
from veilgraph.deploy.key_file import KeyFile
from veilgraph.deploy.kit import Kit, KitKind, admit, write_kit, write_listen
from veilgraph.deploy.roles import Roles, write_roles
from veilgraph.link.identity import ADMINISTRATOR

_HOST: Final = r"^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$"
_LISTEN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$"
_SITE: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
_ADMINISTRATOR: Final = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"
Port = Annotated[int, Field(ge=1, le=65535)]


class ServerAddress(BaseModel):
    """Where the holders find the server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Field(pattern=_HOST, max_length=253, description="its name in the network")]
    port: Port = Field(8002, description="of its broker, for all; 443 passes most firewalls")
    listen: Annotated[str, Field(pattern=_LISTEN)] | None = Field(
        None, description="address:port where the broker listens, where that is another one; null: at every address"
    )

    @property
    def address(self) -> str:
        """Where the broker is found."""
        return f"{self.host}:{self.port}"


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
    server: tuple[str, int],
    holders: Sequence[PartyId],
    administrators: Sequence[str],
    dealer: str | None,
) -> str:
    """The text of a project file.

    Args:
        name: of the consortium.
        server: its host and its port.
        holders: their names.
        administrators: e-mail addresses.
        dealer: a machine of its own that deals; None: the server does.

    Raises:
        ConfigError: it would break a rule.
    """
    host, port = server
    content = {
        "name": name,
        "server": {"host": host, "port": port},
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
    ``out/authority`` holds the keys that sign certificates: keep it off the server and off line. Every participant's
    key is made here: whoever provisions could have kept a copy.

    Args:
        project: who takes part.
        out: folder to make.

    Returns:
        Participant → its kit. The server is called ``server``, a dealer apart by its name.

    Raises:
        RunError: ``out`` exists and is not empty, or cannot be written.
    """
    now = datetime.now(UTC)
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(
                f"{out} exists and is not an empty directory; choose another --out: a project is provisioned once"
            )
        check_private(private_folder(out))
        authority = make_authority(out / "authority", project.name, now)
        kinds: dict[str, KitKind] = {SERVER: "server", **dict.fromkeys(project.holders, "holder")}
        if project.dealer is not None:
            kinds[project.dealer] = "dealer"
        kinds |= dict.fromkeys(project.administrators, "administrator")
        kits = {name: out / "kits" / name for name in kinds}
        for name, kit in kits.items():
            _make_kit(project, authority, name, kinds[name], kit, now)
        _make_broker(project, authority, kits[SERVER], now)
        for kit in kits.values():
            make_private(kit)
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return kits


def _make_kit(
    project: ProjectSettings, authority: Authority, name: str, kind: KitKind, path: Path, now: datetime
) -> None:
    startup = private_folder(path / "startup")
    certified = project.server.host if kind == "server" else name
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, certified)]
    if kind == "administrator":
        subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, ADMINISTRATOR))
    root, signer = authority.root(), authority.key()
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    until = now + timedelta(days=DAYS)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    made = issue(x509.Name(subject), key.public_key(), root.subject, signer, [usage], now, until)
    authority.keep(made)
    for file in ("rootCA.pem", f"{BROKERS_ROOT}.pem"):
        write_whole(startup / file, (authority.path / file).read_bytes())
    write_roles(startup, project.roles, signer)
    write_kit(startup, kind, [project.server.address])
    kit = Kit.open(path)
    write_whole(kit.certificate_path, made.public_bytes(Encoding.PEM))
    kit.key_file.write(key, None)


def _make_broker(project: ProjectSettings, authority: Authority, server: Path, now: datetime) -> None:
    """What the server's kit has besides: a certificate of its broker, and those of all who may connect with it."""
    folder = private_folder(server / "broker")
    host = project.server.host
    name: x509.GeneralName = x509.DNSName(host)
    with suppress(ValueError):
        name = x509.IPAddress(ip_address(host))
    brokers = read_certificate(authority.path / f"{BROKERS_ROOT}.pem")
    signer = KeyFile(authority.path, BROKERS_ROOT).read(authority.passphrase)
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    extensions = [x509.SubjectAlternativeName([name])]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    until = now + timedelta(days=DAYS)
    if not isinstance(signer, rsa.RSAPrivateKey):
        raise RunError(f"{authority.path}: the brokers' key is not RSA; provision the project anew")
    made = issue(subject, key.public_key(), brokers.subject, signer, extensions, now, until)
    write_whole(folder / "broker.crt", made.public_bytes(Encoding.PEM))
    KeyFile(folder, "broker").write(key, None)
    write_listen(folder, project.server.listen or project.server.address)
    for certificate in authority.issued():
        admit(server, certificate)
