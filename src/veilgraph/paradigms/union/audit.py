"""What the audit must know of a union: all messages must look random, but what a holder learns of its own nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.audit import SealedSource, check_no_dealer, noise_from
from veilgraph.paradigms.union.rows import CLASSES, EDGES, MARGINS, NAMED, NAMED_MARGINS, NODES, SCORES
from veilgraph.paradigms.union.settings import union
from veilgraph.paradigms.union.twin import trained_alone
from veilgraph.protocol.evidence import Evidence, Order, hidden_evidence
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.view import View


class UnionSource(SealedSource):
    """Audit a union job: all messages must look random; attacks compare with the job's network on own nodes alone."""

    @override
    def hidden(self, view: View) -> list[Evidence]:
        sums = hidden_evidence(view, but=[kind for kind in Kind if kind is not Kind.COLUMN_SUMS])
        return [*sums, *noise_from([view], view.others)] if view.party != SERVER else []

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """Yield nothing: a holder is only told predictions of its own nodes."""
        yield from ()

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        check_no_dealer(server, holders)
        yield from noise_from(holders, outside)

    @override
    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        return []

    @override
    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        job = union(view.settings)
        if view.party == SERVER:
            return []
        if view.party == job.across:
            return [(NODES.name, "which ends of its edges are others' nodes")]
        if job.outcome.predicts_named:
            told = [((NAMED_MARGINS if job.output == "margins" else NAMED).name, "predictions of nodes that it named")]
        else:
            told = [((MARGINS if job.output == "margins" else CLASSES).name, "predictions of its own nodes")]
        told += [(EDGES.name, "which of its edges others have too")] if job.across is None else []
        return [
            *told,
            *([(SCORES.name, "how many validation nodes, or pairs, are right")] if job.passes.evaluates else []),
        ]

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = union(job)
        like = own.model_copy(update={"train": own.train.model_copy(update={"epochs": epochs, "select_by": "last"})})
        return trained_alone(like, replace(everything, val_mask=None, test_mask=None)).softmax(dim=1)


SOURCE: Final = UnionSource()
