"""Puts guards in front of the cells of a process, by replacing two methods of FLARE's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from veilgraph.core.types import PartyId
from veilgraph.deploy.guard.ingress import Guard
from veilgraph.deploy.guard.policy import RULES, CellName, Rule

_CREDENTIALS: Final = (CellMessageHeaderKeys.TOKEN, CellMessageHeaderKeys.TOKEN_SIGNATURE)
_SERVER: Final = "server"
_GUARDED: Final = "veilgraph_guarded"
_ADMINISTRATORS_GUARDED: Final = "veilgraph_administrators_guarded"
"""Attributes of FLARE's class of cells, set where it has been replaced in part."""


def install(
    revoked: Callable[[bytes], str | None] | None = None,
    rules: frozenset[Rule] = RULES,
    heard: Callable[[PartyId], None] | None = None,
) -> None:
    """Puts a guard in front of every cell of this process, from now on; once.

    Args:
        revoked: as for ``Guard``.
        rules: as for ``Guard``.
        heard: as for ``Guard``.
    """
    if installed():
        return
    _guard(lambda name: True, revoked, rules, heard)
    send = CoreCell._send_to_endpoint

    def send_to_endpoint(cell: CoreCell, to_endpoint: Endpoint, message: Message) -> str:
        receiver = CellName.read(to_endpoint.name)
        if cell.get_fqcn() == _SERVER and receiver is not None and receiver.who in ("holder", "holder job"):
            for header in _CREDENTIALS:  # the server alone checks bearers' tokens, and no holder is given any
                message.remove_header(header)
        return str(send(cell, to_endpoint, message))

    CoreCell._send_to_endpoint = send_to_endpoint
    setattr(CoreCell, _GUARDED, True)


def install_for_administrators() -> None:
    """Puts a guard in front of every administrator's cell of this process, from now on; once. Other cells have none.

    FLARE's client downloads and unpacks what a server asks it to, by any command. It no longer does.
    """
    from nvflare.fuel.hci.client.file_transfer import FileTransferModule  # noqa: PLC0415  (for administrators alone)

    if installed() or getattr(CoreCell, _ADMINISTRATORS_GUARDED, False):
        return
    _guard(lambda name: name is not None and name.who == "administrator", None, RULES)
    FileTransferModule.pull_folder = FileTransferModule.pull_binary_file = _no_download
    setattr(CoreCell, _ADMINISTRATORS_GUARDED, True)


def _no_download(*_: object) -> dict[str, str]:
    return {"status": "ERROR_RUNTIME", "details": "the server asks for a download; refused"}


def _guard(
    which: Callable[[CellName | None], bool],
    revoked: Callable[[bytes], str | None] | None,
    rules: frozenset[Rule],
    heard: Callable[[PartyId], None] | None = None,
) -> None:
    dispatch = CoreCell.process_message
    guards: dict[CoreCell, Guard] = {}

    def process_message(
        cell: CoreCell, endpoint: Endpoint, connection: Connection, app_id: int, message: Message
    ) -> None:
        guard = guards.get(cell)
        if guard is None and which(CellName.read(cell.get_fqcn())):
            guard = guards.setdefault(cell, Guard(cell, revoked, rules, heard))
        if guard is None or guard.admits(endpoint, connection, message):
            dispatch(cell, endpoint, connection, app_id, message)

    CoreCell.process_message = process_message


def installed() -> bool:
    """Whether this process's cells are guarded."""
    return bool(getattr(CoreCell, _GUARDED, False))
