"""Fixed point in Z_2^64 and exact products there.

Ring elements are int64 tensors in two's complement: wrap-around is the modulus. A real number ``v`` with ``b``
fractional bits is the integer round(v·2^b).

Devices that multiply no int64 matrices, such as GPUs, multiply limbs: an element is cut into c digits in base 2^b that
lie around zero, x = Σ_i x_i·2^(b·i) mod 2^64 with −2^(b−1) ≤ x_i < 2^(b−1). A product of limbs i and j counts
2^(b·(i + j)) times, so those with i + j ≥ c vanish:

    A·B = Σ_{s<c} 2^(b·s) · (A_0·B_s + A_1·B_{s−1} + … + A_s·B_0)   mod 2^64

The limbs of A stand side by side, A_0 first, those of B one below the other, B_0 last; so each sum in brackets is
one product of two views, and c products give the result. Each is exact: the inner dimension is taken in pieces
short enough that no sum of limb products leaves the integers that the device adds without rounding. (Checked on the
CPU, bit for bit against its int64 kernel; not run on a GPU yet.)
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Final, Literal, TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RangeOverflow

_RING_BITS: Final = 64
_ALIGNED: Final = 16  # rows, columns and inner dimension are filled up with zeros to multiples of this, for cuBLAS
_FEWEST_ROWS: Final = 32  # ``torch._int_mm`` refuses 16 rows and fewer on CUDA
_INT8_CAPABILITY: Final = (7, 5)  # NVIDIA devices from here on have int8 matrix units


@dataclass(frozen=True)
class Limbs:
    """How ring elements are cut: b bits a limb, its dtype, and a piece's longest inner dimension, a multiple of 16."""

    bits: int
    dtype: torch.dtype
    inner: int

    @property
    def count(self) -> int:
        """c, the number of limbs of an element."""
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


def device_of(setting: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device of a job's ``device``, ``auto`` being the GPU if any; ``ConfigError``: ``cuda`` without one."""
    if setting == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device='cuda': PyTorch finds no CUDA device here; set device to auto or cpu, or install PyTorch with CUDA "
            "and the GPU's driver"
        )
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(setting)


