"""Personalised propagation without weights (after Gasteiger et al. 2019)."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.local.model import HopModel, LocalSettings
from veilgraph.nn.propagate import Adjacency, first_rows


class AppnpSettings(LocalSettings):
    """How much of h^0 stays."""

    teleport: float = Field(0.1, ge=0, le=1, description="appnp's α")


class AppnpHop(nn.Module):
    """z ← (1 − α)·(A·z + z/P)/(degree + 1/P) + α·h^0, without weights (after Gasteiger et al. 2019).

    P is the number of holders, so that the holders' self-loops add up to one.
    """

    def __init__(self, teleport: float, holders: int) -> None:
        super().__init__()
        self._teleport = teleport
        self._self_weight = 1 / holders

    def forward(self, h: Tensor, initial: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """One step of personalised propagation."""
        neighbours = adjacency.self_loop_mean(h, self._self_weight)
        return (1 - self._teleport) * neighbours + self._teleport * first_rows(initial, adjacency.num_targets)


class Appnp(HopModel[AppnpSettings]):
    """K hops of it."""

    settings = AppnpSettings
    words: ClassVar[str] = "its neighbours by personalised propagation (APPNP)"
    draws: ClassVar[bool] = False
    is_partitioned: ClassVar[bool] = True
    uses_initial: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True
    activates: ClassVar[bool] = False

    @override
    @staticmethod
    def hop(settings: AppnpSettings, dim: int, holders: int) -> nn.Module:
        return AppnpHop(settings.teleport, holders)
