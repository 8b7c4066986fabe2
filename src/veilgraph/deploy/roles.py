"""Who is who in a project, as its root signed it and every kit has it: who relays, who deals, and who has data.

Who relays runs the engine's server. Who deals is the party ``server`` of every protocol: the same machine, or another
one, which the project file names. The server then hands on sealed messages and takes no part in a job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from pydantic import Field, ValidationError

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.settings import Exact, Settings
from veilgraph.core.types import PartyId
from veilgraph.link.channel import joined
from veilgraph.link.identity import PrivateKey, check_signature, load_roots, sign

ROLES: Final = "roles.json"
"""In a kit's ``startup``."""
_LABEL: Final = b"veilgraph roles 1"

_Name = Annotated[str, Field(min_length=1, max_length=253)]


class Roles(Settings):
    """Names in certificates."""

    roles: Literal[1] = 1
    project: _Name
    server: _Name
    """Who relays: the server's host."""
    dealer: _Name | None = None
    """Who is party ``server`` of a job; null: who relays."""
    holders: tuple[PartyId, ...]

    @property
    def deals(self) -> str:
        """The name in the certificate of party ``server``."""
        return self.dealer or self.server

    def __str__(self) -> str:
        if self.dealer is None:
            return f"{self.server} deals and relays"
        return f"{self.dealer} deals, {self.server} relays and takes no part in jobs"


class _Signed(Exact):
    said: str
    """JSON of the roles, byte for byte as it was signed."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]+$", max_length=4096)]


def write_roles(startup: Path, roles: Roles, root_key: PrivateKey) -> None:
    """Writes the roles into a kit, signed by the project's root; or ``OSError``."""
    said = roles.model_dump_json()
    signed = _Signed(said=said, signature=sign(root_key, joined(_LABEL, said.encode())).hex())
    write_whole(startup / ROLES, signed.model_dump_json(indent=2).encode())


def read_roles(startup: Path) -> Roles:
    """Reads the roles in a kit, and checks that the kit's root signed them.

    Raises ``ConfigError``: a file cannot be read; ``DataError``: it is something else, or the root did not sign it.
    """
    path = startup / ROLES
    with os_errors_as(ConfigError, f"{path}: cannot be read", "it says who deals: ask for a new start-up kit"):
        content = path.read_bytes()
    try:
        signed = _Signed.model_validate_json(content)
    except ValidationError as error:
        raise DataError(f"{path}: does not say who is who; ask for a new start-up kit", code="roles") from error
    roots = load_roots(startup / "rootCA.pem")
    if not any(_is_by(root, signed) for root in roots):
        raise DataError(
            f"{path}: the project's root did not sign it: it was changed; ask for a new start-up kit, and find out who "
            "did",
            code="roles",
        )
    try:
        return Roles.model_validate(json.loads(signed.said))
    except ValueError as error:
        raise DataError(f"{path}: is of another release; install one release everywhere", code="roles") from error


def _is_by(root: x509.Certificate, signed: _Signed) -> bool:
    try:
        said = joined(_LABEL, signed.said.encode())
        check_signature(root.public_key(), bytes.fromhex(signed.signature), said)
    except (InvalidSignature, ValueError):
        return False
    return True
