"""Pairs of rows that belong together: of one group, or near each other in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.signedinteger[Any]]


def pairs_in(groups: Whole) -> Whole:
    """All ordered pairs of different rows of one group.

    Args:
        groups: int64 [R], ascending: which group a row is of.

    Returns:
        int64 [2, Q], rows, by the second one.
    """
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    begin, size = np.repeat(first, sizes), np.repeat(sizes, sizes)
    target = np.repeat(np.arange(len(groups)), size)
    source = np.arange(len(target)) - np.repeat(np.cumsum(size) - size, size) + np.repeat(begin, size)
    return np.stack([source, target])[:, source != target]
