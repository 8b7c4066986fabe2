"""How a party's tables have moved since training, at its newest prediction: in its own log and part of the run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.run.names import DRIFT
from veilgraph.tables.describe import Moved

_LOGGED: Final = 12

log = logging.getLogger("veilgraph")


def note_drift(folder: Path, party: PartyId, found: Sequence[Moved], compared: int) -> None:
    """Warn of what has moved since training, of so many columns and relations, and keep it in a part of the run."""
    for each in found[:_LOGGED]:
        log.warning("%s: has moved since training: %s", party, each)
    if len(found) > _LOGGED:
        log.warning("%s: %d more columns and relations have moved since training", party, len(found) - _LOGGED)
    told = {"made_at": datetime.now(UTC).isoformat(timespec="seconds"), "compared": compared}
    write_whole(folder / DRIFT, json.dumps({**told, "moved": list(map(asdict, found))}).encode())


def read_drift(folder: Path) -> Record:
    """What ``note_drift`` kept; nothing before the first prediction.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / DRIFT
    try:
        found: Record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise RunError(f"{path}: damaged ({error}); predict anew") from error
    return found
