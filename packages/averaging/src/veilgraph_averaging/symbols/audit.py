"""What an audit reads of symbols: which class a holder was told of another's nodes, by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from veilgraph.core.text import listed
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import ViewEntry
from veilgraph.paradigms.union.edge_lists import hashes_of
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.view import View
from veilgraph_averaging.audit_sums import session_names
from veilgraph_averaging.symbols.exchange import NONE, SYMBOLS, confirmed_of, list_pairs


def symbols_at(view: View) -> Iterator[Evidence]:
    """Yield, by sender, the symbols that a holder was sent of its nodes at edges that both have."""
    for sender in view.others:
        if found := _symbols_from(view, sender):
            symbols, seen = found
            yield _evidence([view.party], sender, symbols, (seen,))


def symbols_together(holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Yield, by sender outside of a coalition, the symbols that any of its ``holders`` was sent."""
    for sender in outside:
        found = [each for each in (_symbols_from(view, sender) for view in holders) if each is not None]
        if len(found) > 1:
            symbols = {name: told for each, _ in found for name, told in each.items()}
            yield _evidence([view.party for view in holders], sender, symbols, tuple(seen for _, seen in found))


def _evidence(
    to: Sequence[PartyId], sender: PartyId, symbols: Mapping[str, int], messages: tuple[ViewEntry, ...]
) -> Evidence:
    words = f"symbols of {sender}'s nodes at edges with {listed(to)}"
    return Evidence("symbols", words, (sender,), symbols=symbols, messages=messages)


def _symbols_from(view: View, sender: PartyId) -> tuple[dict[str, int], ViewEntry] | None:
    """Id of a sender's node → its class, or −1 where it released none, and the newest message; None without one."""
    sent = view.received(SYMBOLS.kind, sender)
    if not sent or view.graph is None or view.ids is None:
        return None
    seen = sent[-1]
    (theirs,) = (each for each in view.received(Kind.NODE_LIST, sender) if each.session == seen.session)
    own = list_pairs(view.graph, view.ids, [sender], session_names(view)[seen.session])[sender]
    nodes = confirmed_of(own, hashes_of(theirs.tensor())).other.tolist()
    told = [-1 if symbol == NONE else symbol for symbol in seen.tensor().tolist()]
    return {view.ids[node].removeprefix(f"{sender}/"): symbol for node, symbol in zip(nodes, told, strict=True)}, seen
