"""A start-up kit: one participant's certificate, key and settings, and the policy that its own machine enforces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import os_errors_as, private_folder, write_whole
from veilgraph.core.settings import Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.authority import BROKERS_ROOT, common_name, file_certificate, read_certificate
from veilgraph.deploy.broker import Cluster, Participant, configuration
from veilgraph.deploy.key_file import Certified, KeyFile, Passphrase
from veilgraph.deploy.revocation import current_list, installed_list
from veilgraph.deploy.roles import Roles, read_roles
from veilgraph.link.identity import Identity, Trust, load_identity, load_roots
from veilgraph.link.nats_client import BrokerAddress, Brokers, client_tls

KitKind = Literal["server", "broker", "dealer", "holder", "administrator"]
ITS_LOG_SAYS: Final = "its-log-says"
"""Code of the error of a party that failed for what its own log alone says."""

SiteWork = Literal["align", "train", "predict", "answer", "audit"]
"""What a submitted job asks of its parties; ``runtime.launch.site`` does it."""

_SITE_FILE: Final = "veilgraph.json"


@dataclass(frozen=True)
class Kit:
    """One participant's kit on its own machine.

    ``name`` is a holder's or dealer's, ``server``, an administrator's address, or a broker's host, of kind ``broker``:
    a further one of the project, and no participant. ``passphrase`` is of its private key.
    """

    path: Path
    kind: KitKind
    name: PartyId
    passphrase: Passphrase | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, passphrase: Passphrase | None = None) -> Kit:
        """Open the kit in a folder; ``passphrase`` is called when the private key is needed.

        Raises ``ConfigError``: it is no start-up kit, or has no roles; ``DataError``: the root did not sign them.
        """
        path = path.absolute()
        if not (path / "startup" / _KIT_FILE).is_file():
            raise ConfigError(
                f"{path} is not a start-up kit; give a folder that veilgraph net provision made under kits/"
            )
        read_roles(path / "startup")  # a kit that was changed is of no use for anything
        kind = _read_kit_file(path).kind
        kit = cls(path, kind, SERVER, passphrase)
        own = kit.certified.certificate
        return kit if kind == "server" or not own.exists() else replace(kit, name=common_name(read_certificate(own)))

    @classmethod
    def of_run(cls, run: Path) -> Kit | None:
        """Open the kit in whose folder ``runs`` a run lies; None where it lies in no kit. Errors as ``open``."""
        folder = run.absolute().parent.parent
        return cls.open(folder) if (folder / "startup" / _KIT_FILE).is_file() else None

    @property
    def roles(self) -> Roles:
        """Who is who in the project, read and verified now; errors as ``open``."""
        return read_roles(self.path / "startup")

    @property
    def party(self) -> PartyId | None:
        """Which party of a job its site is: None for administrators, further brokers, a server that does not deal."""
        if self.kind == "holder":
            return self.name
        deals = self.kind == "dealer" or (self.kind == "server" and self.roles.dealer is None)
        return SERVER if deals else None

    @property
    def runs(self) -> Path:
        """Where this participant's runs are kept unless ``join`` was told otherwise."""
        return self.path / "runs"

    @property
    def consent(self) -> Path:
        """Folder in which a holder counts its jobs, and keeps what a person is asked to approve."""
        return self.path / "consent"

    @property
    def marks(self) -> Path:
        """Folder of what was seen of the party's lifetime ledger, to notice that an older copy was put back."""
        return self.path / "ledgers"

    @property
    def learning(self) -> Path:
        """Where a party keeps the secret that its learning seeds follow from."""
        return self.path / "learning"

    @property
    def certified(self) -> Certified:
        """The participant's certificate, key and root; in the kit of a further broker, that broker's."""
        if self.kind == "broker":
            return self.broker
        startup, stem = self.path / "startup", "server" if self.kind == "server" else "client"
        return Certified(startup / f"{stem}.crt", KeyFile(startup, stem), startup / "rootCA.pem")

    @property
    def broker(self) -> Certified:
        """The certificate of the broker that is run with this kit, where ``has_broker``."""
        folder = self.path / "broker"
        return Certified(
            folder / "broker.crt", KeyFile(folder, "broker"), self.path / "startup" / f"{BROKERS_ROOT}.pem"
        )

    @property
    def has_broker(self) -> bool:
        """Whether a broker runs with this kit."""
        return self.kind in ("server", "broker")

    @property
    def key_file(self) -> KeyFile:
        """The file of the participant's private key."""
        return self.certified.key

    def identity(self) -> Identity:
        """Read the participant's certificate, key, root, the server's name and the list of revoked certificates.

        A server that only relays names itself. Raises ``ConfigError``: one cannot be read, the key's passphrase is not
        to be had, or the list is not current and the site insists on that; ``DataError``: one is damaged, or they do
        not fit.
        """
        key, passphrase = self.key_file.found(self.passphrase)
        root = self.path / "startup" / "rootCA.pem"
        deals = self.roles.server if self.kind == "server" else self.roles.deals
        identity = load_identity(self.certified.certificate, key, root, passphrase, deals)
        return replace(identity, revoked=current_list(self.path, datetime.now(UTC), insist=self._needs_current_list()))

    def trust(self) -> Trust:
        """The project's roots and the newest list of revoked certificates, read now; errors as ``identity``."""
        revoked = current_list(self.path, datetime.now(UTC), insist=self._needs_current_list())
        return Trust(load_roots(self.path / "startup" / "rootCA.pem"), revoked)

    def certified_names(self) -> dict[PartyId, str]:
        """Party → the name in its certificate, where that is another one: that of who deals for party ``server``."""
        return {SERVER: self.roles.deals}

    def _needs_current_list(self) -> bool:
        return (self.path / "local" / _SITE_FILE).exists() and self.site.current_list

    @property
    def jobs(self) -> Path:
        """Folder of the site's submitted jobs: their requests, logs and outcomes."""
        return self.path / "jobs"

    @property
    def certified_name(self) -> str:
        """The name in its certificate: the server's is its host."""
        return self.roles.server if self.kind == "server" else self.name

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """Host and port of the project's brokers; errors as ``open``."""
        return tuple(_read_kit_file(self.path).brokers)

    def brokers(self) -> Brokers:
        """How this participant reaches the project's brokers; errors as ``identity``."""
        key, passphrase = self.key_file.found(self.passphrase)
        root = self.path / "startup" / f"{BROKERS_ROOT}.pem"
        tls = client_tls(root, self.certified.certificate, key, passphrase)
        addresses = [BrokerAddress.read(each) for each in _read_kit_file(self.path).brokers]
        proxy = os.environ.get(PROXY_VARIABLE)
        return Brokers(addresses, tls, BrokerAddress.read(proxy) if proxy else None)

    def broker_configuration(self, now: datetime) -> str:
        """Generate this kit's broker's configuration as of ``now``; ``ConfigError``: a certificate cannot be used."""
        roles, revoked = self.roles, installed_list(self.path)
        sites = {roles.deals, *roles.holders}  # a server that only relays sends nobody anything
        found: dict[str, list[x509.Certificate]] = {}
        for path in sorted((self.path / "broker" / "participants").glob("*.crt")):
            each = read_certificate(path)
            valid = each.not_valid_before_utc <= now <= each.not_valid_after_utc
            name = common_name(each)
            # Whoever is neither has left, or only relays: with the account of one that asks it could keep sites busy.
            takes_part = name in sites or each.subject.get_attributes_for_oid(x509.NameOID.UNSTRUCTURED_NAME)
            if valid and takes_part and (revoked is None or revoked.fault(each) is None):
                found.setdefault(name, []).append(each)
        participants = {
            name: Participant(
                own, {peer for peer in found if peer != name and (name in sites or peer in sites)}, name not in sites
            )
            for name, own in found.items()
        }
        folder, own, root = self.path / "broker", self.broker, self.path / "startup" / "rootCA.pem"
        listen, *_ = _read_addresses(folder / _LISTEN_FILE)
        name = self.certified_name
        public = next(each for each in map(BrokerAddress.read, _read_kit_file(self.path).brokers) if each.host == name)
        meets = _read_addresses(folder / _CLUSTER_FILE) if (folder / _CLUSTER_FILE).exists() else None
        cluster = None if meets is None else Cluster(meets[0], meets[1:])
        text = configuration(name, listen, public, own, root, participants, cluster)
        # A renewed certificate has the path of the old one: without this line the broker would not be told of it.
        return f"{text}# with certificate {read_certificate(own.certificate).serial_number:x}\n"

    def prepare(self, site: SiteFile) -> None:
        """Write how this machine takes part into the kit, for its jobs' processes; raises ``RunError``."""
        path = private_folder(self.path / "local") / _SITE_FILE
        with os_errors_as(RunError, f"{path}: cannot be written", "unpack the kit where you may write"):
            write_whole(path, site.model_dump_json(indent=2).encode())

    @property
    def site(self) -> SiteFile:
        """How this machine takes part, as it joined last; ``ConfigError`` where it has not, or cannot be read."""
        return _read_model(self.path / "local" / _SITE_FILE, SiteFile)


