"""Where more evidence comes from than rows expose by themselves: what a paradigm's messages hold together.

A package with a paradigm of its own adds a ``Source`` of the same name by an entry point of the group
``veilgraph.evidence``; without one the audit tests what must say nothing, attacks what rows expose, and lists what
else reveals something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from veilgraph.audit.evidence import Evidence, exposed_of, hidden_of
from veilgraph.audit.view import View
from veilgraph.core.errors import DataError
from veilgraph.core.registry import Registry
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings

if TYPE_CHECKING:
    from torch import Tensor

    from veilgraph.audit.attacks.orders import Order
    from veilgraph.audit.passes import Passes
    from veilgraph.graph.party import PartyGraph
    from veilgraph.paradigms.vertical.twin import PlainNetwork
    from veilgraph.run.run_directory import RunDirectory


@dataclass(frozen=True)
class OpenedSum:
    """A sum in fixed point that a party opens.

    Attributes:
        words: what it is.
        rows: of each pass.
        bits: how many of them are fractional.
        holders: whose summands it has.
    """

    words: str
    rows: Passes
    bits: int
    holders: Sequence[PartyId]


class Source:
    """What messages of a paradigm hold together; this one knows of nothing but what their rows expose.

    Attributes:
        reads_passes: whether messages are read pass by pass, each with a row for every node.
        trains_alone: whether who has the labels is compared with what it predicts from its own data as well.
    """

    reads_passes: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = False

    def hidden(self, view: View) -> list[Evidence] | None:
        """Messages that must say nothing to a party; None: those that rows say are under masks, kind by kind."""
        return None

    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        """What a party is meant to have, that attacks can be mounted on, beside what rows expose one by one.

        Args:
            view: of the party.
            trained: the part of it in which rows are those of its data.
        """
        yield from ()

    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        """What some parties have together, and none of them alone.

        Args:
            server: its view, where it is one of them.
            holders: views of the holders among them, at least one.
            outside: the other holders, at least one.
        """
        yield from ()

    def orders(self, view: View, sender: PartyId, truth: PartyGraph) -> list[Order]:
        """Orders that a holder told, which must say nothing, and true ones, which these must not be like.

        Args:
            view: of who was told.
            sender: who told.
            truth: its data.
        """
        return []

    def unattacked(self, view: View) -> Sequence[tuple[str, str]]:
        """(revelations, what) of what there is no attack on, beside what is in no evidence."""
        return ()

    def sums(self, view: View) -> Iterator[OpenedSum]:
        """Sums in fixed point that a party opens, whose low bits could tell of the summands."""
        yield from ()

    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        """Of a network like the job's, or of a vertical one, trained on all that the holders have in one place.

        Args:
            job: whose seed it has.
            everything: pooled.
            epochs: of the training.

        Returns:
            Tensor[N, C] float64.
        """
        from veilgraph.paradigms.vertical.settings import VerticalJob  # noqa: PLC0415 - as above
        from veilgraph.paradigms.vertical.twin import PlainNetwork  # noqa: PLC0415 - seconds to import

        model = job.model if isinstance(job, VerticalJob) else VerticalJob(preset="paper").model
        initial = model.initial.model_copy(update={"method": "individual", "release": None})
        like = VerticalJob(model=model.model_copy(update={"initial": initial}), train=job.train, seed=job.seed)
        network = PlainNetwork(like, [everything], everything.party)
        for epoch in range(1, epochs + 1):
            network.train_step(epoch)
        return network.infer().double().softmax(dim=1)

    def unreadable(self, run: RunDirectory) -> str:
        """Why views of a run cannot be read, though it is complete; empty if they can."""
        return ""

    def twin(self, run: RunDirectory) -> PlainNetwork:
        """The trained network in one process.

        Raises:
            DataError: its inferences cannot be made anew.
        """
        raise DataError(
            "joint inferences are made anew in jobs of paradigm vertical without privacy and perturbed features; with "
            "them each inference has noise of its own or is of what was released once"
        )


SOURCES: Final[Registry[Source]] = Registry(
    "veilgraph.evidence",
    {
        "vertical": "veilgraph.audit.sources.vertical:VERTICAL",
        "sealed": "veilgraph.audit.sources.sealed:SEALED",
        "averaging": "veilgraph.audit.sources.averaging:AVERAGING",
    },
    kind="veilgraph.audit.source:Source",
)


def source_of(job: JobSettings) -> Source:
    """That of a job's paradigm."""
    return SOURCES.get(job.paradigm) or Source()


def evidence_of(view: View) -> list[Evidence]:
    """Everything in a view that attacks can be mounted on.

    Raises:
        RunError: a message cannot be read.
    """
    trained = view.of_training
    source = source_of(view.settings)
    hidden = source.hidden(view)
    silent = hidden_of(view) if hidden is None else hidden
    return [*silent, *exposed_of(trained), *source.evidence(view, trained)]
