"""Whether h^0 fits the ring at the start of a training; asked of each holder's features.

``collaborative`` computes it there, ``secure-sum`` adds the holders' parts up there; other methods have no ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import PartyId
from veilgraph.mpc import ring
from veilgraph.paradigms.vertical.initial.method import InitialSettings, init_std

IN_THE_RING: Final = ("collaborative", "secure-sum")
SCALE_REMEDY: Final = (
    "scale the features (data.feature_scaling: standard), or lower model.initial.gradient_bits or "
    "model.initial.feature_bits"
)
SUM_BITS: Final = 40
"""Fractional bits of what ``secure-sum`` opens: |h^0| and |g| stay below 2^21."""
SUM_REMEDY: Final = "scale the features (data.feature_scaling) or lower the learning rate"
_STD: Final = 8.0
"""No entry of x·W, normal with std·‖x‖, is expected beyond so many standard deviations."""


def check_start(party: PartyId, matrix: Tensor, settings: InitialSettings, feature_bits: int, std: float) -> None:
    """Refuses features of which h^0 would not fit.

    Args:
        party: whose they are.
        matrix: x, Tensor[N, F], dense or ``torch.sparse_csr``.
        settings: of the job.
        feature_bits: that all holders agreed on.
        std: of W's initial entries.

    Raises:
        RangeOverflow: a row is too long; it says how many are.
    """
    room = 63 - ring.GUARD_BITS - (2 * feature_bits + settings.gradient_bits)
    starts = lengths(matrix) * (_STD * std)
    beyond = int((starts >= 2.0**room).sum())
    if beyond:
        raise RangeOverflow(
            f"{party}'s features are too large for the ring: h^0 of about {float(starts.max()):.3g}, at {beyond:,} of "
            f"{len(starts):,} nodes too large, needs |h^0| < 2^{room} with feature_bits={feature_bits} and "
            f"gradient_bits={settings.gradient_bits}; {SCALE_REMEDY}",
            key="model.initial.feature_bits",
            value=feature_bits,
            party=party,
        )


def check_sum(party: PartyId, matrix: Tensor, holders: int, std: float) -> None:
    """Refuses features of which a holder's part of ``secure-sum`` would not fit beside the others'.

    Args:
        party: whose they are.
        matrix: x, Tensor[N, F], dense or ``torch.sparse_csr``.
        holders: that are added up.
        std: of W's initial entries.

    Raises:
        RangeOverflow: a row is too long; it says how many are.
    """
    room = 63 - ring.GUARD_BITS - (holders - 1).bit_length() - SUM_BITS
    starts = lengths(matrix) * (_STD * std)
    beyond = int((starts >= 2.0**room).sum())
    if beyond:
        raise RangeOverflow(
            f"{party}'s features are too large for the ring: its part of h^0 of about {float(starts.max()):.3g}, at "
            f"{beyond:,} of {len(starts):,} nodes too large, must stay below 2^{room} with "
            "model.initial.method=secure-sum; scale the features (data.feature_scaling: standard)",
            key="model.initial.method",
            value="secure-sum",
            party=party,
        )


def check_together(
    settings: InitialSettings, dim: int, matrices: Mapping[PartyId, Tensor], feature_bits: int | None
) -> None:
    """As ``check_start`` or ``check_sum``, of all holders' features where these are on one machine.

    Args:
        settings: of the job.
        dim: d.
        matrices: holder → x of its nodes, scaled.
        feature_bits: of the job; None: as many as any holder's need.

    Raises:
        RangeOverflow: as ``check_start``, of the first holder.
    """
    if settings.method not in IN_THE_RING or not matrices:
        return
    std = init_std(settings, sum(matrix.shape[1] for matrix in matrices.values()), dim)
    if settings.method == "secure-sum":
        for party, matrix in matrices.items():
            check_sum(party, matrix, len(matrices), std)
        return
    if feature_bits is None:
        feature_bits = max(map(ring.fractional_bits, matrices.values()))
    for party, matrix in matrices.items():
        check_start(party, matrix, settings, feature_bits, std)


def lengths(matrix: Tensor) -> Tensor:
    """L2 norms of the rows of Tensor[N, F], dense or ``torch.sparse_csr``: Tensor[N] float64."""
    if matrix.layout != torch.sparse_csr:
        dense: Tensor = torch.linalg.vector_norm(matrix, dim=1)
        return dense.double()
    rows = torch.repeat_interleave(torch.arange(matrix.shape[0]), matrix.crow_indices().diff())
    sizes = torch.zeros(matrix.shape[0], dtype=torch.float64)
    return sizes.index_add_(0, rows, matrix.values().to(torch.float64).square()).sqrt()
