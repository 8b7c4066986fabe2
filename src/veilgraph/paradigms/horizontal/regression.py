"""Regression over several holders: numbers to predict on one scale, and scores that follow from sums."""

from __future__ import annotations

import math
from typing import ClassVar, Final, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from veilgraph.core.errors import DataError
from veilgraph.core.settings import Settings
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.facts import FactNetwork
from veilgraph.protocol.figures import Figure, Found, Measures
from veilgraph.protocol.judge import Predicted

VALUE_MEASURES: Final = Measures(
    "mean squared error of standardised values",
    (
        Figure("rmse", "RMSE", "root of the mean squared error, in the target's unit", rises=False),
        Figure("mae", "MAE", "mean absolute error, in the target's unit", rises=False),
        Figure("r2", "R²", "share of the variance that is explained; 0 is answering with the mean"),
    ),
)
VALUE_WORDS: Final = "a number of each node"
_PER_SPLIT: Final = 5
"""Numbers that are added up of a split: how many, Σz, Σz², Σ|e|, Σe², of standardised targets z and errors e."""
_LEAST: Final = 1e-3
"""Mean of |y| below which sums with 20 fractional bits are too coarse to standardise by."""


class TargetBounds(Settings):
    """What is known of numbers to predict before anything is sent."""

    low: float | None = Field(None, allow_inf_nan=False, description="the least that a target can be, public")
    high: float | None = Field(
        None,
        allow_inf_nan=False,
        description="the most that a target can be, public; without low and high targets are standardised by "
        "mean and deviation over all holders' training nodes, of which all learn the sums",
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"low={self.low} and high={self.high} are the bounds together; give both or none")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be less than high={self.high}; raise high")
        return self

    @property
    def sums_before(self) -> tuple[int, ...]:
        """Sizes of the sums that the scale follows from, before the first round."""
        return () if self.low is not None else (3, 1)

    def check_targets(self, graph: PartyGraph) -> None:
        """Refuses targets outside the bounds.

        Raises:
            DataError: names the first node.
        """
        targets = graph.targets
        if targets is None or self.low is None or self.high is None:
            return
        outside = (targets < self.low) | (targets > self.high)
        if bool(outside.any()):
            node = int(outside.nonzero()[0])
            raise DataError(
                f"party {graph.party!r}: targets: {float(targets[node]):g} of node {node} lies outside the task's "
                f"low={self.low:g} to high={self.high:g}; mend it or widen the bounds",
                key="targets",
            )

    def describe(self) -> list[str]:
        """What is learnt, in a sentence."""
        if self.low is not None:
            return [f"They learn to predict a number of each node, from {self.low:g} to {self.high:g}."]
        return [
            "They learn to predict a number of each node, standardised by mean and deviation over all training nodes, "
            "whose sums are opened before the first round."
        ]


class Regression:
    """Squared error of standardised targets z = (y − centre)/scale; MAE, RMSE and R² of sums over the holders.

    Centre and scale are (low + high)/2 and (high − low)/2 where the job states bounds. Else they are mean and standard
    deviation of all holders' training targets, of two sums: n, Σy, Σ|y|; then Σ((y − mean)/a)² with a = Σ|y|/n, which
    keeps the second in range whatever y is measured in.

    Args:
        bounds: of the targets.
        network: keeps the sums as its facts, which all methods need that are not static.

    Attributes:
        tally_bits: fractional bits of a tally that is added up.
        tally_size: numbers in a tally.
        sums_before: sizes of the sums before the first round.
    """

    tally_bits: ClassVar[int] = 32
    tally_size: ClassVar[int] = len(MASKS) * _PER_SPLIT

    def __init__(self, bounds: TargetBounds, network: FactNetwork) -> None:
        self._bounds, self._network = bounds, network
        self.sums_before = bounds.sums_before

    @staticmethod
    def gathered(graph: PartyGraph, facts: Tensor) -> Tensor:
        """A holder's part of the next sum before the first round, Tensor[its size] float64.

        Args:
            graph: of the holder.
            facts: Tensor[K] float64, results of the sums before.
        """
        y = _targets(graph, "train_mask")
        if not len(facts):
            return torch.stack([torch.tensor(float(len(y))).double(), y.sum(), y.abs().sum()])
        mean, size = _mean_and_size(facts)
        return ((y - mean) / size).square().sum().reshape(1)

    def _scale(self) -> tuple[float, float]:
        """Centre and scale of the targets."""
        low, high = self._bounds.low, self._bounds.high
        if low is not None and high is not None:
            return (low + high) / 2, (high - low) / 2
        facts = self._network.facts
        mean, size = _mean_and_size(facts)
        deviation = size * math.sqrt(max(float(facts[3]), 0.0) / max(float(facts[0]), 1.0))
        return mean, deviation if deviation > _LEAST * size else size  # all alike: nothing to scale by

    def _standard(self, graph: PartyGraph, mask: str) -> Tensor:
        centre, scale = self._scale()
        return (_targets(graph, mask) - centre) / scale

    @staticmethod
    def examples(graph: PartyGraph) -> int:
        """Number of a holder's training nodes with a target."""
        return len(_targets(graph, "train_mask"))

    def loss(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """Sum of the squared errors of the training nodes, of which there are some (SAPGNN eq. 15): Tensor[].

        Args:
            graph: of a holder.
            output: Tensor[N, 1], standardised values of its nodes.
        """
        z = self._standard(graph, "train_mask")
        return functional.mse_loss(output[graph.train_mask, 0], z.to(output.dtype), reduction="sum")

    def tally(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """A holder's part of what the scores follow from: Tensor[15] float64. Arguments as for ``loss``."""
        rows = []
        for name in MASKS:
            z, mask = self._standard(graph, name), getattr(graph, name)
            error = output[mask, 0].double() - z if len(z) else z
            count = torch.tensor(float(len(z))).double()
            rows.append(torch.stack([count, z.sum(), z.square().sum(), error.abs().sum(), error.square().sum()]))
        return torch.cat(rows)

    def scores(self, total: Tensor) -> Found:
        """Scores of all whose tallies were added up, Tensor[15] float64."""
        scale = self._scale()[1]
        values: dict[str, float | None] = {}
        losses = []
        for mask, (count, z, square, absolute, error) in zip(
            MASKS, total.view(len(MASKS), _PER_SPLIT).tolist(), strict=True
        ):
            n, split = round(count), mask.removesuffix("_mask")
            losses.append(error / n if n else math.nan)
            varies = square - z**2 / n if n else 0.0
            values[f"{split}_rmse"] = scale * math.sqrt(max(error, 0.0) / n) if n else None
            values[f"{split}_mae"] = scale * absolute / n if n else None
            values[f"{split}_r2"] = 1 - error / varies if n and varies > _LEAST else None
        return Found(VALUE_MEASURES, losses[0], losses[1], values)

    def predictions(self, output: Tensor) -> Predicted:
        """Values of Tensor[N, 1] in the targets' unit."""
        centre, scale = self._scale()
        return Predicted(output.new_empty(len(output), 0), {"value": output[:, 0].double() * scale + centre})


def _targets(graph: PartyGraph, mask: str) -> Tensor:
    """Targets of a split, Tensor[n] float64."""
    chosen, targets = getattr(graph, mask), graph.targets
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
            f"targets: their mean size is {size:g}, too small to add up with 20 fractional bits; give the task's low "
            "and high, or another unit",
            key="targets",
        )
    return float(facts[1]) / count, size or 1.0
