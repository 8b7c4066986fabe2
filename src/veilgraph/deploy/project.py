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
from pydantic import Field, model_validator

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import fresh_folder, make_private, os_errors_as, private_folder, write_whole
from veilgraph.core.settings import Settings, config_errors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.yaml_file import read_yaml
from veilgraph.deploy.authority import (
    BROKER_UNIT,
    BROKERS_ROOT,
    ROOT,
    Authority,
    IssuerKey,
    common_name,
    issue,
    make_authority,
)
from veilgraph.deploy.broker import Cluster
from veilgraph.deploy.certificates import DAYS, KEY_BITS
from veilgraph.deploy.key_file import Certified
from veilgraph.deploy.kit import Kit, KitKind, admit, write_kit, write_listen
from veilgraph.deploy.roles import Roles, read_roles, write_roles
from veilgraph.link.identity import ADMINISTRATOR
from veilgraph.link.nats_client import BrokerAddress

_HOST: Final = r"^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$"
_LISTEN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$"
_SITE: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
_ADMINISTRATOR: Final = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"
Port = Annotated[int, Field(ge=1, le=65535)]


class ServerAddress(Settings):
    """Where the holders find the server's broker, or a further one."""

    host: Annotated[str, Field(pattern=_HOST, max_length=253, description="its name in the network")]
    port: Port = 8002
    """of its broker; 443 passes most firewalls"""
    listen: Annotated[str, Field(pattern=_LISTEN)] | None = None
    """its broker's address:port, if another; null: every address"""

    cluster: Port = 6222
    """its broker's port for the project's other brokers"""

    @property
    def address(self) -> BrokerAddress:
        """Where the broker is found."""
        return BrokerAddress(self.host, self.port)

    @property
    def listens(self) -> BrokerAddress:
        """Where the broker listens: at ``listen``, else at the host if that is an IP address, else at every address."""
        if self.listen is not None:
            return BrokerAddress.read(self.listen)
        with suppress(ValueError):
            return BrokerAddress(str(ip_address(self.host)), self.port)
        return BrokerAddress("0.0.0.0", self.port)  # noqa: S104  (it has TLS and takes the project's certificates alone)


class ProjectSettings(Settings):
    """One consortium."""

    name: Annotated[str, Field(pattern=_SITE, description="of the consortium")]
    server: ServerAddress
    brokers: tuple[ServerAddress, ...] = Field((), max_length=15)
    """further brokers, each on a machine of its own: where one fails, all go on with another"""
    holders: tuple[Annotated[PartyId, Field(pattern=_SITE)], ...] = Field(min_length=2, max_length=26)
    """their names in jobs"""
    dealer: Annotated[PartyId, Field(pattern=_SITE)] | None = None
    """a machine without data that does the server's part in every job and deals masks of sealed jobs; the server relays
    only. null: the server does both
    """
    administrators: tuple[Annotated[str, Field(pattern=_ADMINISTRATOR)], ...] = Field(min_length=1)
    """e-mail addresses of submitters of jobs"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [*self.sites, *(each.host for each in self.all_brokers), *self.administrators]
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
    def all_brokers(self) -> tuple[ServerAddress, ...]:
        """The server's, then the further ones: in this order participants try them."""
        return (self.server, *self.brokers)

    @property
    def roles(self) -> Roles:
        """What every kit says of who is who."""
        return Roles(project=self.name, server=self.server.host, dealer=self.dealer, holders=self.holders)


def read_project(path: Path) -> ProjectSettings:
    """Reads and validates a project file; ``ConfigError`` where it cannot be read, is not YAML, or breaks a rule."""
    with config_errors(str(path)):
        return ProjectSettings.model_validate(read_yaml(path, "project file"))


def draft_project(
    name: str,
    server: tuple[str, int],
    holders: Sequence[PartyId],
    administrators: Sequence[str],
    dealer: str | None,
    brokers: Sequence[str] = (),
) -> str:
    """The text of a project file, with a server (host, port) and ``brokers`` at its port; ``ConfigError``: invalid."""
    host, port = server
    content = {
        "name": name,
        "server": {"host": host, "port": port},
        "holders": list(holders),
        **({} if dealer is None else {"dealer": dealer}),
        **({"brokers": [{"host": each, "port": port} for each in brokers]} if brokers else {}),
        "administrators": list(administrators),
    }
    with config_errors("project"):
        ProjectSettings.model_validate(content)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def provision(project: ProjectSettings, out: Path, root_key: IssuerKey | None = None) -> dict[str, Path]:
    """Makes the certificates and one start-up kit per participant.

    ``out/kits/<participant>`` goes to that participant, over a safe channel: it holds its private key.
    ``out/authority`` holds the keys that sign certificates: keep it off the server and off line. Every participant's
    key is made here: whoever provisions could have kept a copy. ``root_key`` is as for ``make_authority``.

    Returns participant → its kit; the server is called ``server``, a further broker by its host. Raises ``RunError``:
    ``out`` exists and is not empty, or cannot be written.
    """
    now = datetime.now(UTC)
    with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
        fresh_folder(out)
        authority, roles = make_authority(out / "authority", project.name, now, root_key), project.roles
        write_roles(authority.path, roles, authority.key())
        kinds: dict[str, KitKind] = {SERVER: "server", **dict.fromkeys(project.holders, "holder")}
        if project.dealer is not None:
            kinds[project.dealer] = "dealer"
        kinds |= dict.fromkeys(project.administrators, "administrator")
        kits = {name: out / "kits" / name for name in kinds}
        for name, kit in kits.items():
            _make_kit(project, roles, authority, name, kinds[name], kit, now)
        for broker in project.all_brokers:
            name = SERVER if broker == project.server else broker.host
            _make_broker(project, authority, broker, kits.setdefault(name, out / "kits" / name), now)
        for kit in kits.values():
            make_private(kit)
    return kits


