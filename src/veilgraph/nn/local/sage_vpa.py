"""GraphSAGE with the sum of the neighbours, kept at their variance (Schneckenreiter et al. 2024, GNN-VPA)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.local.sage import SageHop
from veilgraph.nn.propagate import Adjacency


class SageVpaSettings(LocalSettings):
    """How alike a node's neighbours are taken to be."""

    correlation: float = Field(
        0.02,
        ge=0,
        le=1,
        description="ρ that neighbours are taken to have; 0: their sum by the root of their number, 1: their mean",
    )


class SageVpaHop(SageHop):
    """AGG is the sum by its standard deviation, were neighbours of variance 1; weighted where edges have weights.

    A mean is the same of two neighbours and of two hundred; here more of them that agree say more, up to 1/√ρ times as
    much. Without that bound, which is not in the paper, a hub would drown the nodes around it.

    Args:
        dim: d.
        correlation: ρ.
    """

    def __init__(self, dim: int, correlation: float) -> None:
        super().__init__(dim)
        self.correlation = correlation

    @override
    def aggregate(self, h: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """(A·h)/√((1 − ρ)·Σ w² + ρ·(Σ w)²)."""
        return adjacency.unit_variance_sum(h, self.correlation)


class SageVpa(HopModel[SageVpaSettings]):
    """K hops of it."""

    settings = SageVpaSettings
    words: ClassVar[str] = "the sum of its neighbours by the root of their number (GraphSAGE, VPA)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True

    @override
    @staticmethod
    def hop(settings: SageVpaSettings, dim: int, holders: int) -> nn.Module:
        return SageVpaHop(dim, settings.correlation)
