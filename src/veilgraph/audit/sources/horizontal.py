"""What the messages of a horizontal job hold for attacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from veilgraph.audit.evidence import Evidence, embedding_of, gradients_of, rounds_of
from veilgraph.audit.source import Source
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind


class HorizontalSource(Source):
    """At the server every holder's embeddings and gradients of every layer."""

    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """At holders there is nothing that the catalogue has an attack on."""
        if view.party != SERVER:
            return
        for holder in trained.others:
            for layer in rounds_of(trained, Kind.EMBEDDING, holder):
                yield from embedding_of(
                    trained, Kind.EMBEDDING, layer, f"{holder}'s embedding of layer {layer}", [holder]
                )
            for layer in rounds_of(trained, Kind.GRADIENT, holder):
                words = f"{holder}'s gradients of the global embedding of layer {layer}"
                yield from gradients_of(trained, Kind.GRADIENT, layer, words, [holder], (holder,))


HORIZONTAL: Final = HorizontalSource()
