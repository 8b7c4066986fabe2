"""What is claimed of messages that are neither words under masks nor shares: orders, and bytes to the dealer."""

from __future__ import annotations

from collections.abc import Iterator

from veilgraph.audit.attacks.orders import orders_p_value
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped
from veilgraph.audit.mounts.claims import claim_finding
from veilgraph.audit.source import source_of
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, Kind


def told_orders(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At a holder: orders that the others told, against uniform ones, each other and the true ones."""
    for sender in () if view.party == SERVER else view.others:
        found = source_of(case.settings).orders(view, sender, case.graph(sender))
        told = sum(each.told for each in found)
        if not told:
            continue
        try:
            p_value = orders_p_value(found)
        except DataError as error:
            yield Skipped(view.party, f"orders of {sender}", str(error), "orders")
            continue
        note = "Do they rise and fall at random, and are no two, told or true, alike?"
        yield claim_finding("orders", view.party, sender, "edges", f"{told} orders from {sender}", p_value, note)


def told_dealer(case: Case, view: View) -> Iterator[Finding | Skipped]:
    """At the server that deals: that something was used, by a byte that is always the same."""
    if view.party != SERVER:
        return
    for sender in case.settings.data.names:
        heard = view.received(Kind.READY, sender)
        if not heard:
            continue
        others = sum(seen.shape != (1,) or int(seen.tensor()) != 1 for seen in heard)
        note = f"{others} of them are anything but the byte 1."
        words = f"{len(heard)} messages from {sender}"
        yield claim_finding("one-byte", SERVER, sender, "nothing", words, float(others == 0), note)
