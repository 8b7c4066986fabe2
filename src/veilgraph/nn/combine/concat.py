"""The holders' embeddings side by side (VFGNN eq. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.combine.parts import Unchanged
from veilgraph.nn.combine.strategy import Combine, CombineSettings
from veilgraph.nn.propagate import Adjacency


class Concat(Combine[CombineSettings]):
    """(t_1, …, t_P)."""

    words: ClassVar[str] = "puts what the holders publish side by side"
    linear: ClassVar[bool] = False

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Unchanged()

    @override
    def divisor(self, holders: int) -> int:
        return 1

    @override
    def output_dim(self, dim: int, holders: int) -> int:
        return dim * holders

    @override
    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None = None) -> Tensor:
        return torch.cat(list(pieces), dim=1)
