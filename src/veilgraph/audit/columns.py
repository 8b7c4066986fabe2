"""What an adversary has of every node, as few columns beside each other."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from torch import Tensor

from veilgraph.audit.roc import Floats
from veilgraph.graph.features import to_scipy

Parts: TypeAlias = tuple[Floats, ...]
"""Of several kinds, [N, d] each."""
_WIDTH: Final = 128


def narrowed(features: object, seed: int) -> Floats:
    """A feature matrix [N, F] as at most ``_WIDTH`` dense columns that keep most of it (truncated SVD)."""
    matrix = features
    if isinstance(matrix, Tensor):
        matrix = to_scipy(matrix) if matrix.layout == torch.sparse_csr else matrix.double().numpy()
    if matrix.shape[1] > _WIDTH:  # type: ignore[attr-defined]
        return np.asarray(TruncatedSVD(_WIDTH, n_iter=3, random_state=seed).fit_transform(matrix))
    dense = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    return np.asarray(dense, dtype=np.float64)


def side_by_side(parts: Parts) -> Floats:
    """Rows of several kinds, which count alike: each is centred, and of length 1 on average; one alone as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(list(map(_of_one_length, parts)), axis=1)


def _of_one_length(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=1).mean())
    return np.asarray(centred / (length or 1.0))
