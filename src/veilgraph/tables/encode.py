"""Node tables to feature matrices. What is fitted on one table is recorded, and holds for every later one.

Holders that fit together add up whole numbers: sums of floating-point numbers are exact, so that neither order nor
division among holders matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import CategoricalFeatures, Features, NumericFeatures, ScaleSettings
from veilgraph.tables.nodes import FeatureColumn, NodeTable
from veilgraph.tables.source import MISSING, Floats

with deferred():  # a twentieth of a second to import, and for sparse features alone
    from scipy.sparse.linalg import norm as sparse_norm

FRACTION_BITS: Final = 300
"""A number v is the integer v·2^300, which holds every float32 and every square of one exactly."""

AT_ONCE: Final = 1 << 24
"""Sums of so many pieces of 28 bits are exact in float64."""

_HIGH_BITS, _DIGITS = 27, 53


def exact_sums(places: NDArray[np.int64], values: NDArray[np.floating | np.integer], width: int) -> list[int]:
    """Sum finite values [n] exactly for each of their ``places`` [n] in 0..width−1: integers, times 2^300, floored."""
    sums = [0] * width
    for start in range(0, len(values), AT_ONCE):
        at, piece = places[start : start + AT_ONCE], values[start : start + AT_ONCE].astype(np.float64)
        fractions, exponents = np.frexp(piece)
        lowest = int(exponents.min())
        span = int(exponents.max()) - lowest + 1
        keys = at * span + (exponents - lowest)
        scaled = fractions * 2.0**_HIGH_BITS
        high = np.trunc(scaled)
        low = (scaled - high) * 2.0 ** (_DIGITS - _HIGH_BITS)
        for part, digits in ((high, _HIGH_BITS), (low, _DIGITS)):
            by_exponent = np.bincount(keys, weights=part, minlength=width * span)
            for key in np.flatnonzero(by_exponent).tolist():
                place, exponent = divmod(key, span)
                number, bits = int(by_exponent[key]), exponent + lowest - digits + FRACTION_BITS
                sums[place] += number << bits if bits >= 0 else number >> -bits
    return sums


def exact(value: float) -> int:
    """A finite number times 2^300, rounded down."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << FRACTION_BITS) // denominator


def mean_of(total: int, count: int) -> float:
    """The mean of ``count`` > 0 numbers whose exact sum is ``total``: the nearest float64."""
    return total / (count << FRACTION_BITS)


Scaling = Literal["none", "row", "length", "standard"]
Total = Callable[[Sequence[int]], Sequence[int]]
"""Whole numbers of a table → their sums over all tables that are fitted together, in the same order."""

SPARSE_BELOW = 0.10
"""Share of non-zeros under which features are sparse."""

ROWS_AT_ONCE = 1 << 16
_Entries = tuple[NDArray[np.intp], NDArray[np.int64], Floats]


@dataclass(frozen=True)
class FeatureEncoding:
    """How table columns become F features, fitted once; holders that fit together get the same numbers.

    ``fills``: per table column, what a missing number becomes. ``means`` and ``deviations`` [F]: for ``standard`` only.
    """

    columns: tuple[FeatureColumn, ...]
    fills: tuple[float, ...]
    scaling: Scaling
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """[F] name of each feature: of its column, with its category where there are categories."""
        return tuple(name for column in self.columns for name in _feature_names(column))

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """[F] name of the table column that each feature is of."""
        return tuple(column.title for column in self.columns for _ in _feature_names(column))

    @property
    def num_features(self) -> int:
        """F."""
        return len(self.names)

    @cached_property
    def features(self) -> tuple[NumericFeatures | CategoricalFeatures, ...]:
        """The entries of ``nodes.features`` that it was fitted with."""
        return tuple(dict.fromkeys(column.feature for column in self.columns))

    def to_json(self) -> str:
        """Serialise the encoding; ``from_json`` restores every number exactly."""
        places = {feature: place for place, feature in enumerate(self.features)}
        record = _Record(
            features=self.features,
            columns=tuple(
                (column.name, places[column.feature], *([column.part] if column.part else []))
                for column in self.columns
            ),
            fills=self.fills,
            scaling=self.scaling,
            means=self.means,
            deviations=self.deviations,
        )
        return record.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> FeatureEncoding:
        """Read what ``to_json`` gave; raises ``DataError`` for anything else."""
        try:
            record = _Record.model_validate_json(text)
            columns = tuple(FeatureColumn(name, record.features[place], *part) for name, place, *part in record.columns)
            encoding = cls(columns, record.fills, record.scaling, record.means, record.deviations)
        except (ValidationError, IndexError) as error:
            raise DataError(
                f"the encoding of the features is damaged ({' '.join(str(error).split())}); train anew", code="encoding"
            ) from error
        wanted = encoding.num_features if record.scaling == "standard" else 0
        if len(record.fills) != len(columns) or not len(record.means) == len(record.deviations) == wanted:
            raise DataError(
                "the encoding of the features is damaged (its parts do not fit together); train anew", code="encoding"
            )
        return encoding


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    features: tuple[Features, ...]
    columns: tuple[tuple[str, int] | tuple[str, int, str], ...]
    fills: tuple[float, ...]
    scaling: Scaling
    means: tuple[float, ...]
    deviations: tuple[float, ...]


