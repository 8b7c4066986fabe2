"""Matrix products of two parties in Z_2^64, whose results they share: by ring-LWE, without a dealer.

Both parties call a function together, each with what it has. Each gets a uniform additive share of the result and
learns nothing else (``lattice`` says why, for semi-honest parties). ``blocks`` says how matrices are cut. Here we
choose the cut, and who encrypts, by the seconds that CPU and a wire of 100 Mbit/s take for public sizes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow
from veilgraph.mpc.pair.blocks import Plan, Sizes, encrypt_matrix, multiply_matrix, plans
from veilgraph.mpc.pair.lattice import Keys
from veilgraph.mpc.pair.ntt import Words

Side = Literal["left", "right"]
Messages = list[tuple[int, int]]
"""Bytes of data that each of two parties sends, message by message: one of the two is 0. Headers are not counted."""

WORD_BITS: Final = 64
WEIGHT_BITS: Final = 16
"""log2 of the most that entries of a row of a ``hop``'s matrix may sum up to, in magnitude, unless said."""
_DTYPES: Final = {32: torch.int32, 64: torch.int64}


@lru_cache(256)
def plan_matmul(sizes: Sizes, bits: int, multiplies: Side | None = None) -> tuple[bool, Plan]:
    """Choose blocks, and who encrypts: True if the owner of the left matrix, else the product is transposed.

    ``multiplies``: the side whose owner does not encrypt, as where its matrix may be sparse, and is so if it is large;
    None: either may.
    """
    n, k, m = sizes
    candidates = []
    for left, turned, weight_bits in ((True, (n, k, m), min(bits, WORD_BITS - 1)), (False, (m, k, n), WORD_BITS - 1)):
        found = plans(turned, 1 << WORD_BITS, k * 2.0**weight_bits, k * 4.0**weight_bits, shifts=False)
        candidates += [(left, plan) for plan in found if multiplies != ("left" if left else "right")]
    return min(candidates, key=lambda candidate: candidate[1].cost(sparse=multiplies is not None))


def matmul_messages(sizes: Sizes, bits: int, multiplies: Side | None = None) -> Messages:
    """Bytes that the owners of the left and of the right matrix send in ``matmul``, message by message."""
    left, plan = plan_matmul(sizes, bits, multiplies)
    return plan.messages() if left else [(answering, encrypting) for encrypting, answering in plan.messages()]


def matmul(
    keys: Keys,
    left: Tensor | None,
    right: Tensor | None,
    sizes: Sizes,
    bits: int = WORD_BITS,
    multiplies: Side | None = None,
) -> Tensor:
    """Return this party's share of left @ right modulo 2^64: int64 [n, m].

    Args:
        keys: of this party's session with the other one.
        left: int64 [n, k] at its owner; None at the other party.
        right: int64 [k, m] at its owner, with entries below 2^bits in magnitude; None at the other party.
        sizes: (n, k, m), at least 1.
        bits: public; 64 if ``right`` is a mask.
        multiplies: public; as of ``plan_matmul``.

    Raises:
        ValueError: both matrices are given or none, or one of another shape.
        RangeOverflow: an entry of ``right`` is not below 2^bits.

    """
    n, k, m = sizes
    own = _given({"left": (left, (n, k)), "right": (right, (k, m))}, sizes)
    if right is not None and bits < WORD_BITS and max(-int(right.min()), int(right.max())) >> bits:
        raise RangeOverflow(f"`right` has an entry that is not below 2^{bits} in magnitude; raise `bits`")
    encrypts_left, plan = plan_matmul(sizes, bits, multiplies)
    values = _words(own)
    encrypts = encrypts_left == (right is None)
    share = _compute(keys, plan, values if encrypts_left else values.T, encrypts=encrypts)
    return _tensor(share if encrypts_left else share.T)


@lru_cache(256)
def plan_hop(sizes: Sizes, ring: int, bits: int = WEIGHT_BITS) -> Plan:
    """Choose blocks for the transposed product, of which the mask is the left side."""
    n, k, m = sizes
    found = plans((m, k, n), 1 << ring, 2.0**bits, 4.0**bits, shifts=True)
    return min(found, key=Plan.cost)


