"""Uniform rows, each expanded from a key of its own: whoever has a row's key has the row, and nothing of the others.

Block j of a row in operation i is π(x) ⊕ x with x = K ⊕ (2^32·i + j), for a permutation π, AES under a fixed key. Keys
are uniform, and no x but for a chance of some 2^-60 comes twice, so in the model of an ideal permutation blocks are
uniform to whoever lacks K (Guo, Katz, Wang, Yu, S&P 2020).
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from veilgraph.mpc.sealed.kept_bytes import Form

_BLOCK_BYTES: Final = 16
PIECE_BYTES: Final = 1 << 18
"""That are expanded at a time, so that they stay in the cache."""
_PERMUTATION: Final = Cipher(algorithms.AES128(hashlib.sha256(b"veilgraph rows").digest()[:16]), modes.ECB())  # noqa: S305 a permutation


def key_form(rows: int) -> Form:
    """Form of the keys of so many rows."""
    return (rows, 2), torch.int64


def expand_rows(keys: Tensor, operation: int, like: Tensor) -> Tensor:
    """Expand each of the ``keys``, int64 [n, 2], to a row as wide as those of ``like``, and of its dtype.

    ``operation`` is the number of one, below 2^31, that no other call with these keys has.
    """
    rows, columns, dtype = keys.shape[0], like.shape[1], like.dtype
    blocks = -(-columns * dtype.itemsize // _BLOCK_BYTES)
    numbers = (operation << 32) + np.arange(blocks)
    expanded = torch.empty((rows, columns), dtype=dtype)
    permute = _PERMUTATION.encryptor().update_into
    most = min(rows, PIECE_BYTES // max(1, blocks * _BLOCK_BYTES) or 1)
    secret = np.empty(most * blocks * _BLOCK_BYTES + _BLOCK_BYTES - 1, np.uint8)
    for part, out in zip(torch.split(keys, most or 1), torch.split(expanded, most or 1), strict=True):
        inputs = np.repeat(part.numpy()[:, None], blocks, 1)
        inputs[..., 1] ^= numbers
        permute(inputs.view(np.uint8).reshape(-1).data, secret.data)
        found = secret[: inputs.nbytes].view(np.int64).reshape(len(part), 2 * blocks)
        found ^= inputs.reshape(len(part), 2 * blocks)
        out.copy_(torch.from_numpy(found).view(dtype)[:, :columns])
    return expanded
