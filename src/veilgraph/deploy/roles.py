"""Who is who in a project, as its root signed it and every kit has it: who relays, who deals, and who has data.

Who relays runs the engine's server. Who deals is the party ``server`` of every protocol: the same machine, or another
one, which the project file names. The server then hands on sealed messages and takes no part in a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, ValidationError
from pydantic_core import from_json

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.settings import Exact, Settings
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.channel import length_prefixed
from veilgraph.link.identity import PrivateKey, check_signature, load_roots, sign
from veilgraph.protocol.job import JobSettings

ROLES: Final = "roles.json"
"""In a kit's ``startup``."""
_LABEL: Final = b"veilgraph roles 1"

_Name = Annotated[str, Field(min_length=1, max_length=253)]


class Roles(Settings):
    """The names, in certificates, of who relays, who deals, and who has data."""

    roles: Literal[1] = 1
    project: _Name
    server: _Name
    """Who relays: the server's host."""
    dealer: _Name | None = None
    """Who is party ``server`` of a job; null: who relays."""
    holders: tuple[PartyId, ...]
    number: Annotated[int, Field(ge=1)] = 1
    """Rises when somebody comes or leaves: no older file takes the place of a newer one."""

    @property
    def deals(self) -> str:
        """The name in the certificate of party ``server``."""
        return self.dealer or self.server

    def __str__(self) -> str:
        if self.dealer is None:
            return f"{self.server} deals and relays"
        return f"{self.dealer} deals, {self.server} relays and takes no part in jobs"

    def in_job(self, job: JobSettings) -> str:
        """Say who deals in a job, if anybody is known to, and who relays."""
        if (dealing := job.duties.dealing) == SERVER:
            return str(self)
        relays = f"{self.server} relays and is party {SERVER}"
        if self.dealer is not None:
            relays = f"{self.dealer} is party {SERVER}, {self.server} relays and takes no part in jobs"
        return relays if dealing is None else f"{dealing} deals, {relays}"


class _Signed(Exact):
    said: str
    """JSON of the roles, byte for byte as it was signed."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]+$", max_length=4096)]
    certificates: list[str] = Field(default_factory=list)
    """PEM, each signed by itself."""


def write_roles(
    folder: Path, roles: Roles, root_key: PrivateKey, certificates: Iterable[x509.Certificate] = ()
) -> None:
    """Write roles, signed by the project's root, and certificates that brokers are to admit; or ``OSError``."""
    said, named = roles.model_dump_json(), [each.public_bytes(Encoding.PEM).decode() for each in certificates]
    signed = _Signed(
        said=said, signature=sign(root_key, length_prefixed(_LABEL, said.encode())).hex(), certificates=named
    )
    write_whole(folder / ROLES, signed.model_dump_json(indent=2).encode())


def read_roles(startup: Path) -> Roles:
    """Read a kit's roles. ``ConfigError``: unreadable; ``DataError``: malformed, or not signed by the kit's root."""
    return _read_signed(startup / ROLES, startup)[0]


def newer_roles(startup: Path, file: Path) -> tuple[Roles, list[x509.Certificate]]:
    """Read roles that may replace a kit's, and certificates that brokers are to admit. Nothing is written.

    Raises as ``read_roles``; ``DataError``: somebody else relays or deals; ``RunError``: newer ones are installed.
    """
    (found, signed), known = _read_signed(file, startup), read_roles(startup)
    if found.model_copy(update={"holders": known.holders, "number": known.number}) != known:
        raise DataError(f"{file}: {found}, and with this kit {known}: for that provision a new project", code="roles")
    if found.number < known.number or (found.number == known.number and found != known):
        raise RunError(f"{file} has number {found.number}, and {known.number} is installed; give the newest one")
    with os_errors_as(DataError, f"{file}: a certificate in it is none", "give the file as it was made", ValueError):
        return found, [x509.load_pem_x509_certificate(each.encode()) for each in signed.certificates]


def _read_signed(path: Path, startup: Path) -> tuple[Roles, _Signed]:
    """Read roles, and the file that they were signed in; errors as ``read_roles``."""
    with os_errors_as(ConfigError, f"{path}: cannot be read", "it says who deals: ask for a new start-up kit"):
        content = path.read_bytes()
    try:
        signed = _Signed.model_validate_json(content)
    except ValidationError as error:
        raise DataError(f"{path}: does not say who is who; ask for a new start-up kit", code="roles") from error
    roots = load_roots(startup / "rootCA.pem")
    if not any(_is_signed_by(root, signed) for root in roots):
        raise DataError(
            f"{path}: the project's root did not sign it: it was changed; ask for a new start-up kit, and find out who "
            "did",
            code="roles",
        )
    try:
        return Roles.model_validate(from_json(signed.said)), signed
    except ValueError as error:
        raise DataError(f"{path}: is of another release; install one release everywhere", code="roles") from error


def _is_signed_by(root: x509.Certificate, signed: _Signed) -> bool:
    try:
        said = length_prefixed(_LABEL, signed.said.encode())
        check_signature(root.public_key(), bytes.fromhex(signed.signature), said)
    except (InvalidSignature, ValueError):
        return False
    return True
