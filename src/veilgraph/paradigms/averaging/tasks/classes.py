"""Classification: what is the same of nodes and of graphs; and of every node its class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.correction import corrected_cross_entropy
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.network_settings import NetworkSettings
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Task, TaskSettings
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.agreement import same_count
from veilgraph.protocol.figures import CLASS_MEASURES, Judged, Measures
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.scores import Objective, Scores, calibration_at

S = TypeVar("S", bound=TaskSettings)
O = TypeVar("O", bound=Own)  # noqa: E741 - of a holder's own


class ClassTask(Task[S, O], ABC):
    """Cross-entropy of logits; figures of summed class counts and score histograms: see ``Classification``."""

    @classmethod
    @override
    def check(cls, given: S, model: NetworkSettings, train: TrainSettings) -> None:
        """Nothing: classes may weigh alike or be balanced."""

    @classmethod
    @override
    def stated(cls, graph: PartyGraph) -> int:
        return (graph.num_classes or 0) if graph.labels is not None else 0

    @classmethod
    @override
    def agreed(cls, stated: Mapping[PartyId, int]) -> int:
        having = {holder: count for holder, count in stated.items() if count}
        if not having:
            raise DataError("labels: no holder has any; give labels and masks to one")
        return same_count("classes", having)

    @classmethod
    @override
    def trains_on(cls, graph: PartyGraph) -> bool:
        return graph.labels is not None

    def _sums(self, network: Averaged | None = None) -> Classification:
        """Of a network, whose facts weigh the classes where the job balances them; of none, for what needs no loss."""
        public = self.public
        return Classification(public.stated, public.transition, network if self.gathers else None)

    @property
    @override
    def gathers(self) -> tuple[int, ...]:
        return (self.public.stated,) if self.public.train.class_weights == "balanced" else ()

    @override
    def gathered(self, own: O, facts: Tensor) -> Tensor:
        return self._sums().gathered(self.judged(own), facts)

    @abstractmethod
    def judged(self, own: O) -> PartyGraph:
        """What has the labels and masks of what is classified."""

    @abstractmethod
    def logits(self, network: Averaged, own: O, generator: torch.Generator | None) -> Tensor:
        """Logits, Tensor[n, C], of what ``judged`` has labels of; ``generator`` None means evaluation."""

    @override
    def examples(self, own: O) -> int:
        return Classification.examples(self.judged(own))

    @override
    def loss(self, network: Averaged, own: O, generator: torch.Generator) -> Tensor:
        graph = self.judged(own)
        mask, labels = graph.train_mask, graph.labels
        assert mask is not None  # there are training examples
        assert labels is not None
        logits = self.logits(network, own, generator)
        if self.gathers:
            return self._sums(network).loss(graph, logits) / self.examples(own)
        if self.public.transition is not None:
            return corrected_cross_entropy(logits[mask], labels[mask], self.public.transition)
        return functional.cross_entropy(logits[mask], labels[mask])

    @override
    def output(self, network: Averaged, own: O) -> Tensor:
        """Logits, Tensor[n, C]."""
        return self.logits(network, own, None)

    @property
    @override
    def tally_size(self) -> int:
        return self._sums().tally_size

    @override
    def tally(self, network: Averaged, own: O, output: Tensor) -> Tensor:
        return self._sums(network).tally(self.judged(own), output)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        return self._sums(network).scores(total)

    @override
    def each_epoch(self, scores: Judged) -> Judged:
        """Of AUC, average precision and F1 what selects."""
        assert isinstance(scores, Scores)
        return scores.of_epoch(self.public.train.select_by)

    @override
    def scores_here(self, network: Averaged, own: O, output: Tensor, *, everything: bool) -> Scores:
        """With AUC, for which all logits are needed."""
        objective = Objective(self.judged(own), self.public.train, self.public.dtype, self.public.transition)
        return objective.score(output, everything=everything)

    @override
    def calibration(self, network: Averaged, own: O, probabilities: Tensor) -> Calibration | None:
        weights = self._sums(network).weights()
        return calibration_at(self.judged(own), probabilities, self.public.transition, weights)


class Classes(ClassTask[TaskSettings, Own]):
    """Of every node its class."""

    measures: ClassVar[Measures] = CLASS_MEASURES
    words: ClassVar[str] = "the class of a node"

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> Own:
        return Own.of(graph, self.public.dtype)

    @override
    def network(self, streams: LearningStreams) -> Averaged:
        return self.graph_network(self.public.stated, streams)

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

    @override
    def predictions(self, network: Averaged, own: Own, output: Tensor) -> Predicted:
        return Predicted(output.detach().softmax(dim=1))
