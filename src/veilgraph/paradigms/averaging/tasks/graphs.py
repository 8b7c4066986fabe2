"""Graph classification: of every graph of a holder its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.linear import linear
from veilgraph.paradigms.averaging.network import Averaged, AveragedNetwork
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.classes import ClassTask
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import TaskSettings
from veilgraph.protocol.figures import AP, AUC, F1, Figure, Measures
from veilgraph.protocol.judge import Predicted

_REDUCTIONS: Final = {"mean": "mean", "sum": "sum", "max": "amax"}


class GraphsSettings(TaskSettings):
    """Graph classification."""

    readout: Literal["mean", "sum", "max"] = Field(
        "mean", description="what of its nodes' embeddings a graph's is, column by column"
    )


@dataclass(frozen=True, eq=False)
class GraphsOwn(Own):
    """A holder's graphs.

    Attributes:
        place: Tensor[N] int64, of which of them a node is, 0..G−1.
        numbers: Tensor[G] int64, as ``membership`` has them.
        whole: labels and masks of the graphs, as those of a graph's nodes.
    """

    place: Tensor
    numbers: Tensor
    whole: PartyGraph

    @classmethod
    def of(cls, graph: PartyGraph, dtype: torch.dtype) -> Self:
        """Made ready for networks of one dtype; the graph has ``membership``."""
        assert graph.membership is not None
        numbers, place = torch.unique(graph.membership, return_inverse=True)
        first = torch.full((len(numbers),), graph.num_nodes)
        first = first.scatter_reduce(0, place, torch.arange(graph.num_nodes), "amin")
        found = {name: getattr(graph, name) for name in ("labels", *MASKS)}
        whole = PartyGraph(
            graph.party,
            torch.zeros(len(numbers), 1),
            torch.empty(2, 0, dtype=torch.int64),
            num_classes=graph.num_classes,
            **{name: None if value is None else value[first] for name, value in found.items()},  # type: ignore[arg-type]
        )
        ready = Own.of(graph, dtype)
        return cls(graph, ready.features, ready.adjacency, place, numbers, whole)


class GraphNetwork(Averaged):
    """Embeddings of nodes, one of each graph made of them, logits.

    Args:
        body: makes embeddings, Tensor[N, d].
        head: Tensor[G, d] → Tensor[G, C].
        activation: of the embeddings.
        readout: mean, sum or max.
    """

    def __init__(self, body: AveragedNetwork, head: nn.Module, activation: str, readout: str) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._activation, self._reduction = ACTIVATIONS[activation], _REDUCTIONS[readout]  # type: ignore[index]

    def forward(self, own: GraphsOwn, generator: torch.Generator | None) -> Tensor:
        """Logits of graphs, Tensor[G, C]; ``generator`` None means evaluation."""
        h = self._activation(self.body(own.features, own.adjacency, generator))
        place = own.place[:, None].expand_as(h)
        read = h.new_zeros(len(own.numbers), h.shape[1]).scatter_reduce(
            0, place, h, self._reduction, include_self=False
        )
        logits: Tensor = self.head(read)
        return logits


class Graphs(ClassTask[GraphsSettings, GraphsOwn]):
    """Cross-entropy of a graph's logits; counts are of graphs."""

    settings: ClassVar[type[TaskSettings]] = GraphsSettings
    measures: ClassVar[Measures] = Measures(
        "cross-entropy",
        (Figure("accuracy", "accuracy", "share of the graphs whose class is right", is_share=True), AUC, AP, F1),
        of="graphs",
    )
    words: ClassVar[str] = "the class of a graph"
    examples_are: ClassVar[str] = "training graphs"

    @classmethod
    @override
    def describe(cls, given: GraphsSettings) -> list[str]:
        return [
            f"Each has many graphs, and they learn to predict a graph's class from the {given.readout} of its nodes."
        ]

    @classmethod
    @override
    def check_graph(cls, given: GraphsSettings, graph: PartyGraph) -> None:
        if graph.membership is None:
            raise DataError(
                f"party {graph.party!r}: membership: there is none, and averaging.task.name=graphs needs to know which "
                "graph a node is of; give nodes.graph in the party file, or Data.batch from Python",
                key="membership",
            )

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> GraphsOwn:
        return GraphsOwn.of(graph, self.public.dtype)

    @override
    def network(self, streams: LearningStreams) -> GraphNetwork:
        model = self.public.model
        with streams.global_generator("head"):
            head = linear(model.dim, self.public.stated, bias=True)
        network = GraphNetwork(self.graph_network(model.dim, streams), head, model.activation, self.given.readout)
        return network.to(self.public.dtype)

    @override
    def join(self, owns: Sequence[GraphsOwn]) -> GraphsOwn:
        return GraphsOwn.of(side_by_side([own.graph for own in owns]), self.public.dtype)

    @override
    def judged(self, own: GraphsOwn) -> PartyGraph:
        return own.whole

    @override
    def logits(self, network: Averaged, own: GraphsOwn, generator: torch.Generator | None) -> Tensor:
        found: Tensor = network(own, generator)
        return found

    @override
    def predictions(self, network: Averaged, own: GraphsOwn, output: Tensor) -> Predicted:
        names = tuple(str(number) for number in own.numbers.tolist())
        return Predicted(functional.softmax(output, dim=1), names=names, keys=("graph",))
