"""What a sealed job's messages hold: noise, all of it, but for what the label holder is told of every node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.audit.attacks.orders import Order
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.passes import numbers
from veilgraph.audit.roc import Floats
from veilgraph.audit.source import Source
from veilgraph.audit.sources.sealed_noise import noise_from, rows_under_masks
from veilgraph.audit.sources.sealed_orders import told_and_true_orders
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Seen
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.protocol.job import JobSettings

_SCORES: Final = ("sealed-scores", "how many validation nodes are right, at every evaluation")
_NAMED: Final = ("named-classes", "predictions of the nodes that it named")
_RELEASED: Final = ("released-weights", "weights of its own columns")


class SealedSource(Source):
    """The predictions, all other messages as noise, and for comparison a network like the job's."""

    reads_passes: ClassVar[bool] = False
    trains_alone: ClassVar[bool] = True

    @override
    def hidden(self, view: View) -> list[Evidence]:
        return list(noise_from([view], view.others)) if view.party != SERVER else []

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        if view.party == SERVER:
            return
        yield from rows_under_masks([trained], trained.others)
        messages = _output(trained)
        if not messages or trained.predicted is None:
            return
        told = "classes" if sealed(view.settings).output == "classes" else "probabilities"
        rows = _rows(trained.predicted)
        yield Evidence("posteriors", f"predicted {told}", view.others, rows=rows, messages=messages)
        beside = f"its own data, what it predicts from them, and the predicted {told}"
        yield Evidence("beside", beside, view.others, rows=rows, messages=messages)

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        if server is not None:
            raise DataError(
                "the dealer and a holder together know every mask, and so whatever the holders open: a sealed job is "
                "for those who trust that they do not collude"
            )
        yield from noise_from(holders, outside)
        yield from rows_under_masks(holders, outside)

    @override
    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        return told_and_true_orders(view, sender, truth)

    @override
    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        job = sealed(view.settings)
        labelled = view.party == job.data.label_party
        told = {_SCORES: job.evaluates and labelled, _NAMED: job.predicts_named and labelled}
        told[_RELEASED] = job.release == "holders" and view.party != SERVER
        return [what for what, is_told in told.items() if is_told]

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        own = sealed(job)
        weighted = own.model.edge_weights or everything.edge_weight is not None
        like = own.model_copy(
            update={
                "output": "probabilities",
                "privacy": None,
                "model": own.model.model_copy(update={"edge_weights": weighted, "edge_slots": None}),
                "train": own.train.model_copy(update={"epochs": epochs, "select_by": "last", "learning_rates": None}),
                "data": own.data.model_copy(update={"holders": (everything.party,), "label_holder": None}),
            }
        )
        found = trained_twin(like, [replace(everything, val_mask=None, test_mask=None)]).predict()
        assert found is not None
        return found.to(torch.float64)


def _rows(read: Callable[[], Tensor]) -> Floats | None:
    """None where there are no predictions of these nodes, as attacks on them then say."""
    try:
        return numbers(read())
    except (DataError, RunError):
        return None


def _output(view: View) -> tuple[Seen, ...]:
    """The shares that open the newest predictions to the party."""
    nodes = None if view.graph is None else view.graph.common
    newest = [
        [seen for seen in view.received(Kind.MASK_SHARE, other) if seen.shape[0] == nodes][-1:] for other in view.others
    ]
    return tuple(seen for some in newest for seen in some)


SEALED: Final = SealedSource()
