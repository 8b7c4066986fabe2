"""What a run's ledgers claim, which an audit holds its findings against."""

from __future__ import annotations

import json

from veilgraph.audit.case import Case
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.paradigms.ledgers import LEDGER_SUMMARY


def claimed(case: Case, holder: PartyId) -> float | None:
    """The total ε of a holder's ledger; None where that is infinite.

    Raises:
        DataError: its ledger is not here.
    """
    path = case.run.party_path(holder) / LEDGER_SUMMARY
    if not path.is_file():
        raise DataError("its ledger is not here")
    total = json.loads(path.read_text(encoding="utf-8")).get("epsilon_total")
    return None if total is None else float(total)
