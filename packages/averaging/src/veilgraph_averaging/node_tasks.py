"""Tasks about nodes, or whole graphs, whose answer is known: their classes, or numbers.

Loss and scores are those of ``horizontal.tally``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, Self, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.layers import ACTIVATIONS, linear
from veilgraph.paradigms.horizontal.tally import (
    VALUE_MEASURES,
    VALUE_WORDS,
    Classification,
    Regression,
    TallyTask,
    TargetBounds,
)
from veilgraph.protocol.agreement import same_count
from veilgraph.protocol.figures import AP, AUC, CLASS_MEASURES, F1, Figure, Measures, Scores
from veilgraph.protocol.judge import Objective, Predicted, calibration_at
from veilgraph_averaging.network import Averaged, AveragedNetwork, LinearNetwork, Own
from veilgraph_averaging.tasks import (
    InitialSums,
    Judging,
    Public,
    Subject,
    Task,
    TaskSettings,
    graph_network,
    side_by_side,
)

S = TypeVar("S", bound=TaskSettings)
O = TypeVar("O", bound=Own)  # noqa: E741 - of a holder's own
_REDUCTIONS: Final = {"mean": "mean", "sum": "sum", "max": "amax"}
_HAS: Final = 1


class AnswerTask(Task[S, O], Judging[O], ABC):
    """A task of which all but the network follows from what is learnt of labels or targets, and how it is judged."""

    def __init__(self, public: Public) -> None:
        super().__init__(public)
        self.tally_bits = self.answers().tally_bits

    @abstractmethod
    def answers(self, network: Averaged | None = None) -> TallyTask:
        """Return the loss, tally and scores of this task's answers; ``network`` None: without its facts."""

    @abstractmethod
    def judged(self, own: O) -> PartyGraph:
        """Return the graph whose labels or targets, and masks, are trained on and judged."""

    @abstractmethod
    def logits(self, network: Averaged, own: O, generator: torch.Generator | None) -> Tensor:
        """Logits, Tensor[n, C], or standardised values, Tensor[n, 1]; ``generator`` None means evaluation."""

    @property
    @override
    def judging(self) -> Judging[O]:
        return self

    @property
    @override
    def sums_before(self) -> InitialSums[O]:
        return InitialSums(self.given.sums_before, lambda own, known: self.answers().gathered(self.judged(own), known))

    @override
    def examples(self, own: O) -> int:
        return self.answers().examples(self.judged(own))

    @override
    def loss(self, network: Averaged, own: O, generator: torch.Generator) -> Tensor:
        output = self.logits(network, own, generator)
        return self.answers(network).loss(self.judged(own), output) / self.examples(own)

    @override
    def output(self, network: Averaged, own: O) -> Tensor:
        return self.logits(network, own, None)

    @property
    @override
    def tally_size(self) -> int:
        return self.answers().tally_size

    @override
    def tally(self, network: Averaged, own: O, output: Tensor) -> Tensor:
        return self.answers(network).tally(self.judged(own), output)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        return self.answers(network).scores(total)

    @override
    def predictions(self, network: Averaged, own: O, output: Tensor) -> Predicted:
        return self.answers(network).predictions(output)


class ClassSubject(Subject):
    """Classes, whose number holders with labels state."""

    has_classes: ClassVar[bool] = True

    @override
    def stated(self, graph: PartyGraph) -> int:
        return (graph.num_classes or 0) if graph.labels is not None else 0

    @override
    def agreed(self, stated: Mapping[PartyId, int]) -> int:
        having = {holder: count for holder, count in stated.items() if count}
        if not having:
            raise DataError("labels: no holder has any; give labels and masks to one")
        return same_count("classes", having)

    @override
    def trains_on(self, graph: PartyGraph) -> bool:
        return graph.labels is not None


class ClassTask(AnswerTask[S, O], ABC):
    """Cross-entropy of logits; figures of summed class counts and score histograms: see ``Classification``."""

    @property
    @override
    def sums_before(self) -> InitialSums[O]:
        """One sum, of the training examples of each class, where classes are balanced; else none."""
        return replace(super().sums_before, sizes=(self.public.stated,) if self._balances else ())

    @property
    def _balances(self) -> bool:
        return self.public.train.class_weights == "balanced"

    @override
    def answers(self, network: Averaged | None = None) -> TallyTask:
        return Classification(self.public.stated, self.public.transition, network if self._balances else None)

    @override
    def scores_here(self, network: Averaged, own: O, output: Tensor, *, everything: bool) -> Scores:
        """Return the scores from all logits in one place, exact AUC included."""
        public = self.public
        objective = Objective(self.judged(own), public.train, public.dtype, public.transition)
        return objective.score(output, everything=everything)

    @override
    def calibration(self, network: Averaged, own: O, probabilities: Tensor) -> Calibration | None:
        weights = self.answers(network).weights()
        return calibration_at(self.judged(own), probabilities, self.public.transition, weights)


class _NodeTask(AnswerTask[S, Own], ABC):
    """A task in which every node has a class or value of its own."""

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> Own:
        return Own.of(graph, self.public.dtype)

    @override
    def join(self, owns: Sequence[Own]) -> Own:
        return Own.of(side_by_side([own.graph for own in owns]), self.public.dtype)

    @override
    def judged(self, own: Own) -> PartyGraph:
        return own.graph

    @override
    def logits(self, network: Averaged, own: Own, generator: torch.Generator | None) -> Tensor:
        found: Tensor = network(own.features, own.adjacency, generator)
        return found


