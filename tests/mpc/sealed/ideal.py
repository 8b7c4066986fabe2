"""What two holders compute together, by somebody whom both tell everything: the real protocols give the same."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


class Ideal:
    """The ideal functionality of both holders; ``calls`` counts what they ask for, ``shown`` has what one sees.

    ``hops``: columns of each hop.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.shown: list[Tensor] = []
        self.hops: list[int] = []
        self._barrier = threading.Barrier(2, timeout=60)
        self._told: list[object] = [None, None]
        self._shares: list[Tensor] = []

    def end(self, *, leads: bool) -> "IdealEnd":
        return IdealEnd(self, 0 if leads else 1)

    def compute(
        self, place: int, name: str, own: object, function: Callable[[object, object], Tensor], *, bits: bool
    ) -> Tensor:
        self._told[place] = own
        self._barrier.wait()
        if place == 0:
            self.calls[name] = self.calls.get(name, 0) + 1
            whole = function(*self._told)
            if bits:
                first = torch.randint(0, 2, whole.shape).bool()
                self._shares = [first, first ^ whole]
            else:
                first = torch.from_numpy(np.random.default_rng().integers(-(2**63), 2**63, whole.shape)).to(whole.dtype)
                self._shares = [first, whole - first]
        self._barrier.wait()
        found = self._shares[place]
        self._barrier.wait()
        return found

    def passed(self, place: int, own: Tensor | None) -> Tensor:
        """What one holder shows the other; ``shown`` keeps all of it."""
        self._told[place] = own
        self._barrier.wait()
        (found,) = [each for each in self._told if isinstance(each, Tensor)]
        if place == 0:
            self.shown.append(found)
        self._barrier.wait()
        return found


class IdealEnd:
    def __init__(self, ideal: Ideal, place: int) -> None:
        self._ideal, self._place = ideal, place

    def _ask(self, name: str, own: object, function: Callable[..., Tensor], *, bits: bool = False) -> Tensor:
        return self._ideal.compute(self._place, name, own, function, bits=bits)

    def matmul(
        self,
        left: Tensor | None,
        right: Tensor | None,
        sizes: tuple[int, int, int],
        multiplies: str | None,
    ) -> Tensor:
        n, k, m = sizes
        assert (left is None) != (right is None)
        assert left is None or tuple(left.shape) == (n, k)
        assert right is None or tuple(right.shape) == (k, m)

        def multiply(*pairs: Sequence[Tensor | None]) -> Tensor:
            (one,) = [each for each, _ in pairs if each is not None]
            (other,) = [each for _, each in pairs if each is not None]
            return torch.from_numpy(one.numpy() @ other.numpy())

        return self._ask("matmul", (left, right), multiply)

    def scale(self, factors: Tensor | None, rows: Tensor | None, sizes: tuple[int, int]) -> Tensor:
        assert (factors is None) != (rows is None)
        assert factors is None or tuple(factors.shape) == sizes[:1]
        assert rows is None or tuple(rows.shape) == sizes

        def multiply(*pairs: Sequence[Tensor | None]) -> Tensor:
            (one,) = [each for each, _ in pairs if each is not None]
            (other,) = [each for _, each in pairs if each is not None]
            return one[:, None] * other

        return self._ask("scale", (factors, rows), multiply)

    def masked(self, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        assert own is None or (tuple(own.shape), own.dtype) == (shape, dtype)
        return self._ideal.passed(self._place, own)

    def inner(self, own: Tensor, bits: int = 64) -> Tensor:
        assert own.ndim == 2

        def multiply(one: Tensor, other: Tensor) -> Tensor:
            found = (one * other).sum(0)
            assert bits == 64 or not found.numel() or int(found.abs().max()) < 1 << bits
            return found

        return self._ask("inner", own, multiply)

    def hop(
        self,
        matrix: sp.csr_array | None,
        rows: Tensor | None,
        shape: tuple[int, int],
        columns: int,
        ring: int,
        bits: int,
    ) -> Tensor:
        self._ideal.hops += [columns] if rows is not None else []
        assert (matrix is None) != (rows is None)
        assert matrix is None or matrix.shape == shape
        assert matrix is None or not matrix.nnz or abs(matrix).sum(1).max() <= 1 << bits
        assert rows is None or tuple(rows.shape) == (shape[1], columns)

        def multiply(*pairs: tuple[sp.csr_array | None, Tensor | None]) -> Tensor:
            (one,) = [each for each, _ in pairs if each is not None]
            (other,) = [each for _, each in pairs if each is not None]
            return torch.from_numpy(one @ other.numpy()).to(torch.int32 if ring == 32 else torch.int64)

        return self._ask("hop", (matrix, rows), multiply)

    def wraps(self, own: Tensor, dtype: torch.dtype) -> Tensor:
        return self._ask("wraps", own, lambda one, other: (one & other).to(dtype))

    def arithmetic(self, share: Tensor) -> Tensor:
        return self._ask("arithmetic", share, lambda one, other: (one ^ other).to(torch.int64))

    def gate(self, bit: Tensor, number: Tensor) -> Tensor:
        return self._ask("gate", (bit, number), lambda one, other: (one[0] ^ other[0]) * (one[1] + other[1]))

    def negative(self, share: Tensor, bits: int = 64) -> Tensor:
        def below(one: Tensor, other: Tensor) -> Tensor:
            return (one + other) >> (bits - 1) & 1 == 1

        return self._ask("negative", share, below, bits=True)
