"""Node regression: of every node a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.own import Own
from veilgraph.paradigms.averaging.tasks.task import Task, TaskSettings
from veilgraph.protocol.figures import Figure, Found, Measures
from veilgraph.protocol.judge import Predicted

_HAS: Final = 1
_PER_SPLIT: Final = 5
"""Numbers that are added up of a split: how many, Σz, Σz², Σ|e|, Σe², of standardised targets z and errors e."""
_SPLITS: Final = ("train", "val", "test")
_LEAST: Final = 1e-3
"""Mean of |y| below which sums with 20 fractional bits are too coarse to standardise by."""


class ValuesSettings(TaskSettings):
    """Node regression."""

    low: float | None = Field(None, allow_inf_nan=False, description="the least that a target can be, public")
    high: float | None = Field(
        None,
        allow_inf_nan=False,
        description="the most that a target can be, public; without low and high targets are standardised by "
        "mean and deviation over all holders' training nodes, of which all learn the sums",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"low={self.low} and high={self.high} are the bounds together; give both or none")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be less than high={self.high}; raise high")
        return self


class Values(Task[ValuesSettings, Own]):
    """Mean squared error of standardised targets z = (y − centre)/scale; MAE, RMSE and R² of sums over the holders.

    Centre and scale are (low + high)/2 and (high − low)/2 where the job states bounds. Else they are mean and standard
    deviation of all holders' training targets, of two sums: n, Σy, Σ|y|; then Σ((y − mean)/a)² with a = Σ|y|/n, which
    keeps the second in range whatever y is measured in.
    """

    settings: ClassVar[type[TaskSettings]] = ValuesSettings
    measures: ClassVar[Measures] = Measures(
        "mean squared error of standardised values",
        (
            Figure("rmse", "RMSE", "root of the mean squared error, in the target's unit", rises=False),
            Figure("mae", "MAE", "mean absolute error, in the target's unit", rises=False),
            Figure("r2", "R²", "share of the variance that is explained; 0 is answering with the mean"),
        ),
    )
    words: ClassVar[str] = "a number of each node"
    tally_bits: ClassVar[int] = 32

    @classmethod
    @override
    def sums_before(cls, given: ValuesSettings) -> tuple[int, ...]:
        return () if given.low is not None else (3, 1)

    @classmethod
    @override
    def describe(cls, given: ValuesSettings) -> list[str]:
        if given.low is not None:
            return [f"They learn to predict a number of each node, from {given.low:g} to {given.high:g}."]
        return [
            "They learn to predict a number of each node, standardised by mean and deviation over all training nodes, "
            "whose sums everybody learns before the first round."
        ]

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
        targets = graph.targets
        if targets is not None and given.low is not None and given.high is not None:
            outside = (targets < given.low) | (targets > given.high)
            if bool(outside.any()):
                node = int(outside.nonzero()[0])
                raise DataError(
                    f"party {graph.party!r}: targets: {float(targets[node]):g} of node {node} lies outside "
                    f"averaging.task.low={given.low:g} to high={given.high:g}; mend it or widen the bounds",
                    key="targets",
                )

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
        y = _of(own, "train_mask")
        if not len(facts):
            return torch.stack([torch.tensor(float(len(y))).double(), y.sum(), y.abs().sum()])
        mean, size = _mean_and_size(facts)
        return ((y - mean) / size).square().sum().reshape(1)

    def _scale(self, network: Averaged) -> tuple[float, float]:
        """Centre and scale of the targets."""
        low, high = self.given.low, self.given.high
        if low is not None and high is not None:
            return (low + high) / 2, (high - low) / 2
        mean, size = _mean_and_size(network.facts)
        deviation = size * math.sqrt(max(float(network.facts[3]), 0.0) / max(float(network.facts[0]), 1.0))
        return mean, deviation if deviation > _LEAST * size else size  # all alike: nothing to scale by

    def _standard(self, network: Averaged, y: Tensor) -> Tensor:
        centre, scale = self._scale(network)
        return (y - centre) / scale

    @override
    def examples(self, own: Own) -> int:
        return len(_of(own, "train_mask"))

    @override
    def loss(self, network: Averaged, own: Own, generator: torch.Generator) -> Tensor:
        mask, z = own.graph.train_mask, self._standard(network, _of(own, "train_mask"))
        found: Tensor = network(own.features, own.adjacency, generator)
        return functional.mse_loss(found[mask, 0], z.to(found.dtype))

    @override
    def output(self, network: Averaged, own: Own) -> Tensor:
        """Standardised values, Tensor[N, 1]."""
        found: Tensor = network(own.features, own.adjacency, None)
        return found

    @property
    @override
    def tally_size(self) -> int:
        return len(_SPLITS) * _PER_SPLIT

    @override
    def tally(self, network: Averaged, own: Own, output: Tensor) -> Tensor:
        rows = []
        for name in MASKS:
            z, mask = self._standard(network, _of(own, name)), getattr(own.graph, name)
            error = output[mask, 0].double() - z if len(z) else z
            count = torch.tensor(float(len(z))).double()
            rows.append(torch.stack([count, z.sum(), z.square().sum(), error.abs().sum(), error.square().sum()]))
        return torch.cat(rows)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Found:
        scale = self._scale(network)[1]
        values: dict[str, float | None] = {}
        losses = []
        for split, (count, z, square, absolute, error) in zip(
            _SPLITS, total.view(len(_SPLITS), _PER_SPLIT).tolist(), strict=True
        ):
            n = round(count)
            losses.append(error / n if n else math.nan)
            varies = square - z**2 / n if n else 0.0
            values[f"{split}_rmse"] = scale * math.sqrt(max(error, 0.0) / n) if n else None
            values[f"{split}_mae"] = scale * absolute / n if n else None
            values[f"{split}_r2"] = 1 - error / varies if n and varies > _LEAST else None
        return Found(self.measures, losses[0], losses[1], values)

    @override
    def predictions(self, network: Averaged, own: Own, output: Tensor) -> Predicted:
        centre, scale = self._scale(network)
        return Predicted(output.new_empty(len(output), 0), {"value": output[:, 0].double() * scale + centre})


def _of(own: Own, mask: str) -> Tensor:
    """Targets of a split, Tensor[n] float64."""
    chosen, targets = getattr(own.graph, mask), own.graph.targets
    return torch.empty(0).double() if chosen is None or targets is None else targets[chosen].double()


def _mean_and_size(facts: Tensor) -> tuple[float, float]:
    """Mean of the training targets and of their absolute values.

    Raises:
        DataError: there are none, or they are too small to add up.
    """
    count = round(float(facts[0]))
    size = float(facts[2]) / count if count else 0.0
    if not count:
        raise DataError("targets: no holder that was there in time has a training node with one", key="targets")
    if size and size < _LEAST:
        raise DataError(
            f"targets: their mean size is {size:g}, too small to add up with 20 fractional bits; give "
            "averaging.task.low and high, or another unit",
            key="targets",
        )
    return float(facts[1]) / count, size or 1.0
