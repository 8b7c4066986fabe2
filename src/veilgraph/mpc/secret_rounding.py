r"""Rounding by a secret function of the value, so that the low bits of an opened sum say nothing of single summands.

A floating-point number carries its size in the zeros below its last place. Encoded with more fractional bits than
that, it keeps them, and so does a sum: as many trailing zeros as its smallest summand has. A grid that is no finer
than the last place of the largest summand would end that, and where the largest is public (``privacy.noise``) there is
one. Gradients, and embeddings that are not normalised, have no public largest. So each value x is moved before it is
summed, by a secret amount:

    x̃ = x + u·w,   w = 2^4 units in x's last place,   u uniform in [-1/2, 1/2)

at the resolution of the ring. Whatever the summands are, the sum modulo the largest w among them is then uniform and
independent of all of them: x̃ of the largest already is. What is above that are digits of the sum itself. Without the
factor 2^4 the digits just above would show a pattern: a division leaves gaps of up to two units between the numbers
that can come out. The price is an error of at most 2^-20 of each float32 (2^-49 of each float64), zeros stay zeros.

u comes from the value alone, by AES under a key that only the holder has. So the same job gives the same result, and
whoever sees the same value published a thousand times has one u of it and no mean over many.
"""

from __future__ import annotations

from typing import Final

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.secrets import derive_key

SLACK_BITS: Final = 4
"""Binary places above a value's last that are moved with it."""

_EXPONENTS: Final = {
    torch.float32: (torch.int32, 0x7F80_0000, 23),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000, 52),
}
"""Dtype → integers of the same size, where they hold the exponent, and stored binary digits."""
_PIECE: Final = 1 << 15
"""Values that are moved at a time, so that what is computed on the way stays in the cache."""
_BLOCK_BYTES: Final = 16
_WITHIN: Final = -1
"""In place of the fractional bits, which are no fewer than 0."""


class SecretRounding:
    """One holder's, for a job.

    Args:
        key: 32 secret bytes, the same in every session of a job, so that its results are.
    """

    def __init__(self, key: bytes) -> None:
        # Equal values must be moved equally, and there is one value in each block: a permutation, not a mode.
        self._cipher = Cipher(algorithms.AES256(derive_key(key, "secret rounding")), modes.ECB())  # noqa: S305

    def move(self, encoded: Tensor, values: Tensor, bits: int) -> None:
        """Adds round(u·w·2^bits) to every element, in place.

        Args:
            encoded: int64, ``values`` in the ring.
            values: float32 or float64, of the same shape. **Their dtype says how many digits they have**: float32
                numbers that are passed as float64 are not protected.
            bits: fractional bits of ``encoded``.

        Raises:
            DataError: ``values`` are of another dtype.
        """
        integers, exponent, digits = _format(values.dtype)
        unit = 2.0 ** (bits - digits + SLACK_BITS)
        flat = values.detach().contiguous().view(-1).view(integers)
        encryptor = self._cipher.encryptor()
        for part, out in zip(torch.split(flat, _PIECE), torch.split(encoded.view(-1), _PIECE), strict=True):
            powers = (part & exponent).view(values.dtype)  # 2^e of every value, 0 of zeros
            out.add_(_uniform(encryptor, part, bits).mul_(powers).mul_(unit).round_().to(torch.int64))

    def within(self, values: Tensor, cell: float) -> Tensor:
        """Offsets u·cell for values on a grid, in which the grid is lost.

        Noisy rows are multiples of a cell that all know, and so is a sum of them: it would show the smallest w, as
        rounding moves small values by less than a cell.

        Args:
            values: float32 or float64, multiples of ``cell`` or what was made of them.
            cell: of the grid.

        Returns:
            A tensor of the shape and dtype of ``values``, to be added to them.

        Raises:
            DataError: ``values`` are of another dtype.
        """
        integers, _, _ = _format(values.dtype)
        offsets, encryptor = torch.empty_like(values, memory_format=torch.contiguous_format), self._cipher.encryptor()
        flat = values.detach().contiguous().view(-1).view(integers)
        for part, out in zip(torch.split(flat, _PIECE), torch.split(offsets.view(-1), _PIECE), strict=True):
            out.copy_(_uniform(encryptor, part, _WITHIN).mul_(cell))
        return offsets


def _format(dtype: torch.dtype) -> tuple[torch.dtype, int, int]:
    if dtype not in _EXPONENTS:
        raise DataError(f"dtype={dtype}: such values cannot be rounded; give float32 or float64")
    return _EXPONENTS[dtype]


def _uniform(encryptor: CipherContext, part: Tensor, use: int) -> Tensor:
    """One u in [-1/2, 1/2), float64, for each integer in ``part``, another one for each ``use``."""
    blocks = torch.full((len(part), 2), use, dtype=torch.int64)
    blocks[:, 0] = part
    secret = torch.empty(blocks.numel() * 8 + _BLOCK_BYTES - 1, dtype=torch.uint8)
    size = encryptor.update_into(blocks.numpy().view("u1").data, secret.numpy().data)
    return secret[:size].view(torch.int64)[::2].to(torch.float64).mul_(2.0**-64)