PROXY_VARIABLE: Final = "VEILGRAPH_PROXY"
"""Of the environment: host:port of an HTTP proxy by which this participant reaches the brokers."""
_KIT_FILE: Final = "kit.json"
_LISTEN_FILE: Final = "listen"
_CLUSTER_FILE: Final = "cluster"
"""Where a broker listens for the others, and where it finds each of them: an address a line."""


class SiteFile(BaseModel):
    """How a machine takes part; the fields are as for ``join``."""

    model_config = ConfigDict(frozen=True)

    party_file: Annotated[Path, AfterValidator(Path.absolute)] | None = None
    runs: Annotated[Path, AfterValidator(Path.absolute)]
    current_list: bool = False
    restarts: bool = False
    allows_audit: bool = False


_File = TypeVar("_File", bound=BaseModel)


class _KitFile(Settings):
    kit: Literal[1] = 1
    kind: KitKind
    brokers: Annotated[list[str], Field(min_length=1, max_length=16)]


def write_kit(startup: Path, kind: KitKind, brokers: Sequence[str]) -> None:
    """Write the kit's kind and the brokers' addresses, unsigned: certificates alone are trusted; or ``OSError``."""
    write_whole(startup / _KIT_FILE, _KitFile(kind=kind, brokers=list(brokers)).model_dump_json(indent=2).encode())


def write_listen(folder: Path, listen: BrokerAddress, cluster: Cluster) -> None:
    """Writes where a broker listens, and where it meets the others, if there are any; or ``OSError``."""
    write_whole(folder / _LISTEN_FILE, str(listen).encode("ascii"))
    if cluster.routes:
        lines = "\n".join(map(str, (cluster.listen, *cluster.routes)))
        write_whole(folder / _CLUSTER_FILE, lines.encode("ascii"))


def admit(server: Path, certificate: x509.Certificate) -> None:
    """Add a certificate to those that a kit's broker admits, which it looks up every few seconds; or ``OSError``."""
    file_certificate(server / "broker" / "participants", certificate)


def _read_addresses(path: Path) -> list[BrokerAddress]:
    with os_errors_as(ConfigError, f"{path}: cannot be read", "ask for a new start-up kit", ValueError):
        return [BrokerAddress.read(each) for each in path.read_text(encoding="ascii").split()]


def _read_kit_file(path: Path) -> _KitFile:
    return _read_model(path / "startup" / _KIT_FILE, _KitFile)


def _read_model(path: Path, kind: type[_File]) -> _File:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path}: cannot be read; ask for a new start-up kit") from error