def _multiply_limbs(left: list[Tensor], right: Tensor, limbs: Limbs, rows: int) -> Tensor:
    """Return the product mod 2^64, int64 [rows, d], of limbs as ``_side_by_side`` cuts them and a matrix [k, d]."""
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
    """Cut a matrix [rows, k] into limbs side by side, a tensor for every piece of k: ``dtype`` [≥ rows, c·(≥ piece)].

    Zeros fill it up. The lowest limb is on the left, on the right where ``mirrored``.
    """
    rows, inner = matrix.shape
    pieces = []
    for start in range(0, max(inner, 1), limbs.inner):
        part = matrix[:, start : start + limbs.inner].contiguous()
        stacked = torch.zeros(
            max(_FEWEST_ROWS, _align(rows)), limbs.count, _align(part.shape[1]), dtype=limbs.dtype, device=part.device
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


def _align(size: int) -> int:
    return max(1, -(-size // _ALIGNED)) * _ALIGNED


CPU: Final = torch.device("cpu")

MAX_DETECTED_BITS: Final = 12  # fractional bits that values have at most where nothing says how many

GUARD_BITS = 2  # Top bits of an opened value that must all equal its sign: the value stays below 2^(63 − GUARD_BITS).

_SPARSE_BELOW = 0.12  # density below which the sparse product is the faster one
_WORK_PER_THREAD = 1 << 25  # multiply-adds, one to four milliseconds: below, handing them to a thread does not pay
_CACHED_ROWS = 512  # rows of a result, or of a right factor, that stay in the cache
_LONG_INNER = 1 << 12  # inner dimension of a product above which its right factor does not
_CHECKED_ROWS = 1 << 16
_PART = 1 << 18  # elements that are encoded or decoded at a time

_SLICES = 4
# Slices of a sparse matrix depend on its size alone: floating sums over them come out the same on every machine.
_ENTRIES_PER_SLICE = 50_000
_ENTRIES_PER_COLUMN = 4  # that a column of a block of a sparse matrix has at least, on average

Result = TypeVar("Result")
Compressed = TypeVar("Compressed", sp.csr_array, sp.csc_array)


def encode(
    values: Tensor, bits: int, what: str, remedy: str, headroom_bits: int = 0, factor: float | None = None
) -> Tensor:
    """Real → ring: round(values·2^bits), or round(factor·values·2^bits) computed in float64: int64 of the same shape.

    ``headroom_bits`` are further top bits to leave free, for sums. ``what`` and ``remedy`` name values and setting in
    the ``RangeOverflow``: a value is not finite or does not fit into 63 − GUARD_BITS bits.
    """
    room = 63 - GUARD_BITS - headroom_bits
    encoded = torch.empty(values.shape, dtype=torch.int64)
    for part, out in _parts(values, encoded):
        # a power of two is exact in either precision
        scaled = part * 2.0**bits if factor is None else part.to(torch.float64) * (factor * 2.0**bits)
        smallest, largest = map(float, scaled.aminmax())
        if not (-(2.0**room) < smallest and largest < 2.0**room):  # true for NaN too
            raise RangeOverflow(_overflow_message(what, bits, room, remedy), key=what, value=room)
        out.copy_(scaled.round_())
    return encoded


def decode(elements: Tensor, bits: int, dtype: torch.dtype, what: str, remedy: str, factor: float = 1.0) -> Tensor:
    """Ring → real: factor·elements/2^bits, in float64; ``RangeOverflow``: guard bits are in use, it may be wrapped."""
    limit = 1 << (63 - GUARD_BITS)
    decoded = torch.empty(elements.shape, dtype=dtype)
    for part, out in _parts(elements, decoded):
        smallest, largest = map(int, part.aminmax())
        if largest >= limit or smallest < -limit:
            raise RangeOverflow(_overflow_message(what, bits, 63 - GUARD_BITS, remedy), key=what)
        out.copy_(part.to(torch.float64).mul_(factor * 2.0**-bits))
    return decoded


def _parts(values: Tensor, results: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pieces of two tensors side by side, small enough that what is computed on the way stays in the cache."""
    both = values.detach().reshape(-1), results.view(-1)
    return zip(*(torch.split(each, _PART) for each in both), strict=True) if values.numel() else iter(())


def _overflow_message(what: str, bits: int, room: int, remedy: str) -> str:
    return (
        f"{what} does not fit the ring: with {bits} fractional bits its values must be finite and stay below "
        f"2^{room - bits} in magnitude; {remedy}"
    )


def fractional_bits(values: Tensor, most: int = MAX_DETECTED_BITS) -> int:
    """The fewest fractional bits that hold ``values`` exactly, at most ``most`` (then values are rounded)."""
    bits = 0
    stored = values.values() if values.layout == torch.sparse_csr else values
    for part in torch.split(stored, _CHECKED_ROWS):
        numbers = part.to(torch.float64)
        while bits < most and not torch.equal(scaled := numbers * 2.0**bits, scaled.round()):
            bits += 1
        if bits == most:
            break
    return bits


@dataclass(frozen=True)
class StaticOperand:
    """A matrix A [N, F] that stays the same for a whole job and is multiplied many times, int64 (exact) or floating.

    ``times``: A·right, [F, d] → [N, d]; ``transposed_times``: Aᵀ·right, [N, d] → [F, d].
    """

    times: Callable[[Tensor], Tensor]
    transposed_times: Callable[[Tensor], Tensor]


def remade_operand(make: Callable[[], StaticOperand]) -> StaticOperand:
    """A static matrix that is made anew in every product, for those too large to keep."""
    return StaticOperand(lambda right: make().times(right), lambda right: make().transposed_times(right))


def _sparse_operand(matrix: sp.csr_array) -> StaticOperand:
    """A sparse static matrix in row slices for the thread pool.

    Both products go down the columns of a CSC matrix, and write all over a small result that stays in the cache. That
    takes two thirds of the time of a product row by row. ``times`` has blocks of rows for it, and the transposed
    product, which streams its right factor once, the same slices of A as columns of Aᵀ.
    """
    starts, slices = _row_slices(matrix)
    blocks = [_column_blocks(part, start) for part, start in zip(slices, starts, strict=False)]

    def times(right: Tensor) -> Tensor:
        operand = right.detach().contiguous().numpy()
        result = np.empty((matrix.shape[0], operand.shape[1]), np.result_type(matrix.dtype, operand.dtype))

        def multiply(part: list[tuple[slice, sp.csc_array]]) -> None:
            for rows, block in part:
                result[rows] = block @ operand

        in_parallel([partial(multiply, part) for part in blocks], "sparse")
        return torch.from_numpy(result)

    def transposed_times(right: Tensor) -> Tensor:
        operand = right.detach().contiguous().numpy()
        bounds = zip(slices, pairwise(starts), strict=True)
        work = [partial(operator.matmul, part.T, operand[start:stop]) for part, (start, stop) in bounds]
        return torch.from_numpy(reduce(operator.add, in_parallel(work, "sparse")))

    return StaticOperand(times, transposed_times)


def _column_blocks(matrix: sp.csr_array, start: int) -> list[tuple[slice, sp.csc_array]]:
    """Cut a CSR matrix, row ``start`` and below of a larger one, into CSC blocks: their rows there, and the blocks.

    A very sparse matrix has fewer and taller ones, so that pointers to columns take less memory than its entries.
    """
    rows, columns = matrix.shape
    height = max(_CACHED_ROWS, -(-_ENTRIES_PER_COLUMN * rows * columns // max(1, matrix.nnz)))
    cuts = [slice(cut, min(cut + height, rows)) for cut in range(0, rows, height)]
    return [(slice(start + cut.start, start + cut.stop), _with_int32_indices(matrix[cut].tocsc())) for cut in cuts]


def limb_operand(matrix: Tensor, device: torch.device, limbs: Limbs | None = None) -> StaticOperand:
    """A dense static int64 matrix A [N, F] whose limbs lie on a device, where products are computed.

    Right factors come from the CPU and results go back to it. Limbs of A and of Aᵀ take 16 bytes an element together
    with int8 limbs and 48 with float64.
    """
    cut, moved = limbs or limbs_of(device), matrix.to(device)

    def product(left: list[Tensor], rows: int, right: Tensor) -> Tensor:
        return _multiply_limbs(left, right.to(device), cut, rows).cpu()

    sides = [partial(product, _side_by_side(each, cut), len(each)) for each in (moved, moved.t())]
    return StaticOperand(*sides)


def dense_operand(matrix: Tensor, device: torch.device = CPU, *, twice: bool = False) -> StaticOperand:
    """A dense static matrix whose products are computed on ``device``; floating ones on the CPU.

    ``twice`` keeps Aᵀ beside A on the CPU: for as much memory again, the transposed product takes as long as
    the other, else half as long again.
    """
    if device.type != "cpu" and not matrix.is_floating_point():
        return limb_operand(matrix, device)
    matrix = matrix.contiguous()
    if twice:
        return StaticOperand(partial(matmul, matrix), partial(matmul, matrix.t().contiguous()))
    return StaticOperand(partial(matmul, matrix), partial(transposed_matmul, matrix))


def static_operand(
    matrix: Tensor, convert: Callable[[Tensor], Tensor], device: torch.device = CPU, *, twice: bool = False
) -> StaticOperand:
    """Wrap features [N, F], strided or sparse CSR, for repeated products in the layout that is faster at their density.

    ``convert`` maps stored values elementwise, zero to zero; dense products in the ring are
    computed on ``device``, and ``twice`` is as for ``dense_operand``.
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
            return dense_operand(convert(matrix), device, twice=twice)
        sparse = sp.csr_array(convert(matrix).numpy())
    if sparse.nnz >= _SPARSE_BELOW * max(rows * columns, 1):
        return dense_operand(torch.from_numpy(sparse.toarray()), device, twice=twice)
    return _sparse_operand(sparse)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """left·right for int64 (mod 2^64) or floating matrices; rows are divided over the machine's cores."""
    if left.is_floating_point() or left.is_meta:
        return left @ right
    out = torch.empty(left.shape[0], right.shape[1], dtype=torch.int64)
    kernel, right = _integer_kernel(), right.contiguous()
    in_parallel([partial(kernel, left[rows], right, out[rows]) for rows in _slices_per_core(left, right)], "dense")
    return out


def transposed_matmul(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right for int64 (mod 2^64) or floating matrices, without a transposed copy of all of ``left``."""
    if left.is_floating_point() or left.is_meta:
        return left.t() @ right
    right = right.contiguous()
    return reduce(
        torch.add,
        in_parallel(
            [partial(_transposed_part, left[rows], right[rows]) for rows in _slices_per_core(left, right)], "dense"
        ),
    )


def column_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ_i left_ij·right_ij of every column j, modulo the integers' ring: [n, d], [n, d] → [1, d]."""
    return (left * right).sum(0, keepdim=True)


def _slices_per_core(matrix: Tensor, right: Tensor) -> list[slice]:
    rows, work = matrix.shape[0], matrix.numel() * right.shape[1]
    parts = max(1, min(available_cores(), work // _WORK_PER_THREAD, rows))
    return [slice(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def _transposed_part(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right as (rightᵀ·left)ᵀ: ``right`` is the narrow one, cheap to transpose."""
    kernel, total = _integer_kernel(), torch.zeros(right.shape[1], left.shape[1], dtype=torch.int64)
    piece = torch.empty_like(total)
    for block, factor in zip(torch.split(left, _CACHED_ROWS), torch.split(right, _CACHED_ROWS), strict=True):
        kernel(factor.t().contiguous(), block, piece)
        total += piece
    return total.t().contiguous()


@cache
def _integer_kernel() -> Callable[[Tensor, Tensor, Tensor], None]:
    """Choose the faster int64 product (left, right, out) on this CPU: FBGEMM's needs AVX-512."""
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        return _direct_product
    return _negated_product


def _direct_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    if left.shape[1] <= _LONG_INNER:
        torch.mm(left, right, out=out)
        return
    out.zero_()  # and by pieces of the inner dimension, whose part of the right factor stays in the cache
    for part, factor in zip(torch.split(left, _CACHED_ROWS, dim=1), torch.split(right, _CACHED_ROWS), strict=True):
        torch.addmm(out, part, factor, out=out)


def _negated_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    torch.addmm(zero, left, right, beta=0, alpha=-1, out=out).neg_()


def _row_slices(matrix: sp.csr_array) -> tuple[list[int], list[sp.csr_array]]:
    """Cut a CSR matrix into row slices of about equal numbers of entries: their bounds, and the slices."""
    rows, parts = matrix.shape[0], min(_SLICES, max(1, matrix.nnz // _ENTRIES_PER_SLICE))
    bounds = np.searchsorted(matrix.indptr, [matrix.nnz * part // parts for part in range(1, parts)])
    starts = [0, *map(int, bounds), rows]
    return starts, [_with_int32_indices(matrix[a:b]) for a, b in pairwise(starts)]


def _with_int32_indices(matrix: Compressed) -> Compressed:
    if max(*matrix.shape, matrix.nnz) < np.iinfo(np.int32).max:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool(kind: str) -> Executor:
    """Return a kind's thread pool: online sparse products must not queue behind dense ones, which run ahead."""
    return ThreadPoolExecutor(available_cores(), thread_name_prefix=f"ring {kind}")


def in_parallel(work: Sequence[Callable[[], Result]], kind: str) -> list[Result]:
    """Run tasks by a kind's threads, or here where there is one, and return what each gives, in their order."""
    if len(work) == 1:
        return [work[0]()]
    return [done.result() for done in [_pool(kind).submit(task) for task in work]]


def rounded(values: Tensor, bits: int) -> Tensor:
    """Round real values to ``bits`` fractional bits, as ``encode`` does, and return them as float64."""
    return torch.ldexp(torch.ldexp(values.to(torch.float64), torch.tensor(bits)).round(), torch.tensor(-bits))