class Classes(_NodeTask[TaskSettings], ClassTask[TaskSettings, Own]):
    """Node classification: cross-entropy of a node's logits."""

    measures: ClassVar[Measures] = CLASS_MEASURES
    subject: ClassVar[Subject] = ClassSubject("the class of a node")

    @override
    def network(self, streams: LearningStreams) -> Averaged:
        public = self.public
        if not public.model.dim:
            return LinearNetwork(public.features, public.stated, public.dtype)
        return graph_network(public, public.stated, streams)


class ValuesSettings(TargetBounds, TaskSettings):
    """Node regression."""

    @override
    def check_graph(self, graph: PartyGraph) -> None:
        self.check_targets(graph)


class TargetSubject(Subject):
    """Numbers, of which holders state that they have some."""

    @override
    def stated(self, graph: PartyGraph) -> int:
        return _HAS if self.trains_on(graph) else 0

    @override
    def agreed(self, stated: Mapping[PartyId, int]) -> int:
        if not any(stated.values()):
            raise DataError("targets: no holder has any; give numbers to predict and masks to one")
        return _HAS

    @override
    def trains_on(self, graph: PartyGraph) -> bool:
        return graph.targets is not None


class Values(_NodeTask[ValuesSettings]):
    """Mean squared error of standardised targets; MAE, RMSE and R² of sums over the holders: see ``Regression``."""

    settings: ClassVar[type[TaskSettings]] = ValuesSettings
    measures: ClassVar[Measures] = VALUE_MEASURES
    subject: ClassVar[Subject] = TargetSubject(VALUE_WORDS)

    @override
    def network(self, streams: LearningStreams) -> Averaged:
        return graph_network(self.public, 1, streams)

    @override
    def answers(self, network: Averaged | None = None) -> TallyTask:
        return Regression(self.given, network)


class GraphsSettings(TaskSettings):
    """Graph classification."""

    readout: Literal["mean", "sum", "max"] = "mean"
    """pools a graph's node embeddings, per column"""

    @override
    def describe(self) -> list[str]:
        return [
            f"Each has many graphs, and they learn to predict a graph's class from the {self.readout} of its nodes."
        ]

    @override
    def check_graph(self, graph: PartyGraph) -> None:
        if graph.membership is None:
            raise DataError(
                f"party {graph.party!r}: membership: there is none, and averaging.task.name=graphs needs to know which "
                "graph a node is of; give nodes.graph in the party file, or Data.batch from Python",
                key="membership",
            )


@dataclass(frozen=True, eq=False)
class GraphsOwn(Own):
    """A holder's data for graph classification."""

    place: Tensor  # Tensor[N] int64, of which of them a node is, 0..G−1
    numbers: Tensor  # Tensor[G] int64, as ``membership`` has them
    whole: PartyGraph  # labels and masks of the graphs, as those of a graph's nodes

    @classmethod
    def of(cls, graph: PartyGraph, dtype: torch.dtype) -> Self:
        """Prepare a graph, which has ``membership``, for networks of ``dtype``."""
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


class _GraphNetwork(Averaged):
    """Embeddings of nodes, Tensor[N, d], one of each graph made of them, and logits of these, Tensor[G, C]."""

    def __init__(self, body: AveragedNetwork, head: nn.Module, activation: str, readout: str) -> None:
        super().__init__()
        self.body, self.head = body, head
        self._activation, self._reduction = ACTIVATIONS[activation], _REDUCTIONS[readout]  # type: ignore[index]

    def forward(self, own: GraphsOwn, generator: torch.Generator | None) -> Tensor:
        """Logits of graphs, Tensor[G, C]; ``generator`` None means evaluation."""
        h = self._activation(self.body(own.features, own.adjacency, generator))
        place, none = own.place[:, None].expand_as(h), h.new_zeros(len(own.numbers), h.shape[1])
        logits: Tensor = self.head(none.scatter_reduce(0, place, h, self._reduction, include_self=False))
        return logits


class Graphs(ClassTask[GraphsSettings, GraphsOwn]):
    """Cross-entropy of a graph's logits; counts are of graphs."""

    settings: ClassVar[type[TaskSettings]] = GraphsSettings
    measures: ClassVar[Measures] = Measures(
        "cross-entropy",
        (Figure("accuracy", "accuracy", "share of the graphs whose class is right", is_share=True), AUC, AP, F1),
        of="graphs",
    )
    subject: ClassVar[Subject] = ClassSubject("the class of a graph", "training graphs")

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> GraphsOwn:
        return GraphsOwn.of(graph, self.public.dtype)

    @override
    def network(self, streams: LearningStreams) -> _GraphNetwork:
        model = self.public.model
        with streams.global_generator("head"):
            head = linear(model.dim, self.public.stated, bias=True)
        network = _GraphNetwork(
            graph_network(self.public, model.dim, streams), head, model.activation, self.given.readout
        )
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
        """Return class probabilities of graphs, named by their numbers in ``membership``."""
        names = tuple(str(number) for number in own.numbers.tolist())
        return Predicted(output.softmax(dim=1), names=names, keys=("graph",))
