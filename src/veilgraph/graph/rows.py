"""Rows of a feature matrix, dense or sparse."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rows_between(features: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` − 1 in the same layout; the matrix itself where that is all of it.

    Args:
        features: Tensor[N, F], strided or ``torch.sparse_csr``.
        start: from 0.
        stop: at most N.

    Returns:
        Tensor[stop − start, F]; shares memory with ``features``.
    """
    if (start, stop) == (0, features.shape[0]):
        return features
    if features.layout != torch.sparse_csr:
        return features[start:stop]
    pointers = features.crow_indices()[start : stop + 1]
    first, last = int(pointers[0]), int(pointers[-1])
    return torch.sparse_csr_tensor(
        pointers - first,
        features.col_indices()[first:last],
        features.values()[first:last],
        (stop - start, features.shape[1]),
        check_invariants=False,  # holds for a part of a matrix that was checked
    )


def sparse_rows(parts: Sequence[Tensor], num_features: int) -> Tensor:
    """The ``torch.sparse_csr`` matrix of row pointers, columns and values, checked.

    Raises:
        RuntimeError: the parts do not fit together.
    """
    pointers, columns, values = parts
    return torch.sparse_csr_tensor(pointers, columns, values, (len(pointers) - 1, num_features), check_invariants=True)
