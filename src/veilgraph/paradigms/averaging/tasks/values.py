"""Node regression: of every node a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Task, TaskSettings
from veilgraph.paradigms.horizontal.regression import VALUE_MEASURES, VALUE_WORDS, Regression, TargetBounds
from veilgraph.protocol.figures import Found, Measures
from veilgraph.protocol.judge import Predicted

_HAS: Final = 1


class ValuesSettings(TargetBounds, TaskSettings):
    """Node regression."""


class Values(Task[ValuesSettings, Own]):
    """Mean squared error of standardised targets; MAE, RMSE and R² of sums over the holders: see ``Regression``."""

    settings: ClassVar[type[TaskSettings]] = ValuesSettings
    measures: ClassVar[Measures] = VALUE_MEASURES
    words: ClassVar[str] = VALUE_WORDS
    tally_bits: ClassVar[int] = Regression.tally_bits

    @classmethod
    @override
    def sums_before(cls, given: ValuesSettings) -> tuple[int, ...]:
        return given.sums_before

    @classmethod
    @override
    def describe(cls, given: ValuesSettings) -> list[str]:
        return given.describe()

    @classmethod
    @override
    def stated(cls, graph: PartyGraph) -> int:
        return _HAS if cls.trains_on(graph) else 0

    @classmethod
    @override
    def agreed(cls, stated: Mapping[PartyId, int]) -> int:
        if not any(stated.values()):
            raise DataError("targets: no holder has any; give numbers to predict and masks to one")
        return _HAS

    @classmethod
    @override
    def trains_on(cls, graph: PartyGraph) -> bool:
        return graph.targets is not None

    @classmethod
    @override
    def check_graph(cls, given: ValuesSettings, graph: PartyGraph) -> None:
        given.check_targets(graph)

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> Own:
        return Own.of(graph, self.public.dtype)

    @override
    def network(self, streams: LearningStreams) -> Averaged:
        return self.graph_network(1, streams)

    @override
    def join(self, owns: Sequence[Own]) -> Own:
        return Own.of(side_by_side([own.graph for own in owns]), self.public.dtype)

    @override
    def gathered(self, own: Own, facts: Tensor) -> Tensor:
        return Regression.gathered(own.graph, facts)

    @override
    def examples(self, own: Own) -> int:
        return Regression.examples(own.graph)

    @override
    def loss(self, network: Averaged, own: Own, generator: torch.Generator) -> Tensor:
        found: Tensor = network(own.features, own.adjacency, generator)
        return Regression(self.given, network).loss(own.graph, found) / self.examples(own)

    @override
    def output(self, network: Averaged, own: Own) -> Tensor:
        """Standardised values, Tensor[N, 1]."""
        found: Tensor = network(own.features, own.adjacency, None)
        return found

    @property
    @override
    def tally_size(self) -> int:
        return Regression.tally_size

    @override
    def tally(self, network: Averaged, own: Own, output: Tensor) -> Tensor:
        return Regression(self.given, network).tally(own.graph, output)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Found:
        return Regression(self.given, network).scores(total)

    @override
    def predictions(self, network: Averaged, own: Own, output: Tensor) -> Predicted:
        return Regression(self.given, network).predictions(output)
