"""A start-up kit: one participant's certificate, key and settings, and the policy that its own machine enforces."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from cryptography import x509

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.guard.policy import LOCAL_SCHEME, MAX_FRAME_BYTES
from veilgraph.deploy.key_file import KeyFile, Passphrase
from veilgraph.deploy.revocation import current_list
from veilgraph.deploy.roles import Roles, read_roles
from veilgraph.deploy.submission import ALLOWED_CLASSES
from veilgraph.link.identity import Identity, load_identity

KitKind = Literal["server", "dealer", "holder", "administrator"]
SETTINGS_FILES: Final[dict[KitKind, str]] = {
    "server": "fed_server.json",
    "dealer": "fed_client.json",
    "holder": "fed_client.json",
    "administrator": "fed_admin.json",
}
"""Of the engine, to which a dealer apart is a client as holders are."""

ITS_LOG_SAYS: Final = "its-log-says"
"""Code of the error of a party that failed for what its own log alone says."""
"""All that others are told of a party's own error."""

SiteWork = Literal["align", "train", "predict", "audit"]
"""What a submitted job asks of its parties; ``runtime.launch.site`` does it."""

_SITE_FILE: Final = "veilgraph.json"


@dataclass(frozen=True)
class Kit:
    """One participant's kit on its own machine.

    Attributes:
        path: the folder.
        kind: which participant it is for.
        name: the participant's name: a holder's or dealer's, ``server``, or an administrator's address.
        passphrase: of its private key, should it have one.
    """

    path: Path
    kind: KitKind
    name: PartyId
    passphrase: Passphrase | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path, passphrase: Passphrase | None = None) -> Kit:
        """Finds out whose kit it is; ``passphrase`` is asked for when the private key is needed.

        Raises:
            ConfigError: the folder is no start-up kit, or does not say who deals.
            DataError: what it says of that was not signed by the project's root.
        """
        path = path.absolute()
        kind = next((kind for kind in _FOUND_AS if (path / "startup" / SETTINGS_FILES[kind]).is_file()), None)
        if kind is None:
            raise ConfigError(
                f"{path} is not a start-up kit; give a folder that veilgraph net provision made under kits/"
            )
        certificate = path / "startup" / ("server.crt" if kind == "server" else "client.crt")
        name = SERVER if kind == "server" else _common_name(certificate)
        if kind == "holder" and name == read_roles(path / "startup").dealer:
            kind = "dealer"
        return cls(path, kind, name, passphrase)

    @property
    def roles(self) -> Roles:
        """Who is who in the project, read and verified now.

        Raises:
            ConfigError: the kit does not say.
            DataError: the project's root did not sign it.
        """
        return read_roles(self.path / "startup")

    @property
    def party(self) -> PartyId | None:
        """Which party of a job its site is: None for the server where somebody else deals, and for administrators."""
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
        """Where a holder counts its jobs, and keeps what a person is asked."""
        return self.path / "consent"

    @property
    def marks(self) -> Path:
        """What was seen of the ledger of all that the party ever released, apart from that ledger."""
        return self.path / "ledgers"

    @property
    def learning(self) -> Path:
        """Where a party keeps the secret that its learning seeds follow from."""
        return self.path / "learning"

    @property
    def certificate_path(self) -> Path:
        """The participant's own certificate."""
        return self.path / "startup" / f"{self._stem}.crt"

    @property
    def key_file(self) -> KeyFile:
        """Where its private key is."""
        return KeyFile(self.path / "startup", self._stem)

    @property
    def _stem(self) -> str:
        return "server" if self.kind == "server" else "client"

    def identity(self) -> Identity:
        """The participant's certificate, key and trusted root, the name in the certificate of party ``server``, and the
        newest list of revoked certificates, read now. A server that only relays meets no party, and names itself.

        Raises:
            ConfigError: one of them cannot be read, the key's passphrase is not to be had, or the list is not current
                and the site insists on that.
            DataError: one of them is damaged, or they do not belong together.
        """
        key, passphrase = self.key_file.found(self.passphrase)
        root = self.path / "startup" / "rootCA.pem"
        deals = self.roles.server if self.kind == "server" else self.roles.deals
        identity = load_identity(self.certificate_path, key, root, passphrase, deals)
        return replace(identity, revoked=current_list(self.path, datetime.now(UTC), insist=self._insists()))

    def certified_names(self) -> dict[PartyId, str]:
        """Party → the name in its certificate, where that is another one: that of who deals for party ``server``."""
        return {SERVER: self.roles.deals}

    def _insists(self) -> bool:
        """Whether the site joined with ``--current-list``."""
        site = self.path / "local" / _SITE_FILE
        return site.exists() and bool(_read_json(site).get("current_list", False))

    def startup_settings(self) -> dict[str, Any]:
        """FLARE's own settings of the kit."""
        return _read_json(self.path / "startup" / SETTINGS_FILES[self.kind])

    def confine(self) -> None:
        """Leaves ``net join`` as the only way to start the site: FLARE's own programs cannot open a listener."""
        _write_json(self.path / "local" / "comm_config.json", _COMMUNICATION)
        for script in (self.path / "startup").glob("*.sh"):
            script.unlink()

    def prepare(
        self,
        party_file: Path | None,
        runs: Path,
        *,
        current_list: bool = False,
        restarts: bool = False,
        allows_audit: bool = False,
    ) -> None:
        """Writes the policy of this machine: what FLARE may run here, where data and runs are, and whether this site
        takes part without a current list of revoked certificates.

        Only veilgraph's own two classes may be built, jobs that bring code are refused, logs are not streamed, and
        FLARE keeps what it stores inside the kit.

        Args:
            party_file: the holder's own; None at the server and the dealer.
            runs: folder of this site's runs.
            current_list: whether the site takes part only with a current list of revoked certificates.
            restarts: the dealer's leave to begin a training again, in place of what it has of it.
            allows_audit: the dealer's leave to keep what it sends and receives, and to answer audits.
        """
        local = self.path / "local"
        resources = _read_json(local / "resources.json.default")
        resources["class_allow_list"] = list(ALLOWED_CLASSES)
        resources["class_list_enforcement_mode"] = "enforce"
        if self.kind != "server":
            resources["allow_log_streaming"] = False
            resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
        else:
            storage = self.path / "storage"
            resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
            resources["components"] = [part for part in resources["components"] if part["id"] != "log_receiver"]
            for part in resources["components"]:
                if part["id"] == "job_manager":
                    part["args"]["uri_root"] = str(storage / "jobs")
        for part in resources["components"]:
            if part["id"] == "process_launcher":
                part["path"] = _LAUNCHERS[self.kind]
        _write_json(local / "resources.json", resources)
        self.confine()
        authorization = _read_json(local / "authorization.json.default")
        for role, rights in authorization["permissions"].items():
            if rights == "any":
                authorization["permissions"][role] = dict.fromkeys(_RIGHTS, "any")
            if isinstance(authorization["permissions"][role], dict):
                authorization["permissions"][role].update(_NEVER)
        _write_json(local / "authorization.json", authorization)
        site = {
            "party_file": None if party_file is None else str(party_file.absolute()),
            "runs": str(runs.absolute()),
            "current_list": current_list,
            "restarts": restarts,
            "allows_audit": allows_audit,
        }
        _write_json(local / _SITE_FILE, site)

    def party_file(self) -> Path | None:
        """The party file that this site joined with."""
        value = _read_json(self.path / "local" / _SITE_FILE)["party_file"]
        return None if value is None else Path(value)

    def restarts(self) -> bool:
        """Whether this site, the dealer's, joined with leave to begin trainings again."""
        return _read_json(self.path / "local" / _SITE_FILE).get("restarts") is True

    def allows_audit(self) -> bool:
        """Whether this site, the dealer's, joined with leave to audit."""
        return _read_json(self.path / "local" / _SITE_FILE).get("allows_audit") is True

    def runs_now(self) -> Path:
        """Where this site keeps its runs."""
        return Path(_read_json(self.path / "local" / _SITE_FILE)["runs"])


