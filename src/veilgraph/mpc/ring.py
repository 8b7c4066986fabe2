"""Fixed point in Z_2^64 and exact products there.

Ring elements are int64 tensors in two's complement: wrap-around is the modulus. A real number ``v`` with ``b``
fractional bits is the integer round(v·2^b).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow
from veilgraph.mpc.limbs import LimbOperand

CPU: Final = torch.device("cpu")

MAX_DETECTED_BITS: Final = 12
"""Fractional bits that values have at most where nothing says how many."""

GUARD_BITS = 2
"""Top bits of an opened value that must all equal its sign: the value stays below 2^(63 − GUARD_BITS)."""

_SPARSE_BELOW = 0.12
"""Density below which the sparse product is the faster one."""
_MIN_ROWS_PER_THREAD = 256
_TRANSPOSED_ROWS = 512
"""Rows that a transposed product takes at a time: they stay in the cache."""
_CHECKED_ROWS = 1 << 16
_PART = 1 << 18
"""Elements that are encoded or decoded at a time."""

_SLICES = 4
_ENTRIES_PER_SLICE = 50_000
"""Slices of a sparse matrix depend on its size alone: floating sums over them come out the same on every machine."""

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Result = TypeVar("Result")


def encode(
    values: Tensor, bits: int, what: str, remedy: str, headroom_bits: int = 0, factor: float | None = None
) -> Tensor:
    """Real → ring: round(values·2^bits), or round(factor·values·2^bits) computed in float64.

    Args:
        values: floating tensor of any shape.
        bits: fractional bits.
        what: names the values in the error.
        remedy: says in the error which setting to change.
        headroom_bits: further top bits to leave free, for sums of several encoded values.
        factor: multiplies all values.

    Returns:
        int64 tensor of the same shape.

    Raises:
        RangeOverflow: a value is not finite or does not fit into 63 − GUARD_BITS bits.
    """
    room = 63 - GUARD_BITS - headroom_bits
    encoded = torch.empty(values.shape, dtype=torch.int64)
    for part, out in _parts(values, encoded):
        # a power of two is exact in either precision
        scaled = part * 2.0**bits if factor is None else part.to(torch.float64) * (factor * 2.0**bits)
        smallest, largest = map(float, scaled.aminmax())
        if not (-(2.0**room) < smallest and largest < 2.0**room):  # true for NaN too
            raise RangeOverflow(_overflow(what, bits, room, remedy), key=what, value=room)
        out.copy_(scaled.round_())
    return encoded


def decode(elements: Tensor, bits: int, dtype: torch.dtype, what: str, remedy: str, factor: float = 1.0) -> Tensor:
    """Ring → real: factor·elements/2^bits, computed in float64, refused when the guard bits are in use.

    Raises:
        RangeOverflow: an element reached into the guard bits, so the true value may have wrapped around.
    """
    limit = 1 << (63 - GUARD_BITS)
    decoded = torch.empty(elements.shape, dtype=dtype)
    for part, out in _parts(elements, decoded):
        smallest, largest = map(int, part.aminmax())
        if largest >= limit or smallest < -limit:
            raise RangeOverflow(_overflow(what, bits, 63 - GUARD_BITS, remedy), key=what)
        out.copy_(part.to(torch.float64).mul_(factor * 2.0**-bits))
    return decoded


def _parts(values: Tensor, results: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of both side by side, small enough that what is computed on the way stays in the cache."""
    both = values.detach().reshape(-1), results.view(-1)
    return zip(*(torch.split(each, _PART) for each in both), strict=True) if values.numel() else iter(())


def _overflow(what: str, bits: int, room: int, remedy: str) -> str:
    return (
        f"{what} does not fit the ring: with {bits} fractional bits its values must be finite and stay below "
        f"2^{room - bits} in magnitude; {remedy}"
    )


def fractional_bits(values: Tensor, most: int = MAX_DETECTED_BITS) -> int:
    """The fewest fractional bits that hold ``values`` exactly, at most ``most`` (then values are rounded)."""
    bits = 0
    for part in torch.split(_stored(values), _CHECKED_ROWS):
        numbers = part.to(torch.float64)
        while bits < most and not _is_whole(numbers * 2.0**bits):
            bits += 1
        if bits == most:
            break
    return bits


