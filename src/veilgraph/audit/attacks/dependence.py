"""Whether what is told of every node depends on what must not be told: an order of rows, or a split."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kruskal, random_table, spearmanr

from veilgraph.core.errors import DataError

_FEWEST: Final = 50
_DRAWS: Final = 20_000


def order_p_value(degrees: NDArray[Any], labels: NDArray[Any] | None) -> tuple[float, float]:
    """Whether the places of rows tell of degrees (Spearman) or labels (Kruskal and Wallis), both tests together.

    Args:
        degrees: [N], in the order of the rows.
        labels: [N], −1 where unknown; None where there are none.

    Returns:
        The p-value, and the rank correlation of places with degrees or, if that is more, the share η of places that
        classes explain: 0 where the order says nothing.

    Raises:
        DataError: there are too few rows.
    """
    if len(degrees) < _FEWEST:
        raise DataError(f"degrees: {len(degrees)} rows are too few to tell whether their order says something")
    places = np.arange(len(degrees))
    p_values, figures = [1.0], [0.0]
    if len(np.unique(degrees)) > 1:
        found = spearmanr(places, degrees)
        p_values.append(float(found.pvalue))
        figures.append(abs(float(found.statistic)))
    groups = [] if labels is None else [places[labels == each] for each in np.unique(labels[labels >= 0])]
    groups = [each for each in groups if len(each) >= _FEWEST // 10]
    if len(groups) > 1:
        p_values.append(float(kruskal(*groups).pvalue))
        everything = np.concatenate(groups)
        between = sum(len(each) * (each.mean() - everything.mean()) ** 2 for each in groups)
        figures.append(float(np.sqrt(between / ((everything - everything.mean()) ** 2).sum())))
    return min(1.0, len(p_values[1:]) * min(p_values)), max(figures)


def split_p_value(split: NDArray[Any], labels: NDArray[Any], *, seed: int) -> tuple[float, float]:
    """Whether a split is more, or less, alike over the classes than one that was drawn without the labels.

    A split by classes is too even, and so many nodes of each class are too uneven where classes are not alike. Tables
    with the same margins are drawn at random, which makes the test exact.

    Args:
        split: [N], which part each labelled node is in.
        labels: [N].
        seed: of the draws.

    Returns:
        The p-value of both directions together, and the share of random splits that are at least as even.
    """
    parts, classes = np.unique(split, return_inverse=True)[1], np.unique(labels, return_inverse=True)[1]
    table = np.zeros((parts.max() + 1, classes.max() + 1))
    np.add.at(table, (parts, classes), 1)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if min(table.shape) < 2:
        raise DataError("classes: there is one class, or one part of the split, alone")
    expected = np.outer(rows, columns) / table.sum()
    drawn = random_table(rows.astype(int), columns.astype(int)).rvs(size=_DRAWS, random_state=seed)
    distances = ((drawn - expected) ** 2 / expected).sum(axis=(1, 2))
    found = ((table - expected) ** 2 / expected).sum()
    even, uneven = ((1 + (side <= 1e-9).sum()) / (1 + _DRAWS) for side in (distances - found, found - distances))
    return float(min(1.0, 2 * min(even, uneven))), float(even)