def fit_encoding(table: NodeTable, scaling: Scaling, total: Total = list) -> FeatureEncoding:
    """Fit means that fill in missing numbers, and for ``standard`` each feature's mean and deviation, on all rows.

    ``total`` sums integers over all holders' tables: called once if a mean fills in, and twice for ``standard``.
    """
    encoding = FeatureEncoding(table.columns, _fit_fills(table, total), scaling)
    if scaling != "standard":
        return encoding
    sums = [
        each for (_, columns, values), width in _entries(table, encoding) for each in exact_sums(columns, values, width)
    ]
    nodes, *sums = total([table.num_nodes, *sums])
    encoding = replace(encoding, means=tuple(mean_of(each, nodes) for each in sums))
    squares = total(_sum_squares(table, encoding))
    # Exact: the squares add up to 0 if and only if all values are equal.
    return replace(encoding, deviations=tuple(math.sqrt(mean_of(each, nodes)) for each in squares))


def encode(table: NodeTable, encoding: FeatureEncoding, *, per_node: bool = False) -> Tensor:
    """Return the table's features, Tensor[N, F] float32, scaled as fitted; without columns, one column of zeros.

    They are ``torch.sparse_csr`` if fewer than ``SPARSE_BELOW`` are non-zero and the scaling keeps zeros. ``per_node``:
    for an ε of one node, the layout follows from the columns alone, so that a row changes no bit of the others'.
    """
    if not encoding.columns:
        return torch.zeros(table.num_nodes, 1)  # a holder of edges and labels alone
    shape = table.num_nodes, encoding.num_features
    # A column of the table gives a row one non-zero at most, whatever it holds.
    nonzeros = shape[0] * len(encoding.columns) if per_node else count_nonzeros(table, encoding)
    if encoding.scaling != "standard" and is_sparse(nonzeros, shape):
        return _encode_sparse(table, encoding, shape)
    features = torch.zeros(shape)
    wide = features.numpy()
    first = 0
    for (rows, columns, values), width in _entries(table, encoding):
        wide[rows, first + columns] = values
        first += width
    for start in range(0, shape[0], ROWS_AT_ONCE):
        _scale_in_place(features[start : start + ROWS_AT_ONCE], encoding)
    return features


def count_nonzeros(table: NodeTable, encoding: FeatureEncoding) -> int:
    """Count the features of all nodes that are not 0 before scaling."""
    return sum(len(rows) for (rows, _, _), _ in _entries(table, encoding))


def is_sparse(nonzeros: int, shape: tuple[int, int]) -> bool:
    """Whether a matrix with so many non-zeros is kept sparse."""
    return nonzeros < SPARSE_BELOW * shape[0] * shape[1]


def _feature_names(column: FeatureColumn) -> list[str]:
    feature = column.feature
    if isinstance(feature, NumericFeatures):
        return [column.title]
    names = [f"{column.name}={category}" for category in feature.categories]
    return [*names, f"{column.name} missing"] if feature.missing == "category" else names


