"""When a site last heard of whom, as times of files in its kit: nobody need be asked, and nothing is sent for it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from veilgraph.core.files import descriptor_of, private_folder
from veilgraph.core.types import PartyId

FOLDER: Final = "heard"
_EVERY_S: Final = 1.0


class Heard:
    """Notes signs of life of those at the other ends, each at most once a second.

    Args:
        kit: of the site.
    """

    def __init__(self, kit: Path) -> None:
        self._folder = kit / FOLDER
        self._noted: dict[PartyId, float] = {}

    def note(self, name: PartyId) -> None:
        """The guard has let a message of ``name`` pass, whose certificate says so. A full disk stops no message."""
        now = time.monotonic()
        if now - self._noted.get(name, -_EVERY_S) < _EVERY_S:
            return
        self._noted[name] = now
        with suppress(OSError):
            path = private_folder(self._folder) / name
            os.close(descriptor_of(path, os.O_WRONLY))
            os.utime(path)


def forget(kit: Path) -> None:
    """Before a site starts: what an earlier process of it has heard says nothing of this one."""
    with suppress(OSError):
        for path in (kit / FOLDER).iterdir():
            path.unlink()


def heard_s(kit: Path) -> dict[PartyId, float]:
    """Seconds since each was heard of, of those that were since the site started."""
    found: dict[PartyId, float] = {}
    with suppress(OSError):
        for path in (kit / FOLDER).iterdir():
            with suppress(OSError):
                found[path.name] = max(0.0, time.time() - path.stat().st_mtime)
    return found
