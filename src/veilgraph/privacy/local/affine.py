"""Features as who learns from them has them: what a mechanism released, scaled and shifted, or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.graph.features import from_scipy, is_sparse, to_scipy


@dataclass(frozen=True, eq=False)
class AffineFeatures:
    """Features as a server has them: ``scale·values + offset``.

    Attributes:
        values: Tensor[N, F], strided or ``torch.sparse_csr``; what a mechanism released, or raw features.
        scale: of the mechanism; 1 for raw features.
        offset: of the mechanism; 0 for raw features; or Tensor[F], one for each column.
    """

    values: Tensor
    scale: float = 1.0
    offset: float | Tensor = 0.0

    @classmethod
    def joined(cls, blocks: Sequence[AffineFeatures], dtype: torch.dtype) -> AffineFeatures:
        """Several matrices of the same nodes, side by side; sparse if all are.

        Args:
            blocks: one or more.
            dtype: of the values.
        """
        offsets = [torch.as_tensor(block.offset, dtype=dtype).expand(block.values.shape[1]) for block in blocks]
        scaled = [block.values.to(dtype) * block.scale for block in blocks]
        if all(is_sparse(values) for values in scaled):
            values = from_scipy(sp.hstack([to_scipy(values) for values in scaled], format="csr"))
        else:
            values = torch.cat([values.to_dense() for values in scaled], dim=1)
        return cls(values, 1.0, torch.cat(offsets))
