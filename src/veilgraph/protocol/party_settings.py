"""What one organisation says of its own tables: ``party.yaml``, which never leaves it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import resolve_unlinked
from veilgraph.core.settings import Settings, config_errors
from veilgraph.core.yaml_file import SettingsLoader, parse_yaml, read_yaml
from veilgraph.protocol.limits import LimitSettings
from veilgraph.tables.settings import TableSettings

_PRIVATE: Final = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "127.0.0.0/8"))
)
"""RFC 1918, link-local, loopback. A carrier's 100.64.0.0/10 has other customers in it, and the rest is reserved."""
NOT_PRIVATE: Final = (
    "a party's machines encrypt nothing; give an address of a network of theirs alone, in 10.0.0.0/8, 172.16.0.0/12 or "
    "192.168.0.0/16"
)


def is_private(address: str) -> bool:
    """Whether an IPv4 address is of a private network; raises ``ValueError`` where it is none."""
    parsed = IPv4Address(address)
    return any(parsed in network for network in _PRIVATE)


class MachineSettings(Settings):
    """Several machines of the party that share its local model, across organisations (docs/guides/deployment.md)."""

    count: int = Field(ge=2)
    """number, with the joining one"""
    address: str
    """private host:port of the joining one, free there and reached by the others"""
    idle_s: float = Field(3600.0, gt=0, le=30 * 86400)
    """longest wait of the others for work in a job"""

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if not host or ":" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ValueError("an address is a name or IPv4 address and a port, as in 10.0.0.5:29500")
        if host.replace(".", "").isdigit() and not is_private(host):  # a name is resolved where it is used
            raise ValueError(NOT_PRIVATE)
        return address

    @property
    def host(self) -> str:
        """Name or IPv4 address."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Port of ``address``."""
        return int(self.address.rpartition(":")[2])


MAX_APPROVAL_WAIT_S: Final = 7 * 86400.0


class ConsentSettings(Settings):
    """How often a party takes part, across organisations; the defaults count and ask for nothing."""

    jobs: int | None = Field(None, ge=0)
    """most jobs of this kit; null: any number"""
    jobs_per_day: int | None = Field(None, ge=0)
    """most jobs in 24 hours; null: any number"""
    resumes: int = Field(5, ge=0)
    """sessions that continue a training before the next counts as a job"""
    alignments: int | None = Field(None, ge=0)
    """most alignments; each reveals which of the others' ids are common now"""
    alignments_per_day: int | None = Field(None, ge=0)
    """most alignments in 24 hours"""
    approval: Literal["limits", "ask"] = "limits"
    """limits: jobs within the limits are accepted; ask: a person approves each too"""
    approval_wait_s: float = Field(3600.0, gt=0, le=MAX_APPROVAL_WAIT_S)
    """longest wait for approval, then the job is refused"""

    @property
    def limited(self) -> bool:
        """Whether anything is counted against a limit."""
        return {self.jobs, self.jobs_per_day, self.alignments, self.alignments_per_day} != {None}


class DriftSettings(Settings):
    """How far a column or relation of the party may move after training, by the population stability index."""

    warn: float = Field(0.25, gt=0)
    """above it, predictions warn in the party's log and report"""
    refuse: float | None = Field(None, gt=0)
    """above it, the party refuses to predict, which others learn and no ε covers; null: never"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.refuse is not None and self.refuse < self.warn:
            raise ValueError(f"refuse={self.refuse:g} must be at least warn={self.warn:g}; raise it, or lower warn")
        return self


class PartySettings(TableSettings):
    """One organisation's own settings; private to it."""

    seed: Literal["private", "fresh", "job"] = "private"
    """of initial weights and dropout. private: secret, the same for the same job and tables; fresh: new in every run,
    as then for all parties; job: the job's
    """
    limits: LimitSettings = LimitSettings()
    ledger: Path = Path("ledger")
    """folder of the ledger of its releases, relative to the party file; made if missing; keep it as long as the data
    are used
    """
    consent: ConsentSettings = ConsentSettings()
    """how often it takes part across organisations; on one machine nothing is counted"""
    drift: DriftSettings = DriftSettings()
    machines: MachineSettings | None = None
    """several machines of its own; null: the joining one"""


def parse_party_settings(data: object, source: str = "party") -> PartySettings:
    """Validate party settings from YAML or a dictionary; raises ``ConfigError`` for the first broken key."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a party file is a mapping, not {type(data).__name__}; see docs/guides/tables.md")
    with config_errors(source):
        return PartySettings.model_validate(data)


def parse_party_text(text: str, source: str = "party") -> PartySettings:
    """Validate the text of a party file; raises ``ConfigError``."""
    return parse_party_settings(parse_yaml(text, TextLoader), source)


def read_party_settings(path: Path) -> PartySettings:
    """Read and validate a party file; raises ``ConfigError``."""
    data = read_yaml(path, "party file", TextLoader)
    return parse_party_settings({} if data is None else data, str(path))


def party_folder(path: Path) -> Path:
    """The folder where a party file's paths begin, also if ``path`` links to it; errors as ``resolve_unlinked``."""
    return resolve_unlinked(path).parent


class TextLoader(SettingsLoader):
    """Leaves every scalar but null as its text, so that the class ``no`` is not false, nor the category ``007`` 7."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own declaration
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in SettingsLoader.yaml_implicit_resolvers.items()
    }
