"""A sum with trained weights (VFGNN eq. 7)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.combine.strategy import Combine, CombineSettings
from veilgraph.nn.propagate import Adjacency


class Weight(nn.Module):
    """ω_i ⊙ t with trainable ω_i, Tensor[d], starting at 1/P (eq. 7)."""

    def __init__(self, dim: int, holders: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.full((dim,), 1 / holders, dtype=dtype))

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """As ``Scale.forward``."""
        return self.omega * t


class Regression(Combine[CombineSettings]):
    """Σ ω_i ⊙ t_i, each holder keeping its own ω_i."""

    words: ClassVar[str] = "takes a weighted sum of what the holders publish"

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Weight(dim, holders, adjacency.dtype)