def hop_messages(sizes: Sizes, ring: int, bits: int = WEIGHT_BITS) -> Messages:
    """Bytes that the matrix's owner and the mask's owner send in ``hop``, message by message."""
    return [(answering, encrypting) for encrypting, answering in plan_hop(sizes, ring, bits).messages()]


def hop(
    keys: Keys,
    adjacency: sp.spmatrix | None,
    mask: Tensor | None,
    sizes: Sizes,
    ring: int,
    bits: int = WEIGHT_BITS,
) -> Tensor:
    """Return this party's share of adjacency @ mask modulo 2^ring: [n, m] of the mask's dtype.

    Work is in proportion to the entries of the adjacency, and their number does not show in what is sent. Several masks
    side by side cost less than one by one: up to m = N (4096 for ring 32), bytes grow with the square root of m.

    Args:
        keys: of this party's session with the other one.
        adjacency: sparse integers of scipy [n, k] at their owner; None at the other party.
        mask: [k, m] at its owner, int32 for ring 32 and int64 for ring 64; None at the other party.
        sizes: (n, k, m), at least 1.
        ring: 32 or 64.
        bits: public: entries of a row sum up to 2^bits in magnitude at most.

    Raises:
        ValueError: both matrices are given or none, or one of another shape or dtype.
        RangeOverflow: the entries of a row of ``adjacency`` sum up to more than 2^bits in magnitude.

    """
    n, k, m = sizes
    given = _given({"adjacency": (adjacency, (n, k)), "mask": (mask, (k, m))}, sizes)
    if mask is None:
        own = _checked_weights(given, bits)
    elif mask.dtype != _DTYPES[ring]:
        raise ValueError(f"`mask` is {mask.dtype}, but the ring of {ring} bits takes {_DTYPES[ring]}")
    else:
        own = _words(mask.to(torch.int64)).T & np.uint64((1 << ring) - 1)
    plan = plan_hop(sizes, ring, bits)
    return _tensor(_compute(keys, plan, own, encrypts=mask is not None).T).to(_DTYPES[ring])


def _checked_weights(adjacency: sp.spmatrix, bits: int) -> sp.csr_matrix:
    """Refuse what the bound on the noise does not cover; the check is in float64, which does not wrap around."""
    if adjacency.dtype.kind not in "biu":
        raise ValueError(f"`adjacency` is of {adjacency.dtype}; give whole numbers as integers")
    largest = abs(sp.csr_matrix(adjacency, dtype=np.float64)).sum(axis=1).max()
    if largest > 1 << bits:
        words = f"a row of `adjacency` sums up to {largest:.0f} in magnitude, above {1 << bits}"
        raise RangeOverflow(f"{words}; cap the edges of a node, or their weights")
    return sp.csr_matrix(adjacency, dtype=np.int64)


def _compute(keys: Keys, plan: Plan, own: Words | sp.csr_matrix, *, encrypts: bool) -> Words:
    """This party's share [n, m] of a planned product; ``own``: the left matrix if it encrypts, else the right one."""
    if encrypts:
        return encrypt_matrix(keys.peer, keys.owner(plan.scheme), plan, own)
    return multiply_matrix(keys.peer, keys.responder(plan.scheme), plan, own)


def _given(matrices: dict[str, tuple[Any, tuple[int, int]]], sizes: Sizes) -> Any:  # noqa: ANN401
    """The one matrix that this party has; refuse both, none, one of another shape, and sizes of zero."""
    if min(sizes) < 1:
        raise ValueError(f"`sizes` is {sizes}; a product has at least one row, one column and one inner place")
    names = [name for name, (matrix, _) in matrices.items() if matrix is not None]
    if len(names) != 1:
        raise ValueError(f"a party gives one of {', '.join(matrices)}, and None for what the other party has")
    matrix, shape = matrices[names[0]]
    if tuple(matrix.shape) != shape:
        raise ValueError(f"`{names[0]}` has the shape {tuple(matrix.shape)}, but `sizes` says {shape}")
    return matrix


def _words(values: Tensor) -> Words:
    """An int64 tensor's numbers as words."""
    return values.numpy().view(np.uint64)


def _tensor(share: Words) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(share).view(np.int64))
