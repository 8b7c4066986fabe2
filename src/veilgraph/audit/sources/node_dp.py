"""What nodes that perturb their own features tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from veilgraph.audit.evidence import Evidence
from veilgraph.audit.source import Source
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind


class NodeDpSource(Source):
    """At the holder that learns, what others' nodes released."""

    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """Features that nodes perturbed."""
        if view.party != SERVER:
            yield from perturbed(trained)


def perturbed(view: View) -> Iterator[Evidence]:
    """At a holder that learns: what others' nodes perturbed by themselves."""
    for other in view.others:
        seen = view.received(Kind.PERTURBED_FEATURES, other)
        if seen:
            yield Evidence("releases", f"features that {other}'s nodes perturbed", (other,), messages=tuple(seen))


NODE_DP: Final = NodeDpSource()
