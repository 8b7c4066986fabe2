"""The packages that the parties of a run have installed, one record a session."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import torch

from veilgraph.core.errors import RunError
from veilgraph.core.files import append
from veilgraph.core.types import PartyId
from veilgraph.core.version import __version__
from veilgraph.protocol.agreement import MOST_PACKAGES

_FIRST: Final = ("veilgraph", "torch")
SOFTWARE_FILE: Final = "software.jsonl"

Software = Mapping[str, str]
"""Package → version."""

log = logging.getLogger("veilgraph")


def installed_software() -> dict[str, str]:
    """Return this process's veilgraph and torch, and the packages that add parts by entry points."""
    own = {"veilgraph": __version__, "torch": str(torch.__version__)}
    # A command of another package takes no part in a session.
    groups = [each for each in entry_points().groups if each.startswith("veilgraph.") and each != "veilgraph.commands"]
    dists = [each.dist for group in groups for each in entry_points(group=group)]
    added = {dist.name: dist.version for dist in dists if dist is not None and dist.name not in own}
    return dict(list({**own, **dict(sorted(added.items()))}.items())[:MOST_PACKAGES])


def record_software(folder: Path, work: str, parties: Mapping[PartyId, Software]) -> None:
    """Append a session's record to a party's part of a run, and warn where versions differ.

    Args:
        folder: the party's part of the run.
        work: of the session.
        parties: party → what it stated; a statement, which nobody can check.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    line = json.dumps({"time": time, "work": work, "software": parties}, sort_keys=True)
    append(folder / SOFTWARE_FILE, line.encode() + b"\n")
    if len(set(map(_versions, parties.values()))) > 1:
        log.warning("the parties' software differs, and results may: %s", _listed(parties))


def software_words(folders: Iterable[Path]) -> str:
    """Describe the software of all sessions in one line; empty where none is on record.

    Raises:
        RunError: a record is damaged.
    """
    sessions: dict[str, None] = {}
    for path in (folder / SOFTWARE_FILE for folder in folders):
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            whole = text[: text.rfind("\n") + 1].splitlines()  # without a line that was cut off
            sessions |= dict.fromkeys(_listed(json.loads(line)["software"]) for line in whole)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: damaged ({error}); delete it") from error
    return "; later ".join(sessions)


def _listed(parties: Mapping[PartyId, Software]) -> str:
    by_versions: dict[str, list[PartyId]] = {}
    for party, software in parties.items():
        by_versions.setdefault(_versions(software), []).append(party)
    if len(by_versions) == 1:
        return f"all parties with {next(iter(by_versions))}"
    return ", ".join(f"{' and '.join(names)} with {versions}" for versions, names in by_versions.items())


def _versions(software: Software) -> str:
    listed = sorted(software.items(), key=lambda item: (item[0] not in _FIRST, item[0] == "torch", item[0]))
    return ", ".join(f"{name} {version}" for name, version in listed) or "software not stated"
