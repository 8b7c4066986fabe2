"""A network's input that stays the same in every pass."""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.graph.features import compact, is_sparse, to_scipy
from veilgraph.nn.propagate import SparseMatrix


class FixedInput:
    """A matrix that is only ever multiplied by weights: a sparse matrix is transposed once for the way back.

    Args:
        matrix: Tensor[N, F], strided or ``torch.sparse_csr``.
        dtype: of every product.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self._matrix = matrix.to(dtype)
        self._sparse = SparseMatrix(to_scipy(self._matrix)) if is_sparse(matrix) else None

    @classmethod
    def compacted(cls, matrix: Tensor, dtype: torch.dtype) -> FixedInput:
        """Of a strided matrix that may have few non-zeros; gradients of it are not wanted."""
        return cls(compact(matrix.detach()), dtype)

    def times(self, weight: Tensor) -> Tensor:
        """x·weight: Tensor[F, d] to Tensor[N, d]."""
        return self._matrix @ weight if self._sparse is None else self._sparse.times(weight)

    def dense(self) -> Tensor:
        """X itself, Tensor[N, F] strided."""
        return self._matrix.to_dense() if self._sparse is not None else self._matrix
