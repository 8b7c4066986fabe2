"""Whether holders that train privately drew who is in a sum as their ledgers count, by their own notes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from veilgraph.audit.attacks.sampling import sampling
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped
from veilgraph.audit.mounts.claims import claim_finding
from veilgraph.audit.sources.averaging_rounds import drawn_rounds
from veilgraph.audit.view import View, load_view
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.audit_settings import Check
from veilgraph.run.ledgers import LEDGER

_NAME: Check = "sampling-rate"


def sampled(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At the server, of every holder that trains privately.

    Args:
        case: of the run.
        view: of one party.
    """
    if view.party != SERVER or case.settings.training_plan is None:
        return
    for name in case.settings.data.names:
        if case.graph(name).labels is None:
            continue
        try:
            rate = _accounted(case, name)
            sums = [each.numpy() for each in drawn_rounds(load_view(case.run, name))]
            found = sampling(sums, rate)
        except DataError as error:
            yield Skipped(SERVER, f"{_NAME} of {name}", str(error), _NAME)
            continue
        words = f"who is in {len(sums)} sums of {name}, by its own notes"
        note = f"{found.rate:.3g} of its training nodes are in a sum, and its ledger counts with {rate:g}"
        note += "." if found.p_value > _TELLING else f"; {found.oddest}."
        yield claim_finding(_NAME, SERVER, name, "noise", words, found.p_value, note)


_TELLING = 0.01
"""p-values below which what is odd is worth a word."""


def _accounted(case: Case, holder: PartyId) -> float:
    """The least rate that a holder's ledger counts with.

    Raises:
        DataError: its ledger is not here, or counts none.
    """
    path = case.run.party_path(holder) / LEDGER
    if not path.is_file():
        raise DataError("its ledger is not here")
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rates = [float(each["event"]["sampling_rate"]) for each in entries if "sampling_rate" in each["event"]]
    if not rates:
        raise DataError("its ledger counts no sampled sum")
    return min(rates)
