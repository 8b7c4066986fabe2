"""Exact products mod 2^64 on devices that multiply no int64 matrices, such as GPUs.

A ring element is cut into c limbs, digits in base 2^b that lie around zero: x = Σ_i x_i·2^(b·i) mod 2^64 with
−2^(b−1) ≤ x_i < 2^(b−1). A product of limbs i and j counts 2^(b·(i + j)) times, so those with i + j ≥ c vanish:

    A·B = Σ_{s<c} 2^(b·s) · (A_0·B_s + A_1·B_{s−1} + … + A_s·B_0)   mod 2^64

The limbs of A stand side by side, A_0 first, those of B one below the other, B_0 last; so each sum in brackets is
one product of two views, and c products give the result. Each is exact: the inner dimension is taken in pieces
short enough that no sum of limb products leaves the integers that the device adds without rounding.

Checked on the CPU, bit for bit against its int64 kernel; not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError

_RING_BITS: Final = 64
_ALIGNED: Final = 16
"""Rows, columns and inner dimension are filled up with zeros to multiples of this, for cuBLAS."""
_FEWEST_ROWS: Final = 32
"""``torch._int_mm`` refuses 16 rows and fewer on CUDA."""
_INT8_CAPABILITY: Final = (7, 5)
"""NVIDIA devices from here on have int8 matrix units."""


@dataclass(frozen=True)
class Limbs:
    """How ring elements are cut.

    Attributes:
        bits: b, width of a limb.
        dtype: of the limbs.
        inner: the longest inner dimension multiplied in one piece, a multiple of 16.
    """

    bits: int
    dtype: torch.dtype
    inner: int

    @property
    def count(self) -> int:
        """c, limbs of an element."""
        return -(-_RING_BITS // self.bits)

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """left·right of limbs: integers, int32 of int8 limbs and int64 of others."""
        if self.dtype == torch.int8:
            return torch._int_mm(left, right)
        return (left @ right).to(torch.int64)


INT8: Final = Limbs(bits=8, dtype=torch.int8, inner=2**14 - _ALIGNED)
"""8 limbs, 36 products of limbs: 8·inner products of 2^14 stay below int32's 2^31."""
FLOAT64: Final = Limbs(bits=22, dtype=torch.float64, inner=2**10)
"""3 limbs, 6 products of limbs: 2·inner products of 2^42 stay within 2^53 (the top limb has 20 bits).

Two limbs would need 32 bits each, whose products do not fit; three need 22, whatever the inner dimension.
"""


def limbs_of(device: torch.device) -> Limbs:
    """The faster limbs: int8 where an NVIDIA device has matrix units for it, float64 elsewhere."""
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return INT8 if is_nvidia and torch.cuda.get_device_capability(device) >= _INT8_CAPABILITY else FLOAT64


class LimbOperand:
    """A dense static int64 matrix A [N, F] whose limbs lie on a device: a ``ring.StaticOperand``.

    Limbs of A and of Aᵀ take 16 bytes an element together with int8 limbs and 48 with float64.

    Args:
        matrix: A, int64, on any device.
        device: where products are computed; right factors come from the CPU and results go back to it.
        limbs: default: the faster ones of the device.
    """

    def __init__(self, matrix: Tensor, device: torch.device, limbs: Limbs | None = None) -> None:
        self._device = device
        self._limbs = limbs or limbs_of(device)
        rows, columns = matrix.shape
        self._shape = (rows, columns)
        moved = matrix.to(device)
        self._matrix = _side_by_side(moved, self._limbs)
        self._transposed = _side_by_side(moved.t(), self._limbs)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return self._shape

    def times(self, right: Tensor) -> Tensor:
        """A·right: [F, d] → [N, d]."""
        return _times(self._matrix, right.to(self._device), self._limbs, self._shape[0]).cpu()

    def transposed_times(self, right: Tensor) -> Tensor:
        """Aᵀ·right: [N, d] → [F, d]."""
        return _times(self._transposed, right.to(self._device), self._limbs, self._shape[1]).cpu()


def device_of(setting: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device that a job's ``device`` names; ``auto`` is the GPU where there is one.

    Raises:
        ConfigError: ``cuda`` where PyTorch finds no CUDA device.
    """
    if setting == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device='cuda': PyTorch finds no CUDA device here; set device to auto or cpu, or install PyTorch with CUDA "
            "and the GPU's driver"
        )
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(setting)


def _times(left: list[Tensor], right: Tensor, limbs: Limbs, rows: int) -> Tensor:
    """The product, highest place first, of limbs side by side and a matrix [k, d]: int64 [rows, d]."""
    columns = right.shape[1]
    others = _side_by_side(right.t(), limbs, mirrored=True)
    total = torch.zeros(left[0].shape[0], others[0].shape[0], dtype=torch.int64, device=right.device)
    for place in reversed(range(limbs.count)):
        total <<= limbs.bits
        for piece, other in zip(left, others, strict=True):
            used = (place + 1) * (piece.shape[1] // limbs.count)
            total += limbs.multiply(piece[:, :used], other[:, -used:].t())
    return total[:rows, :columns].contiguous()


def _side_by_side(matrix: Tensor, limbs: Limbs, *, mirrored: bool = False) -> list[Tensor]:
    """The limbs of a matrix [rows, k] for every piece of k: ``dtype`` [≥ rows, c·(≥ piece)], filled up with zeros.

    The lowest limb is on the left, on the right where ``mirrored``.
    """
    rows, inner = matrix.shape
    pieces = []
    for start in range(0, max(inner, 1), limbs.inner):
        part = matrix[:, start : start + limbs.inner].contiguous()
        stacked = torch.zeros(
            max(_FEWEST_ROWS, _filled(rows)), limbs.count, _filled(part.shape[1]), dtype=limbs.dtype, device=part.device
        )
        for place, digit in enumerate(_digits(part, limbs)):
            stacked[:rows, -1 - place if mirrored else place, : part.shape[1]] = digit
        pieces.append(stacked.flatten(1))
    return pieces


def _digits(matrix: Tensor, limbs: Limbs) -> Iterator[Tensor]:
    """The limbs as int64, lowest first; half a base added to every limb but the top one makes all carries at once."""
    half, places = 1 << (limbs.bits - 1), limbs.count - 1
    raised = matrix + sum(half << (limbs.bits * place) for place in range(places))
    for place in range(places):
        yield ((raised >> (limbs.bits * place)) & (2 * half - 1)) - half
    yield raised >> (limbs.bits * places)


def _filled(size: int) -> int:
    """The next multiple of 16, at least 16."""
    return max(1, -(-size // _ALIGNED)) * _ALIGNED
