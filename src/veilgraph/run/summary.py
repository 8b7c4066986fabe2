"""What a finished training comes to: summary.json, and traffic.json of the parties whose part is here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import adds_noise
from veilgraph.run.computing import ALONE
from veilgraph.run.ledgers import LEDGER_SUMMARY
from veilgraph.run.run_directory import RunDirectory


def summarise(run: RunDirectory, parties: Sequence[PartyId], scored: PartyId) -> None:
    """Writes summary.json and traffic.json of a finished training.

    Args:
        run: holds the part of ``scored``.
        parties: whose parts are here: all of a job on one machine, one alone across organisations.
        scored: whose result it is; it has the scores.

    Raises:
        RunError: a file is missing or damaged.
    """
    traffic = [entry for party in parties for entry in _read(run.party(party).path / "traffic.json")]
    run.write_json("traffic.json", traffic)
    result = _read(run.party(scored).path / "result.json")
    ledgers = {party: run.party(party).path / LEDGER_SUMMARY for party in parties}
    if adds_noise(run.settings):
        result["privacy"] = {party: _read(path) for party, path in ledgers.items() if path.is_file()}
    alone = {party: _read(path) for party in parties if (path := run.party(party).path / ALONE).is_file()}
    if alone:
        result["alone"] = alone
    steps = sorted(record["step_seconds"] for record in run.metrics())
    result["seconds_per_step"] = steps[len(steps) // 2]
    result["sent_bytes"] = {
        party: sum(entry["bytes"] for entry in traffic if entry["party"] == party and entry["direction"] == "sent")
        for party in parties
    }
    run.write_json("summary.json", result)


def _read(path: Path) -> Any:  # noqa: ANN401  (JSON)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: missing or damaged ({error}); train again") from error
