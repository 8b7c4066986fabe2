"""How the holders' local embeddings become one global embedding (VFGNN 3.4, eqs. 5-7).

A strategy has a holder's part and a server's part. Where it is linear the server needs nothing but the sum of the
holders' contributions, so it works as well when every single one is masked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError
from veilgraph.nn.propagate import Adjacency
from veilgraph.nn.settings import CombineSettings


class Scale(nn.Module):
    """Multiplies by something fixed: a number, or one weight per node, Tensor[N, 1]."""

    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Tensor[N, d] to Tensor[N, d]; or for some ``rows``, Tensor[B] int64, Tensor[B, d] to Tensor[B, d]."""
        return t * (self.factor if rows is None or self.factor.ndim == 0 else self.factor[rows])


class Weight(nn.Module):
    """ω_i ⊙ t with trainable ω_i, Tensor[d], starting at 1/P (eq. 7)."""

    def __init__(self, dim: int, holders: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.full((dim,), 1 / holders, dtype=dtype))

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """As ``Scale.forward``."""
        return self.omega * t


class Unchanged(nn.Module):
    """T as it is."""

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """As ``Scale.forward``."""
        return t


class Combine(ABC):
    """One strategy.

    Attributes:
        needs_weight: whether the server needs, once, the sum over holders of ``holder_weight``.
        linear: whether the server needs no more than the sum of the contributions.
    """

    needs_weight: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    @abstractmethod
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """The module that turns a holder's t, Tensor[N, d], into its contribution, with the forward of ``Scale``.

        Args:
            dim: d.
            holders: P.
            adjacency: the holder's own; also gives the dtype.
        """

    def holder_weight(self, holders: int, adjacency: Adjacency) -> Tensor | None:
        """The holder's weight of each node, Tensor[N, 1] float64, or None where ``needs_weight`` is false."""
        return None

    def output_dim(self, dim: int, holders: int) -> int:
        """Width of the combined embedding."""
        return dim

    def merge_sum(self, total: Tensor, weight_total: Tensor | None = None) -> Tensor:
        """The combined embedding from the sum of all contributions.

        Args:
            total: Tensor[N, d].
            weight_total: Tensor[N, 1], sum of the holders' weights, where ``needs_weight``.

        Raises:
            ConfigError: the strategy is not linear.
        """
        return total

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        """The combined embedding, Tensor[N, output_dim], from the contributions in the holders' order."""
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return self.merge_sum(total, weight_total)


class Mean(Combine):
    """Σ t_i / P (eq. 6)."""

    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """t/P."""
        return Scale(torch.tensor(1 / holders, dtype=adjacency.dtype))


class Regression(Combine):
    """Σ ω_i ⊙ t_i (eq. 7), each holder keeping its own ω_i."""

    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """ω_i ⊙ t."""
        return Weight(dim, holders, adjacency.dtype)


class DegreeWeighted(Combine):
    """Σ w_i·t_i / Σ w_i with w_i = degree_i + 1/P per node: a holder counts as much as it has edges there."""

    needs_weight: ClassVar[bool] = True

    def holder_weight(self, holders: int, adjacency: Adjacency) -> Tensor:
        """degree_i + 1/P, Tensor[N, 1] float64."""
        return (adjacency.exact_degrees + 1 / holders).unsqueeze(1)

    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """w_i·t."""
        return Scale(self.holder_weight(holders, adjacency).to(adjacency.dtype))

    def merge_sum(self, total: Tensor, weight_total: Tensor | None = None) -> Tensor:
        """Divides the sum by the total weight."""
        if weight_total is None:
            raise ConfigError(
                "combine.strategy='degree-weighted': weight_total is missing, and the sum is divided by it; pass the "
                "sum of the holders' weights"
            )
        return total / weight_total


class Concat(Combine):
    """(t_1, …, t_P) side by side (eq. 5)."""

    linear: ClassVar[bool] = False

    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """T itself."""
        return Unchanged()

    def output_dim(self, dim: int, holders: int) -> int:
        """P·d."""
        return dim * holders

    def merge_sum(self, total: Tensor, weight_total: Tensor | None = None) -> Tensor:
        """Refused: a sum does not tell the embeddings apart."""
        raise ConfigError(
            "combine.strategy='concat' cannot work on a sum: the server needs each embedding by itself; set masked to "
            "false, or choose mean, regression or degree-weighted"
        )

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        """Concatenates the columns."""
        return torch.cat(list(pieces), dim=1)


COMBINES: dict[str, type[Combine]] = {
    "mean": Mean,
    "concat": Concat,
    "regression": Regression,
    "degree-weighted": DegreeWeighted,
}
"""The strategies by the name the settings use."""


def build_combine(settings: CombineSettings) -> Combine:
    """The strategy that the settings name."""
    return COMBINES[settings.strategy]()
