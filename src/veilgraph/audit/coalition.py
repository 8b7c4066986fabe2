"""What several parties have when they put their views together: more than each of them by itself.

Whoever knows its own summand has the sum of the others' only; the dealer and a holder together have what the dealt
masks hide. ``docs/threat-model.md`` says against which coalitions a claim is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from veilgraph.audit.evidence import Evidence
from veilgraph.audit.source import evidence_of, source_of
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER


def joined_evidence(views: Sequence[View]) -> list[Evidence]:
    """Everything in several parties' views that attacks on the others can be mounted on.

    What must say nothing to each by itself is not tested: for them together it may say something, and is used below.

    Raises:
        RunError: a message cannot be read.
    """
    members = {view.party for view in views}
    outside = [name for name in views[0].settings.data.names if name not in members]
    found: dict[tuple[object, ...], Evidence] = {}
    for view in views:
        for each in evidence_of(view):
            about = tuple(party for party in each.about if party in outside)
            key = (each.sort, each.words, about)
            if not each.permitted or not about:
                continue
            if key not in found:
                found[key] = replace(each, about=about)
            elif each.updates:  # of the same h0, and each knows its own
                updates = zip(found[key].updates, each.updates, strict=False)
                found[key] = replace(found[key], updates=tuple(one + other for one, other in updates))
    holders = [view.of_training for view in views if view.party != SERVER]
    server = next((view.of_training for view in views if view.party == SERVER), None)
    more: list[Evidence] = []
    if outside and holders:
        more += source_of(views[0].settings).joined(server, holders, outside)
    return [*found.values(), *more]
