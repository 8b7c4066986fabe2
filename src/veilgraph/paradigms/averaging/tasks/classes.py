"""Classification: what is the same of nodes and of graphs; and of every node its class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.correction import corrected_cross_entropy
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.network_settings import NetworkSettings
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Public, Task, TaskSettings
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.agreement import same_count
from veilgraph.protocol.figures import CLASS_MEASURES, Judged, Measures
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.scores import Objective, Scores

S = TypeVar("S", bound=TaskSettings)
O = TypeVar("O", bound=Own)  # noqa: E741 - of a holder's own


class ClassTask(Task[S, O], ABC):
    """Cross-entropy of logits; accuracy and macro F1 of summed class counts."""

    @classmethod
    @override
    def check(cls, given: S, model: NetworkSettings, train: TrainSettings) -> None:
        if train.class_weights != "none" or train.select_by == "auc":
            raise ValueError(
                "train.class_weights=balanced and train.select_by=auc do not follow from sums over the holders, and "
                "these are all that they open; choose none, and accuracy, f1 or loss"
            )

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

    def __init__(self, public: Public) -> None:
        super().__init__(public)
        self._sums = Classification(public.stated, public.transition)

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
        logits = self.logits(network, own, generator)[mask]
        if self.public.transition is not None:
            return corrected_cross_entropy(logits, labels[mask], self.public.transition)
        return functional.cross_entropy(logits, labels[mask])

    @override
    def output(self, network: Averaged, own: O) -> Tensor:
        """Logits, Tensor[n, C]."""
        return self.logits(network, own, None)

    @property
    @override
    def tally_size(self) -> int:
        return self._sums.tally_size

    @override
    def tally(self, network: Averaged, own: O, output: Tensor) -> Tensor:
        return self._sums.tally(self.judged(own), output)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        return self._sums.scores(total)

    @override
    def each_epoch(self, scores: Judged) -> Judged:
        """Without F1, which is recorded where it selects."""
        assert isinstance(scores, Scores)
        return scores if self.public.train.select_by == "f1" else replace(scores, val_f1=None, test_f1=None)

    @override
    def scores_here(self, network: Averaged, own: O, output: Tensor, *, everything: bool) -> Scores:
        """With AUC, for which all logits are needed."""
        objective = Objective(self.judged(own), self.public.train, self.public.dtype, self.public.transition)
        return objective.score(output, everything=everything)


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
