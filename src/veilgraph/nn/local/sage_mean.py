"""GraphSAGE with the mean of the neighbours (Hamilton et al. 2017)."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.local.sage import SageHop
from veilgraph.nn.propagate import Adjacency


class SageMeanSettings(LocalSettings):
    """How its weights start."""

    start: Literal["glorot", "average"] = Field(
        "glorot",
        description="first weights: random, or [I/2, I/2], the mean of a node and its neighbours (sage-mean; "
        "relational likewise)",
    )

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.start == "average" and self.model != "sage-mean":
            raise ValueError(
                f"start='average' is for model='sage-mean', not {self.model!r}: only there it is the mean of a node "
                "and its neighbours; leave start out or choose sage-mean"
            )
        return self


class SageMeanHop(SageHop):
    """AGG is the mean, weighted where edges have weights; zero for a node without neighbours.

    Args:
        dim: d.
        averages: start from W = [I/2, I/2], the mean of a node and its neighbours, in place of random weights. With
            few labels that is worth more than ten points of accuracy on the citation graphs.
    """

    def __init__(self, dim: int, *, averages: bool = False) -> None:
        super().__init__(dim)
        if averages:
            with torch.no_grad():
                self.update.weight.copy_(torch.eye(dim).repeat(1, 2) / 2)

    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/degree."""
        return adjacency.mean(h)


class SageMean(HopModel[SageMeanSettings]):
    """K hops of it."""

    settings = SageMeanSettings
    words: ClassVar[str] = "the mean of its neighbours (GraphSAGE)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: SageMeanSettings, dim: int, holders: int) -> nn.Module:
        return SageMeanHop(dim, averages=settings.start == "average")
