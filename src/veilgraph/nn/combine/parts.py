"""Holders' parts that strategies share."""

from __future__ import annotations

from torch import Tensor, nn


class Scale(nn.Module):
    """Multiplies by something fixed: a number, or one weight per node, Tensor[N, 1]."""

    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Tensor[N, d] to Tensor[N, d]; or for some ``rows``, Tensor[B] int64, Tensor[B, d] to Tensor[B, d]."""
        return t * (self.factor if rows is None or self.factor.ndim == 0 else self.factor[rows])


class Unchanged(nn.Module):
    """T as it is."""

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """As ``Scale.forward``."""
        return t
