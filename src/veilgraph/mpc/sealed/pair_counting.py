"""What a program costs two holders to whom nobody deals, on shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import NOBODY, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair import bits
from veilgraph.mpc.pair.exchange import ProductCosts
from veilgraph.mpc.pair.peer import Exchanges
from veilgraph.mpc.pair.products import Side
from veilgraph.mpc.sealed.correlations import Operation, Result
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.mpc.sealed.pair_stocks import Stocks
from veilgraph.mpc.sealed.wire import DTYPES, Ring, Summands, Wire, concatenate


class PairCountingMachine(PairMachine):
    """Counts, from the first of two holders' side, every message that a program would send; ``counted`` has it.

    ``foreseen`` is another's ``asked``, that of the same program: columns that it multiplies by each factor.
    """

    def __init__(self, holders: Sequence[PartyId], foreseen: Sequence[int] = ()) -> None:
        Machine.__init__(self, holders, holders[0], NOBODY)
        self.counted = CountingMachine(holders, NOBODY)
        self._together = _Counted(self.counted)
        self._stocks = Stocks(self._together, self._zeros, lambda: foreseen)

    @property
    def asked(self) -> list[int]:
        """Columns that each factor was multiplied by, factors in the order of their first use."""
        return self._stocks.asked

    @override
    def at(self, place: str) -> None:
        self.counted.at(place)

    @override
    def run(self, operation: Operation[Result]) -> Result:
        return self.counted.run(operation)

    @staticmethod
    @override
    def _wire(share: Tensor, bits: int, owner: PartyId | None = None) -> Wire:
        return Wire(None, share, bits, owner)

    @override
    def _zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        return self._wire(self._zeros(shape, torch.int64), bits, owner)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        self.counted.widest = max(self.counted.widest, prod(summands.shape))
        return super().open(summands, shift, ring, bits=bits)

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> HiddenGraph:
        return HiddenGraph(owner, nodes, nodes + padded, weight_bits)

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, *wires: Wire) -> Summands:
        wire = concatenate(wires, 1)
        (nodes, columns), own = wire.shape, None if owner == self.party else wire.mask
        found = self._together.hop(None, own, (count, nodes), columns, 64, 0)
        return Summands(found, wire.bits)


class _Counted:
    """``Together`` of the first holder, on shapes: a matrix that it gives to ``hop`` is None as well."""

    def __init__(self, counted: CountingMachine) -> None:
        self._counted, self._products = counted, ProductCosts()
        counted.count_exchanges(bits.setup_exchanges())

    def _result(self, exchanges: Exchanges, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        self._counted.count_exchanges(exchanges)
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    def matmul(
        self,
        left: Tensor | None,
        right: Tensor | None,
        sizes: tuple[int, int, int],
        multiplies: Side | None,
    ) -> Tensor:
        exchanges = self._products.matmul(sizes, multiplies, left_leads=left is not None)
        return self._result(exchanges, (sizes[0], sizes[2]))

    def scale(self, factors: Tensor | None, rows: Tensor | None, sizes: tuple[int, int]) -> Tensor:
        return self._result(self._products.scale(*sizes, factors_lead=factors is not None), sizes)

    def masked(self, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = HEADER_BYTES + prod(shape) * dtype.itemsize
        return self._result([(size, 0) if own is not None else (0, size)], shape, dtype)

    def inner(self, own: Tensor, bits: int = 64) -> Tensor:
        terms, entries = own.shape
        return self._result(self._products.inner(terms, entries, bits), (entries,))

    def hop(
        self,
        matrix: sp.csr_array | None,
        rows: Tensor | None,
        shape: tuple[int, int],
        columns: int,
        ring: Ring,
        bits: int,
    ) -> Tensor:
        exchanges = self._products.hop(shape, columns, ring, bits, matrix_leads=rows is None)
        return self._result(exchanges, (shape[0], columns), DTYPES[ring])

    def wraps(self, own: Tensor, dtype: torch.dtype) -> Tensor:
        return self._result(bits.wraps_exchanges(own.numel(), dtype), own.shape, dtype)

    def arithmetic(self, share: Tensor) -> Tensor:
        return self._result(bits.wraps_exchanges(share.numel()), share.shape)

    def gate(self, bit: Tensor, number: Tensor) -> Tensor:
        return self._result(bits.gate_exchanges(number.numel()), number.shape)

    def negative(self, share: Tensor, width: int = 64) -> Tensor:
        return self._result(bits.negative_exchanges(share.numel(), width), share.shape, torch.bool)