_FOUND_AS: Final[tuple[KitKind, ...]] = ("server", "holder", "administrator")
_LAUNCHERS: Final = {
    "server": "veilgraph.deploy.guard.launchers.ServerJobs",
    "dealer": "veilgraph.deploy.guard.launchers.HolderJobs",
    "holder": "veilgraph.deploy.guard.launchers.HolderJobs",
}
_COMMUNICATION: Final = {
    "allow_adhoc_conns": False,
    "internal": {"scheme": LOCAL_SCHEME, "resources": {"host": "local", "connection_security": "clear"}},
    "grpc": {
        "options": [
            *([f"grpc.max_{way}_message_length", MAX_FRAME_BYTES] for way in ("send", "receive")),
            ["grpc.server_handshake_timeout_ms", 10_000],
            ["grpc.max_connection_idle_ms", 30_000],
        ]
    },
}
"""The processes of a site meet at a Unix socket, and sites at the server alone; frames have bounded size.

At the server's port a handshake has 10 seconds, and a connection without a stream 30: a site always has one stream."""

_RIGHTS: Final = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "get_job_log")
_NEVER: Final = {"byoc": "none", "shell_commands": "none", "server-predeployed-flwr": "none"}
"""Nobody may bring code, or run shell commands on another's machine, whatever role FLARE gives them."""


def _common_name(certificate: Path) -> str:
    try:
        subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
        return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{certificate}: cannot be read ({error}); ask for a new start-up kit") from error


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