def _fit_fills(table: NodeTable, total: Total) -> tuple[float, ...]:
    missing = [column.feature.missing for column in table.columns]
    fills = [each if isinstance(each, float) else 0.0 for each in missing]
    means = [place for place, each in enumerate(missing) if each == "mean"]
    if means:
        known = [values[~np.isnan(values)] for values in (table.values[place] for place in means)]
        sums = [exact_sums(np.zeros(len(each), np.int64), each, 1)[0] for each in known]
        found = total([*map(len, known), *sums])
        for place, count, each in zip(means, found[: len(means)], found[len(means) :], strict=True):
            if count == 0:
                raise DataError(
                    f"{table.path}: column {table.columns[place].title!r}: missing='mean' and no row has a value; set "
                    "missing to zero or leave the column out"
                )
            fills[place] = mean_of(each, count)
    return tuple(fills)


def _entries(table: NodeTable, encoding: FeatureEncoding) -> Iterator[tuple[_Entries, int]]:
    """Yield each table column's non-zero features before scaling, as (rows, features, values), and how many it has."""
    for column, fill, values in zip(encoding.columns, encoding.fills, table.values, strict=True):
        width = len(_feature_names(column))
        if isinstance(column.feature, NumericFeatures):
            filled = np.where(np.isnan(values), np.float32(fill), values)
            if column.feature.scale is not None:
                filled = within_range(filled, column.feature.scale)
            rows = np.flatnonzero(filled)
            yield (rows, np.zeros(len(rows), np.int64), filled[rows]), width
        else:
            place = values
            if column.feature.missing == "category":
                place = np.where(values == MISSING, width - 1, values)
            rows = np.flatnonzero(place >= 0)
            yield (rows, place[rows].astype(np.int64), np.ones(len(rows), np.float32)), width


def within_range(values: Floats, scale: ScaleSettings) -> Floats:
    """Clip values [n] to a declared range, and map that range to [0, 1]: float32 [n]."""
    wide = np.clip(values.astype(np.float64), scale.low, scale.high)
    return ((wide - scale.low) / (scale.high - scale.low)).astype(np.float32)


def _sum_squares(table: NodeTable, encoding: FeatureEncoding) -> list[int]:
    """Sum each feature's squared deviations from ``encoding.means``, float64 each: exact integers times 2^300, [F]."""
    squares: list[int] = []
    for (_, columns, values), width in _entries(table, encoding):
        means = np.array(encoding.means[len(squares) : len(squares) + width])
        zeros = table.num_nodes - np.bincount(columns, minlength=width)
        deviations = values.astype(np.float64) - means[columns]
        sums = exact_sums(columns, deviations**2, width)
        squares += [each + int(zero) * exact(mean**2) for each, zero, mean in zip(sums, zeros, means, strict=True)]
    return squares


def _scale_in_place(features: Tensor, encoding: FeatureEncoding) -> None:
    if encoding.scaling == "none":
        return
    wide = features.double()
    if encoding.scaling != "standard":
        by_sum = encoding.scaling == "row"
        sizes = wide.abs().sum(dim=1, keepdim=True) if by_sum else wide.norm(dim=1, keepdim=True)
        wide /= torch.where(sizes > 0, sizes, 1.0)
    else:
        deviations = torch.tensor(encoding.deviations, dtype=torch.float64)
        wide -= torch.tensor(encoding.means, dtype=torch.float64)
        wide *= torch.where(deviations > 0, 1 / deviations, 0.0)
    features.copy_(wide)


def _encode_sparse(table: NodeTable, encoding: FeatureEncoding, shape: tuple[int, int]) -> Tensor:
    entries, first = [], 0
    for (rows, columns, values), width in _entries(table, encoding):
        entries.append((rows, first + columns, values))
        first += width
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    matrix = sp.csr_matrix((values, (rows, columns)), shape=shape)
    if encoding.scaling != "none":
        sums = sparse_norm(matrix.astype(np.float64), 1 if encoding.scaling == "row" else 2, axis=1)
        matrix.data = (matrix.data / np.repeat(np.where(sums > 0, sums, 1.0), np.diff(matrix.indptr))).astype(
            np.float32
        )
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data),
        shape,
        check_invariants=True,
    )
