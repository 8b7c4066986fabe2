"""A mean in which a holder counts as much as it has edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.nn.combine.parts import Scale
from veilgraph.nn.combine.strategy import Combine, CombineSettings
from veilgraph.nn.propagate import Adjacency


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
