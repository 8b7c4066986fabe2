"""Combine strategies: how the holders' local embeddings become one (VFGNN 3.4, eqs. 5-7).

A strategy has a holder's part and a server's part. Where it is linear the server needs nothing but the sum of the
contributions, so it works as well when every single one is masked. A package adds its own, a subclass of ``Combine``,
by an entry point of the group ``veilgraph.combines``; ``veilgraph_testing.combine`` has the tests that it must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Registry, Settings, named_in, read_by, settings_in
from veilgraph.nn.propagate import Adjacency

COMBINES: Final[Registry[type[Combine[Any]]]] = Registry(
    "veilgraph.combines",
    {
        "mean": "veilgraph.nn.combine:Mean",
        "concat": "veilgraph.nn.combine:Concat",
        "regression": "veilgraph.nn.combine:Regression",
        "degree-weighted": "veilgraph.nn.combine:DegreeWeighted",
    },
    "veilgraph.nn.combine:Combine",
)


class CombineSettings(Settings):
    """How the server combines the local embeddings. A strategy with settings of its own has a subclass."""

    strategy: Annotated[str, named_in(COMBINES)] = "mean"
    """how holders' embeddings become one"""
    masked: bool | None = None
    """hide single embeddings from the server; null: if the strategy is linear"""
    bits: int = Field(32, ge=8, le=44)
    """fractional bits of masked embeddings"""

    @model_validator(mode="after")
    def _check_masked(self) -> Self:
        """Refuse ``masked`` for a strategy that is not linear."""
        if self.masked and not self.linear:
            raise ValueError(
                f"strategy {self.strategy!r} cannot be masked: the server needs each embedding by itself; "
                "set masked to false, or choose mean, regression or degree-weighted"
            )
        return self

    @property
    def kind(self) -> type[Combine[Any]]:
        """The class of ``strategy``."""
        return COMBINES[self.strategy]

    @property
    def linear(self) -> bool:
        """Whether the server needs no more than the sum of what the holders prepare."""
        return self.kind.linear

    @property
    def is_masked(self) -> bool:
        """``masked`` with its default filled in."""
        return self.linear if self.masked is None else self.masked


S = TypeVar("S", bound=CombineSettings)


class Combine(ABC, Generic[S]):
    """One strategy, by which the server combines the holders' embeddings t_i [N, d].

    Attributes:
        settings: of its jobs: the keys of ``model.combine``.
        words: what the server does with what the holders publish, as in "the server takes the mean of …".
        needs_weight: whether the server needs, once, the sum over holders of ``holder_weight``.
        linear: whether the server needs no more than the sum of the contributions.
    """

    settings: ClassVar[type[CombineSettings]] = CombineSettings
    words: ClassVar[str]
    needs_weight: ClassVar[bool] = False
    linear: ClassVar[bool] = True

    def __init__(self, given: S) -> None:
        self.given = given

    @abstractmethod
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        """Make one of P holders' module from t [N, d] to its contribution, row by row, in the adjacency's dtype."""

    def holder_weight(self, holders: int, adjacency: Adjacency) -> Tensor | None:
        """Return each node's weight, Tensor[N, 1] float64, of degrees alone; None unless ``needs_weight``."""
        return None

    def output_dim(self, dim: int, holders: int) -> int:
        """Width of the combined embedding."""
        return dim

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        """Combine the holders' contributions, in their order, or their sum alone, into Tensor[N, output_dim].

        ``weight_total`` is the sum of the holders' weights, Tensor[N, 1], where ``needs_weight``.
        """
        return sum(pieces[1:], start=pieces[0])


combine_settings: Final = settings_in(COMBINES, CombineSettings, "strategy")
"""Reads what a job says under ``model.combine`` as the settings of its strategy."""
AnyCombineSettings = Annotated[SerializeAsAny[CombineSettings], read_by(combine_settings)]
"""A field of settings that is of whichever strategy it names."""


def build_combine(settings: CombineSettings) -> Combine[Any]:
    """The strategy that the settings name."""
    return settings.kind(settings)


class Scale(nn.Module):
    """Multiplies by something fixed: a number, or one weight per node, Tensor[N, 1]."""

    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Multiply t [N, d]; with ``rows``, int64 [B], t is [B, d], the embeddings of these nodes alone."""
        return t * (self.factor if rows is None or self.factor.ndim == 0 else self.factor[rows])


class Unchanged(nn.Module):
    """The identity: a contribution is the embedding itself."""

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return t; arguments as ``Scale.forward``."""
        return t


class Mean(Combine[CombineSettings]):
    """The mean of the holders' embeddings, Σ t_i / P."""

    words: ClassVar[str] = "takes the mean of what the holders publish"

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Scale(torch.tensor(1 / holders, dtype=adjacency.dtype))


class Concat(Combine[CombineSettings]):
    """The holders' embeddings side by side, (t_1, …, t_P)."""

    words: ClassVar[str] = "puts what the holders publish side by side"
    linear: ClassVar[bool] = False

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Unchanged()

    @override
    def output_dim(self, dim: int, holders: int) -> int:
        return dim * holders

    @override
    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        return torch.cat(list(pieces), dim=1)


class Weight(nn.Module):
    """ω_i ⊙ t with trainable ω_i, Tensor[d], starting at 1/P (eq. 7)."""

    def __init__(self, dim: int, holders: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.full((dim,), 1 / holders, dtype=dtype))

    def forward(self, t: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return ω ⊙ t; arguments as ``Scale.forward``."""
        return self.omega * t


class Regression(Combine[CombineSettings]):
    """A trained weighted sum, Σ ω_i ⊙ t_i; each holder keeps its own ω_i."""

    words: ClassVar[str] = "takes a weighted sum of what the holders publish"

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Weight(dim, holders, adjacency.dtype)


class DegreeWeighted(Combine[CombineSettings]):
    """Σ w_i·t_i / Σ w_i with w_i = degree_i + 1/P per node."""

    words: ClassVar[str] = "takes the mean of what the holders publish, weighted by a node's number of edges"
    needs_weight: ClassVar[bool] = True

    @override
    def holder_weight(self, holders: int, adjacency: Adjacency) -> Tensor:
        return (adjacency.exact_degrees + 1 / holders).unsqueeze(1)

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Scale(self.holder_weight(holders, adjacency).to(adjacency.dtype))

    @override
    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        if weight_total is None:
            raise ConfigError(
                "combine.strategy='degree-weighted': weight_total is missing, and the sum is divided by it; pass the "
                "sum of the holders' weights"
            )
        return super().merge(pieces) / weight_total