def extend(project: ProjectSettings, authority: Authority, out: Path) -> dict[str, Path]:
    """Makes kits under ``out/kits`` for holders and administrators who are new in the project file.

    The authority's folder then has the roles that everybody else installs (``install_roles``), also where holders are
    no longer in the file. Returns participant → its kit. Raises ``ConfigError``: something else was changed, or
    nothing; ``RunError``: a kit is there already, or cannot be written; ``DataError``: the key does not open.
    """
    known, roles, now = read_roles(authority.path), project.roles, datetime.now(UTC)
    brokers = {common_name(each) for each in authority.issued(BROKERS_ROOT)}
    if (roles.project, roles.server, roles.dealer, brokers) != (
        *(known.project, known.server, known.dealer),
        {each.host for each in project.all_brokers},
    ):
        raise ConfigError(
            "project: its name, server, brokers and dealer stay as they were provisioned, and holders and "
            "administrators alone may come and go; for other changes provision a new project",
            key="project",
        )
    certified = {common_name(each) for each in authority.issued()}
    kinds: dict[str, KitKind] = {name: "holder" for name in roles.holders if name not in known.holders}
    kinds |= {name: "administrator" for name in project.administrators if name not in certified}
    if not kinds and roles.holders == known.holders:
        raise ConfigError("project: nobody in it is new, and no holder is gone; add one to its file", key="project")
    roles, kits = roles.model_copy(update={"number": known.number + 1}), {name: out / "kits" / name for name in kinds}
    with os_errors_as(RunError, f"{out}: cannot be written", "mend its owner and mode"):
        for name, kit in kits.items():
            _make_kit(project, roles, authority, name, kinds[name], fresh_folder(kit), now)
            make_private(kit)
        write_roles(authority.path, roles, authority.key(), authority.issued())
    return kits


def _make_kit(
    project: ProjectSettings, roles: Roles, authority: Authority, name: str, kind: KitKind, path: Path, now: datetime
) -> None:
    _make_startup(project, roles, authority, kind, path)
    certified = project.server.host if kind == "server" else name
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, certified)]
    if kind == "administrator":
        subject.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, ADMINISTRATOR))
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    _certify(authority, ROOT, subject, usage, Kit.open(path).certified, now)


def _certify(
    authority: Authority,
    stem: str,
    subject: Sequence[x509.NameAttribute[str]],
    extension: x509.ExtensionType,
    into: Certified,
    now: datetime,
) -> None:
    """Make a key and its certificate, issued by the root ``stem``; keep the latter, and write both ``into`` a kit."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    root, until = authority.root(stem), now + timedelta(days=DAYS)
    made = issue(x509.Name(subject), key.public_key(), root.subject, authority.key(stem), [extension], now, until)
    authority.keep(made)
    write_whole(into.certificate, made.public_bytes(Encoding.PEM))
    into.key.write(key, None)


def _make_startup(project: ProjectSettings, roles: Roles, authority: Authority, kind: KitKind, path: Path) -> None:
    startup = private_folder(path / "startup")
    for file in ("rootCA.pem", f"{BROKERS_ROOT}.pem"):
        write_whole(startup / file, (authority.path / file).read_bytes())
    write_roles(startup, roles, authority.key())
    write_kit(startup, kind, [str(each.address) for each in project.all_brokers])


def _make_broker(
    project: ProjectSettings, authority: Authority, broker: ServerAddress, path: Path, now: datetime
) -> None:
    """Write a broker's certificate, addresses and admitted participants into a kit; a further one's is made."""
    if broker != project.server:
        _make_startup(project, project.roles, authority, "broker", path)
    folder, own = private_folder(path / "broker"), Kit.open(path).broker
    name: x509.GeneralName = x509.DNSName(broker.host)
    with suppress(ValueError):
        name = x509.IPAddress(ip_address(broker.host))
    subject = [
        x509.NameAttribute(NameOID.COMMON_NAME, broker.host),
        # else the server and its broker would have one subject, and requests to renew them could be mixed up
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, BROKER_UNIT),
    ]
    _certify(authority, BROKERS_ROOT, subject, x509.SubjectAlternativeName([name]), own, now)
    others = [BrokerAddress(each.host, each.cluster) for each in project.all_brokers if each != broker]
    write_listen(folder, broker.listens, Cluster(BrokerAddress(broker.listens.host, broker.cluster), others))
    for certificate in authority.issued():
        admit(path, certificate)
