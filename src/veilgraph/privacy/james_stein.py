"""James-Stein's estimate of what is under Gaussian noise: post-processing, which costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.privacy import noise
from veilgraph.privacy.gaussian import Gaussian

_FEWEST_COLUMNS: Final = 3
"""Below, it is no better than what it is given."""


@dataclass(frozen=True)
class JamesStein(Gaussian):
    """The Gaussian mechanism, then the James-Stein estimate of every row (VFGNN, Algorithm 1, line 6; d ≥ 3)."""

    is_plain: ClassVar[bool] = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``."""
        _check_columns(x, "james-stein")
        return james_stein(super().apply(x, drawn), self.standard_deviation)


@dataclass(frozen=True)
class JamesSteinPlus(Gaussian):
    """The Gaussian mechanism, then the positive-part James-Stein estimate of every row (d ≥ 3)."""

    is_plain: ClassVar[bool] = False

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """See ``Mechanism.apply``."""
        _check_columns(x, "james-stein-plus")
        return james_stein(super().apply(x, drawn), self.standard_deviation, positive_part=True)


@torch.no_grad()
def james_stein(noisy: Tensor, standard_deviation: float, *, positive_part: bool = False) -> Tensor:
    """Shrinks noisy rows towards zero: (1 - (d-2)s²/‖x̃‖²)·x̃ (VFGNN, Theorem 2, s = σC).

    The paper's eq. 8 drops C² in its leading factor and prints as equal what is an upper bound. For x ~ N(0, w²I),
    E[1/‖x̃‖²] = 1/((d-2)(w² + s²)), and so

        E‖x̃_JS - x‖² = d·s²·(1 - (d-2)/d · s²/(w² + s²)).

    The printed factor (d-2)²/d² comes from E[1/‖x̃‖²] ≥ 1/E‖x̃‖² = 1/(d(w² + s²)).

    Args:
        noisy: Tensor[N, d] float64, changed in place.
        standard_deviation: s, of the noise on one entry.
        positive_part: shrink no further than to zero, where the plain estimate turns a short row round. Never worse in
            mean squared error.

    Returns:
        ``noisy``, shrunk. A row of zeros stays one.
    """
    norms = torch.linalg.vector_norm(noisy, dim=1, keepdim=True).div_(standard_deviation)
    # No row on the grid lies between 0 and one step; the bound only keeps 0/0 out.
    factors = 1.0 - (noisy.shape[1] - 2) / norms.clamp_min_(2.0 ** -(noise.GRID_BITS + 2)).square_()
    return noisy.mul_(factors.clamp_min_(0.0) if positive_part else factors)


def _check_columns(x: Tensor, name: str) -> None:
    if x.shape[-1] < _FEWEST_COLUMNS:
        raise ConfigError(
            f"mechanism={name!r} needs rows of at least {_FEWEST_COLUMNS} columns, not {x.shape[-1]}: use gaussian or "
            "a larger model.dim"
        )
