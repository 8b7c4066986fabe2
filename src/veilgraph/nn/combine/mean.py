"""The mean of the holders' embeddings (VFGNN eq. 6)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from typing_extensions import override

from veilgraph.nn.combine.parts import Scale
from veilgraph.nn.combine.strategy import Combine, CombineSettings
from veilgraph.nn.propagate import Adjacency


class Mean(Combine[CombineSettings]):
    """Σ t_i / P."""

    words: ClassVar[str] = "takes the mean of what the holders publish"

    @override
    def holder_part(self, dim: int, holders: int, adjacency: Adjacency) -> nn.Module:
        return Scale(torch.tensor(1 / holders, dtype=adjacency.dtype))

    @override
    def divisor(self, holders: int) -> int:
        return holders
