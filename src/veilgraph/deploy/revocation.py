"""The list of revoked certificates in a kit.

A person installs it or a peer passes it on; no older one takes its place.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.files import locked, os_errors_as, write_whole
from veilgraph.link.identity import RevocationList, load_roots

LIST_FILE: Final = "revoked.pem"
_ROOT_FILE: Final = "rootCA.pem"

log = logging.getLogger("veilgraph")


def installed_list(kit: Path) -> RevocationList | None:
    """The newest list that this kit has; None if it never had one.

    Raises ``ConfigError``: a file cannot be read; ``DataError``: the list in the kit is none of this project.
    """
    path = kit / "startup" / LIST_FILE
    with os_errors_as(ConfigError, f"{path}: cannot be read", "mend its owner and mode"):
        if not path.exists():
            return None
        stamp = path.stat()
        return _read_cached(path, kit / "startup" / _ROOT_FILE, (stamp.st_ino, stamp.st_size, stamp.st_mtime_ns))


def current_list(kit: Path, now: datetime, *, insist: bool) -> RevocationList | None:
    """``installed_list``; an overdue one is warned of. With ``insist``, ``ConfigError``: it is overdue, or missing."""
    found = installed_list(kit)
    overdue = found is not None and now > found.next_update
    if insist and (found is None or overdue):
        state = "has no list" if found is None else f"should have had a newer list since {found.next_update:%Y-%m-%d}"
        raise ConfigError(
            f"{kit}: this site joined with --current-list, and {state} of revoked certificates; get one from the "
            "authority: veilgraph cert install KIT FILE"
        )
    if found is not None and overdue:
        log.warning(
            "the list of revoked certificates should have been renewed on %s; it still counts: ask the authority for "
            "a newer one",
            f"{found.next_update:%Y-%m-%d}",
        )
    return found


def accept_newer(kit: Path, pem: bytes) -> bool:
    """Keeps a list that anybody passed on, if it is of this project's authority and newer; returns whether it was.

    Raises ``ProtocolError``: it is not a list of this project, or contradicts the one that is here; ``RunError``: it
    cannot be written; others as ``installed_list``.
    """
    startup = kit / "startup"
    with os_errors_as(RunError, f"{startup}: cannot be written", "unpack the kit where you may write"):
        shown = RevocationList.read(pem, load_roots(startup / _ROOT_FILE))
        with locked(startup, f"{startup} is in use", wait_s=math.inf):  # several jobs of a site may be shown lists
            if not shown.follows(installed_list(kit)):
                return False
            write_whole(startup / LIST_FILE, shown.pem)
            (startup / LIST_FILE).chmod(0o600)
    log.info("took list %d of revoked certificates: %d are revoked", shown.number, len(shown.revoked))
    return True


def install_list(kit: Path, file: Path) -> RevocationList:
    """Install a list from a file; ``ConfigError``: unreadable; ``DataError``: of another project; ``RunError``: old."""
    with os_errors_as(ConfigError, f"{file}: cannot be read", "give what veilgraph cert revoke wrote"):
        pem = file.read_bytes()
    try:
        newer = accept_newer(kit, pem)
        found = installed_list(kit)
        given = RevocationList.read(pem, load_roots(kit / "startup" / _ROOT_FILE))
    except ProtocolError as error:
        raise DataError(f"{file}: {error}") from error
    if not newer and found is not None and found.pem != given.pem:
        raise RunError(f"{file} is list {given.number}, and list {found.number} is installed; give the newest one")
    return given


@lru_cache(maxsize=8)
def _read_cached(path: Path, root: Path, _stamp: tuple[int, int, int]) -> RevocationList:
    try:
        return RevocationList.read(path.read_bytes(), load_roots(root))
    except ProtocolError as error:
        raise DataError(f"{path}: {error}; delete it, and install the newest list again") from error
