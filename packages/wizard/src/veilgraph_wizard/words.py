"""Whether tables have words: many columns, few of which have a number at a node."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from veilgraph.core.errors import DataError
from veilgraph.graph.features import to_numbers
from veilgraph.protocol.aligning import encoded_tables
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.party_settings import PartySettings

_FEWEST_COLUMNS: Final = 100
_MOST_THERE: Final = 0.15
"""Share of a holder's numbers that are not 0."""
_MOST_APART: Final = 32.0
"""How many times a column's largest number may be the median column's: words are counted in one unit."""


def are_words(job: JobSettings, parties: Collection[PartySettings]) -> bool:
    """Whether the columns of all holders of a job, whose tables are here, are words.

    False where a table breaks a rule, or where so few columns are named that none is read.
    """
    named = [name for each in parties for feature in each.nodes.features for name in feature.columns]
    if len(named) < _FEWEST_COLUMNS and not any(set(name) & set("*?[") for name in named):
        return False
    try:
        tables = encoded_tables(job)
    except DataError:
        return False
    total = sum(each.shape[1] for each in tables.values())
    return total >= _FEWEST_COLUMNS and all(_are_words(to_numbers(each)) for each in tables.values())


def _are_words(numbers: np.ndarray) -> bool:
    rows, columns = numbers.shape
    if not rows * columns or numbers.min() < 0 or not numbers.max():
        return False
    largest = numbers.max(axis=0)
    largest = largest.toarray().ravel() if hasattr(largest, "toarray") else largest
    is_sparse = (numbers != 0).sum() <= _MOST_THERE * rows * columns
    return bool(is_sparse and largest.max() <= _MOST_APART * np.median(largest[largest > 0]))