def _is_whole(numbers: Tensor) -> bool:
    return torch.equal(numbers, numbers.round())


def _stored(matrix: Tensor) -> Tensor:
    return matrix.values() if matrix.layout == torch.sparse_csr else matrix


class StaticOperand(Protocol):
    """A matrix A [N, F] that stays the same for a whole job and is multiplied many times."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""

    def times(self, right: Tensor) -> Tensor:
        """A·right: [F, d] → [N, d]."""

    def transposed_times(self, right: Tensor) -> Tensor:
        """Aᵀ·right: [N, d] → [F, d]."""


class DenseOperand:
    """A dense static matrix, int64 (exact in the ring) or floating."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix.contiguous()

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        rows, columns = self._matrix.shape
        return rows, columns

    def times(self, right: Tensor) -> Tensor:
        """A·right: [F, d] → [N, d]."""
        return matmul(self._matrix, right)

    def transposed_times(self, right: Tensor) -> Tensor:
        """Aᵀ·right: [N, d] → [F, d]."""
        return transposed_matmul(self._matrix, right)


class ConvertedOperand:
    """A dense static matrix that is kept as it came and converted in every product, for those too large to keep twice.

    Args:
        matrix: [N, F] strided.
        convert: as for ``static_operand``.
    """

    def __init__(self, matrix: Tensor, convert: Callable[[Tensor], Tensor]) -> None:
        self._matrix, self._convert = matrix, convert

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        rows, columns = self._matrix.shape
        return rows, columns

    def times(self, right: Tensor) -> Tensor:
        """A·right: [F, d] → [N, d]."""
        return matmul(self._convert(self._matrix), right)

    def transposed_times(self, right: Tensor) -> Tensor:
        """Aᵀ·right: [N, d] → [F, d]."""
        return transposed_matmul(self._convert(self._matrix), right)


class SparseOperand:
    """A sparse static matrix, int64 (exact in the ring) or floating, in row slices for the thread pool.

    The transposed product reads the same slices as columns of Aᵀ: it streams the right factor once and writes into a
    small [F, d] matrix, three times faster than rows of Aᵀ that gather from all over it.
    """

    def __init__(self, matrix: sp.csr_array) -> None:
        self._shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self._starts, self._slices = _row_slices(matrix)
        self._transposed = [part.T for part in self._slices]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return self._shape

    def times(self, right: Tensor) -> Tensor:
        """A·right: [F, d] → [N, d]."""
        operand = _numpy(right)
        parts = _in_parallel([_product_of(part, operand) for part in self._slices], "sparse")
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def transposed_times(self, right: Tensor) -> Tensor:
        """Aᵀ·right: [N, d] → [F, d]."""
        operand = _numpy(right)
        bounds = zip(self._transposed, self._starts, self._starts[1:], strict=False)
        parts = _in_parallel([_product_of(part, operand[start:stop]) for part, start, stop in bounds], "sparse")
        return torch.from_numpy(sum(parts[1:], start=parts[0]))


def dense_operand(matrix: Tensor, device: torch.device = CPU) -> StaticOperand:
    """A dense static matrix whose products are computed on ``device``; floating ones on the CPU."""
    return DenseOperand(matrix) if device.type == "cpu" or matrix.is_floating_point() else LimbOperand(matrix, device)


def static_operand(matrix: Tensor, convert: Callable[[Tensor], Tensor], device: torch.device = CPU) -> StaticOperand:
    """Wraps features for repeated products in the layout that is faster for their density.

    Args:
        matrix: [N, F], strided or sparse CSR.
        convert: maps the stored values elementwise, zero to zero (an encoding or a change of dtype).
        device: of dense products in the ring; sparse ones are computed on the CPU.
    """
    rows, columns = matrix.shape
    if matrix.layout == torch.sparse_csr:
        sparse = sp.csr_array(
            (convert(matrix.values()).numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy()),
            shape=(rows, columns),
        )
    else:
        filled = int(torch.count_nonzero(matrix))
        if filled >= _SPARSE_BELOW * max(matrix.numel(), 1):
            return dense_operand(convert(matrix), device)
        sparse = sp.csr_array(convert(matrix).numpy())
    if sparse.nnz >= _SPARSE_BELOW * max(rows * columns, 1):
        return dense_operand(torch.from_numpy(sparse.toarray()), device)
    return SparseOperand(sparse)


