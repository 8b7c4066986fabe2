"""What every local mechanism for features has in common: the declared range, the checks, and working in blocks of rows.

``privacy.local.settings.FEATURE_MECHANISMS`` finds one by the name in a job. A package adds its own, a subclass of
``FeatureMechanism``, by an entry point of the group ``veilgraph.feature_mechanisms``.

A node's whole feature vector is what one release protects: any vector of the range [α, β]^d against any other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.features import is_sparse
from veilgraph.graph.rows import rows_between
from veilgraph.privacy.event import Event
from veilgraph.privacy.local.settings import FEATURE_MECHANISMS, FeatureReleaseSettings


@dataclass(frozen=True)
class FeatureMechanism(ABC):
    """A way for nodes to release their features under local differential privacy.

    Args:
        epsilon: ε of one node's release, all its features together.
        low: α, the least value a feature may have.
        high: β, the largest.
        features: d, the number of features of a node.

    Attributes:
        has_sampled: whether it takes ``sampled`` of the settings.
        has_delta: whether it takes ``delta`` of the settings, and needs one.
        is_gaussian: whether the noise is.

    Raises:
        ConfigError: a parameter is out of range.
    """

    has_sampled: ClassVar[bool] = False
    has_delta: ClassVar[bool] = False
    is_gaussian: ClassVar[bool] = False
    epsilon: float
    low: float
    high: float
    features: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon={self.epsilon!r} must be a finite number > 0")
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ConfigError(
                f"range=[{self.low!r}, {self.high!r}] must be finite with low < high: features of one value need no "
                "release"
            )
        check_whole("features", self.features, 1)

    @classmethod
    def of(cls, settings: FeatureReleaseSettings, features: int) -> FeatureMechanism:
        """What a job asks for.

        Args:
            settings: of the job.
            features: d, the holder's columns.

        Raises:
            ConfigError: they do not go together.
        """
        return cls(settings.epsilon, settings.low, settings.high, features)

    @property
    def centre(self) -> float:
        """(α + β)/2."""
        return self.low + (self.high - self.low) / 2

    @property
    @abstractmethod
    def scale(self) -> float:
        """What a released value is multiplied by before ``offset`` is added, for an unbiased estimate."""

    @property
    @abstractmethod
    def offset(self) -> float:
        """See ``scale``."""

    @abstractmethod
    def variance(self, x: Tensor) -> Tensor:
        """Of every entry of ``rectify(release(x))``.

        Args:
            x: Tensor[N, d], dense or sparse_csr, within the range.

        Returns:
            Tensor[N, d] float64.
        """

    @abstractmethod
    def event(self) -> Event:
        """What one release did to each node, for the accountant."""

    @torch.no_grad()
    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """Perturbs every node's features, independently of all others.

        Args:
            x: Tensor[N, d] of any real dtype, dense or sparse_csr; not changed. Working memory beside x and the result
                does not grow with N.
            source: of the randomness; ``system_secrets`` outside tests.

        Returns:
            Tensor[N, d] in the dtype and layout that the mechanism says.

        Raises:
            DataError: x has another form, or a value that is not in the range.
        """
        self.check(x)
        return self._perturbed(x, source)

    def rectify(self, released: Tensor) -> Tensor:
        """The unbiased estimate scale · released + offset, dense.

        Where that is too large, use ``scale`` and ``offset``: of a linear map A it is scale·(A·released) + offset·A·1.

        Args:
            released: Tensor[N, d], of ``release``.

        Returns:
            Tensor[N, d] float32.
        """
        return released.to_dense().to(torch.float32).mul(self.scale).add_(self.offset)

    @abstractmethod
    def _perturbed(self, x: Tensor, source: SecretSource) -> Tensor:
        """``release`` of what was checked."""

    def check(self, x: Tensor) -> None:
        """Raises what ``release`` would."""
        if x.layout not in (torch.strided, torch.sparse_csr):
            raise DataError(f"x: {x.layout}, and features are dense or sparse_csr; convert with to_sparse_csr()")
        if x.dim() != 2 or x.shape[1] != self.features:
            raise DataError(f"x: of shape {tuple(x.shape)} must be [N, {self.features}]: set features to its columns")
        if x.numel() == 0:
            return
        for value in data_range(x):
            if not self.low <= value <= self.high:
                raise DataError(
                    f"x: the value {value!r}, outside the declared range [{self.low!r}, {self.high!r}]: declare a "
                    "range that holds every value a feature can have, or clip x to it"
                )


def feature_mechanism(settings: FeatureReleaseSettings, features: int) -> FeatureMechanism:
    """What perturbs a node's features in a job; as ``FeatureMechanism.of``."""
    kind: type[FeatureMechanism] = FEATURE_MECHANISMS[settings.mechanism]
    return kind.of(settings, features)


def data_range(x: Tensor) -> tuple[float, float]:
    """The least and the largest value of x, which must not be declared as the range without thought.

    A range computed from the data is itself a leak, and not covered by any ε: whoever learns it knows the extreme
    values, and that some node has them. Declare what the features' meaning says (0 and 1 for words that are there or
    not); computed ranges are for experiments on public data.

    Args:
        x: Tensor[N, d], dense or sparse_csr, whose missing entries are zeros.

    Returns:
        (least, largest); NaN if x has one.

    Raises:
        DataError: x has no entries.
    """
    if x.numel() == 0:
        raise DataError(f"x: of shape {tuple(x.shape)} has no entries, so no range: declare one")
    values = x.values() if x.layout == torch.sparse_csr else x
    extremes = [float(value) for value in values.aminmax()] if values.numel() else []
    if values.numel() < x.numel():
        extremes.append(0.0)
    if any(math.isnan(value) for value in extremes):
        return math.nan, math.nan
    return min(extremes), max(extremes)


def row_blocks(x: Tensor, entries: int) -> Iterator[tuple[int, Tensor]]:
    """Cuts x into blocks of whole rows, dense, of about that many entries; with the first row's number."""
    rows = max(1, entries // x.shape[1])
    for start in range(0, len(x), rows):
        yield start, rows_between(x, start, min(start + rows, len(x))).to_dense()


def check_whole(name: str, value: object, least: int) -> None:
    """Raises ``ConfigError`` unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number >= {least}")


def packed(released: Tensor) -> Tensor:
    """A mechanism's output as it crosses the wire.

    Args:
        released: Tensor[N, d]: sparse_csr of −1 and 1, as many in every row; int8 of −1, 0 and 1; or float32.

    Returns:
        Tensor[N, m] int64, 1 + column with the value's sign; Tensor[N, d] uint8, 1 + value; or as it is.
    """
    if is_sparse(released):
        columns = released.col_indices().to(torch.int64) + 1
        return (columns * released.values().sign().to(torch.int64)).view(released.shape[0], -1)
    return (released + 1).to(torch.uint8) if released.dtype == torch.int8 else released
