"""Mechanisms: clip every row, put it on the grid, add noise, and process what came out.

``privacy.settings.MECHANISMS`` finds one by the name in a job. A package adds its own, a subclass of ``Mechanism``, by
an entry point of the group ``veilgraph.mechanisms``; ``veilgraph.testing.mechanism`` holds it to what all of them
promise.

A mechanism is frozen, ``release`` is a function of it, the rows and a secret source alone, and its ``event`` says what
the release did, for the accountant. VFGNN, Algorithm 1 (its line 4 prints x^K where the clipped row x̄ is meant).

Clipping shortens a row to C·(1 - 2^-32) and then rounds every entry *towards zero* to the noise's grid. Rounding never
lengthens a row, and 2^-32 is more than float64's errors in the norm of up to 2^20 columns; so the exact norm of what
the noise is added to is at most C, the sensitivity that the event claims (``noise`` says why the grid).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import noise
from veilgraph.privacy.calibrate import SMALLEST_MULTIPLIER, least_multiplier
from veilgraph.privacy.event import Event
from veilgraph.privacy.units import Calibration, Neighbours, Unit

_LARGEST_ENTRY = 1e150  # squares still fit float64
_CLIP_MARGIN = 1.0 - 2.0**-32
_PIECE = 1 << 16  # entries clipped at once, so that temporaries stay in the cache


class Mechanism(ABC):
    """A way to release rows: frozen, and made with the clip and the multiplier of the noise over it.

    Attributes:
        clip: C, the largest norm of a row before noise.
        order: of that norm, 1 or 2.
        is_gaussian: whether the noise is.
        is_plain: whether a release is the clipped rows with the noise and nothing else.
    """

    clip: float
    order: ClassVar[int] = 2
    is_gaussian: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False

    if TYPE_CHECKING:

        def __init__(self, clip: float, multiplier: float) -> None:
            """A dataclass has these two as its fields, under names of its own."""

    @classmethod
    def rows_moved(cls, rows: int) -> float:
        """How far so many rows move together in the norm, where one moves by 1."""
        return math.sqrt(rows) if cls.order == 2 else float(rows)

    @classmethod
    def for_one(cls, epsilon: float, delta: float, clips: float, calibration: Calibration) -> float:
        """The multiplier with which one release costs ε.

        Args:
            epsilon: of the one release.
            delta: of the one release.
            clips: sensitivity over the clip.
            calibration: which formula; for Gaussian noise alone.

        Raises:
            ConfigError: an argument is out of range.
        """
        return cls.for_total(epsilon, delta, 1, clips)

    @classmethod
    def for_total(cls, epsilon: float, delta: float, releases: int, clips: float) -> float:
        """The multiplier with which ``releases`` releases cost ε together; found from ``event``.

        Args:
            epsilon: of all of them.
            delta: of all of them.
            releases: how many, ≥ 1.
            clips: sensitivity over the clip.

        Raises:
            ConfigError: an argument is out of range, or no noise is enough.
        """
        return clips * least_multiplier(lambda multiplier: cls(1.0, multiplier).event(), epsilon, delta, releases)

    @property
    @abstractmethod
    def variance(self) -> float:
        """Of the noise on one entry, before any shrinking."""

    @property
    @abstractmethod
    def cell(self) -> float:
        """Of the public grid that releases lie on, before any shrinking."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        """The noise of one release, which may be made before its rows are there.

        Args:
            shape: (N, d).
            source: of the noise's seed; ``system_secrets`` outside tests.

        Returns:
            Tensor[N, d] float64.
        """

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Releases rows that are clipped and noised.

        Args:
            x: Tensor[N, d], any floating dtype; not changed.
            drawn: noise of that shape, for this release alone; changed in place.

        Returns:
            Tensor[N, d] float64.

        Raises:
            RangeOverflow: an entry is NaN, infinite or above 1e150 in magnitude.
            ConfigError: the mechanism cannot release rows of d columns.
        """

    @abstractmethod
    def event(self, neighbours: Neighbours = "zero-out", unit: Unit = "row") -> Event:
        """What one release did, under that neighbouring relation and unit."""

    def release(self, x: Tensor, source: SecretSource) -> Tensor:
        """One release with noise drawn for it; as ``apply``."""
        return self.apply(x, self.draw(tuple(x.shape), source))


@torch.no_grad()
def clip_to_grid(x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Shortens every row to at most ``clip`` and rounds its entries towards zero to multiples of ``step``.

    Args:
        x: Tensor[N, d], any floating dtype; not changed. One row's result does not depend on the others.
        clip: the exact norm of a returned row is at most this.
        order: of the norm, 1 or 2.
        step: a power of two, at least clip·2^-52.

    Returns:
        Tensor[N, d] float64. A row of zeros stays one.

    Raises:
        RangeOverflow: an entry is NaN, infinite or above 1e150 in magnitude.
    """
    if x.dim() != 2:
        raise ValueError(f"x of shape {tuple(x.shape)} must have rows and columns: the clip bounds a row")
    rows = x.to(torch.float64)
    norms = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
    # No entry is above its row's norm, which is NaN or infinite where an entry is: only then are the entries looked at.
    if norms.numel() and not float(norms.max()) <= _LARGEST_ENTRY:
        _check_entries(rows)
    factors = torch.clamp_max(clip * _CLIP_MARGIN / norms, 1.0)
    cells = torch.mul(rows, factors.div_(step))
    whole = cells.numpy()
    np.trunc(whole, out=whole)  # torch's takes four times as long
    return cells.mul_(step)


def add_clipped(values: Tensor, x: Tensor, clip: float, order: int, step: float) -> Tensor:
    """Adds ``clip_to_grid`` of rows to noise, in place."""
    rows = max(1, _PIECE // max(1, x.shape[-1]))
    for start in range(0, len(x), rows):
        values[start : start + rows].add_(clip_to_grid(x[start : start + rows], clip, order, step))
    return values


def _check_entries(rows: Tensor) -> None:
    if rows.numel() and not max(-float(rows.min()), float(rows.max())) <= _LARGEST_ENTRY:
        raise RangeOverflow(
            f"x: has an entry that is NaN, infinite or above {_LARGEST_ENTRY:g} in magnitude, and a released row must "
            "be finite: lower train.learning_rate or scale the features"
        )


def check_noise(clip: float, name: str, multiplier: float) -> None:
    """Raises ``ConfigError`` where a clip, or the noise over it, is out of range; ``name`` is the multiplier's."""
    if not noise.SMALLEST_SCALE <= clip <= noise.LARGEST_SCALE:
        raise ConfigError(
            f"clip={clip!r} must lie in [{noise.SMALLEST_SCALE:g}, {noise.LARGEST_SCALE:g}]: take the norm of a "
            "typical row"
        )
    if not SMALLEST_MULTIPLIER <= multiplier < math.inf:
        raise ConfigError(
            f"{name}={multiplier!r} must be finite and at least {SMALLEST_MULTIPLIER:g}: for no noise (ε = ∞), "
            "leave the publisher out"
        )
    noise.granularity(multiplier * clip)