def dense(operand_matrix: Tensor, convert: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrix of ``static_operand`` as a strided tensor."""
    if operand_matrix.layout == torch.sparse_csr:
        return convert(operand_matrix.to_dense())
    return convert(operand_matrix)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left·right for int64 (mod 2^64) or floating matrices; rows are divided over the machine's cores."""
    rows = left.shape[0]
    if left.is_floating_point():
        return left @ right
    out = torch.empty(rows, right.shape[1], dtype=torch.int64)
    kernel = _integer_kernel()
    right = right.contiguous()
    parts = min(available_cores(), max(1, rows // _MIN_ROWS_PER_THREAD))
    bounds = [rows * part // parts for part in range(parts + 1)]
    _in_parallel([partial(kernel, left[a:b], right, out[a:b]) for a, b in pairwise(bounds)], "dense")
    return out


def transposed_matmul(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right for int64 (mod 2^64) or floating matrices, without a transposed copy of all of ``left``."""
    if left.is_floating_point():
        return left.t() @ right
    rows, right = left.shape[0], right.contiguous()
    parts = min(available_cores(), max(1, rows // _MIN_ROWS_PER_THREAD))
    bounds = [rows * part // parts for part in range(parts + 1)]
    sums = _in_parallel([partial(_transposed_part, left[a:b], right[a:b]) for a, b in pairwise(bounds)], "dense")
    return sum(sums[1:], start=sums[0])


def _transposed_part(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right as (rightᵀ·left)ᵀ: ``right`` is the narrow one, cheap to transpose."""
    kernel, total = _integer_kernel(), torch.zeros(right.shape[1], left.shape[1], dtype=torch.int64)
    piece = torch.empty_like(total)
    for block, factor in zip(torch.split(left, _TRANSPOSED_ROWS), torch.split(right, _TRANSPOSED_ROWS), strict=True):
        kernel(factor.t().contiguous(), block, piece)
        total += piece
    return total.t().contiguous()


@cache
def _integer_kernel() -> Callable[[Tensor, Tensor, Tensor], None]:
    """FBGEMM's int64 kernel needs AVX-512 to be fast; without it another path of PyTorch is."""
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        return _direct_product
    return _negated_product


def _direct_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    torch.mm(left, right, out=out)


def _negated_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    torch.addmm(zero, left, right, beta=0, alpha=-1, out=out).neg_()


def _row_slices(matrix: sp.csr_array) -> tuple[list[int], list[sp.csr_array]]:
    """Slices of about equal numbers of entries, and the rows where they start and the last one ends."""
    rows, parts = matrix.shape[0], min(_SLICES, max(1, matrix.nnz // _ENTRIES_PER_SLICE))
    bounds = np.searchsorted(matrix.indptr, [matrix.nnz * part // parts for part in range(1, parts)])
    starts = [0, *map(int, bounds), rows]
    return starts, [_short_indices(matrix[a:b]) for a, b in pairwise(starts)]


def _short_indices(matrix: sp.csr_array) -> sp.csr_array:
    if max(*matrix.shape, matrix.nnz) < np.iinfo(np.int32).max:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def _numpy(right: Tensor) -> Array:
    array: Array = right.detach().contiguous().numpy()
    return array


def _product_of(part: sp.csr_array, right: Array) -> Callable[[], Array]:
    def run() -> Array:
        product: Array = part @ right
        return product

    return run


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool(kind: str) -> Executor:
    """Sparse products are a step's online part and do not queue behind the dense ones, which run ahead of it."""
    return ThreadPoolExecutor(available_cores(), thread_name_prefix=f"ring {kind}")


def _in_parallel(work: Sequence[Callable[[], Result]], kind: str) -> list[Result]:
    if len(work) == 1:
        return [work[0]()]
    return [done.result() for done in [_pool(kind).submit(task) for task in work]]
