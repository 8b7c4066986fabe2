"""The twin: the same program on floating numbers in one place, with nothing secret and nothing rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.machine import DTYPES, Bilinear, HiddenGraph, Machine, Ring
from veilgraph.mpc.sealed.noise import rounded_gaussian
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire


@dataclass(frozen=True)
class PlainGraph(HiddenGraph):
    """Edges that everybody sees."""

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int
    edges: Tensor
    weights: Tensor


class PlainMachine(Machine):
    """All holders in one; what a holder alone would give is looked up by its name.

    Args:
        holders: in the job's order.
        noise: source of it.
    """

    exact: ClassVar[bool] = False

    def __init__(self, holders: Sequence[PartyId], noise: SecretSource = system_secrets) -> None:
        super().__init__(holders, "")
        self._noise = noise

    @override
    def share(self, wire: Wire) -> Tensor:
        assert wire.public is not None
        return wire.public

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        assert values is not None
        return _wire(values.to(torch.float64), bits)

    @override
    def constant(self, values: Tensor, bits: int = 0) -> Wire:
        return _wire(values.to(torch.float64) * 2.0**-bits, bits)

    @override
    def summands(
        self, values: Tensor | None, shape: Sequence[int], bits: int, *, of: PartyId | None = None
    ) -> Summands:
        values = torch.zeros(tuple(shape)) if values is None else values
        return Summands(values.to(torch.float64), bits)

    @override
    def split(self, wire: Wire) -> Summands:
        assert wire.public is not None
        return Summands(wire.public, wire.bits)

    @override
    def product(self, function: Bilinear, left: Wire, right: Wire) -> Summands:
        assert left.public is not None
        assert right.public is not None
        return Summands(function(left.public, right.public), left.bits + right.bits)

    @override
    def triple(self, left: Wire, middle: Wire, right: Wire) -> Summands:
        first = self.product(torch.mul, left, middle)
        return self.product(torch.mul, _wire(first.part, first.bits), right)

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        natural = summands.bits - shift
        said = natural if bits is None else bits
        return replace(_wire(summands.part * 2.0 ** (natural - said), said), mask=_zeros(summands.part, ring))

    @override
    def noised(self, summands: Summands, deviation: float) -> Summands:
        if not deviation:
            return summands
        noise = rounded_gaussian(summands.shape, deviation, summands.bits, self._noise)
        return Summands(summands.part + noise.to(torch.float64) * 2.0**-summands.bits, summands.bits)

    @override
    def negative(self, wire: Wire) -> Bit:
        assert wire.public is not None
        return Bit(wire.public < 0, wire.mask)

    @override
    def value(self, bit: Bit) -> Summands:
        assert bit.public is not None
        return Summands(bit.public.to(torch.float64), 0)

    @override
    def gate(self, bit: Bit, wire: Wire) -> Summands:
        assert wire.public is not None
        return Summands(torch.where(bit.public.bool(), wire.public, 0.0), wire.bits)  # type: ignore[union-attr]

    @override
    def choose(self, bit: Bit, left: Wire, right: Wire) -> Summands:
        """Select, for (l − r) + r may differ from l in floating point."""
        assert left.public is not None
        return Summands(torch.where(bit.public.bool(), left.public, right.public), left.bits)  # type: ignore[union-attr,arg-type]

    @override
    def hidden_graph(
        self,
        owner: PartyId,
        edges: Tensor | None,
        nodes: int,
        padded: int,
        weights: Tensor | None = None,
        weight_bits: int = 0,
    ) -> PlainGraph:
        assert edges is not None
        counts = torch.ones(edges.shape[1], dtype=torch.float64) if weights is None else weights.to(torch.float64)
        return PlainGraph(owner, nodes, nodes + padded, weight_bits, edges, counts)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        assert wire.public is not None
        total = wire.public.clone()
        for graph in graphs:
            assert isinstance(graph, PlainGraph)
            total.index_add_(0, graph.edges[1], wire.public[graph.edges[0]] * graph.weights[:, None])
        return Summands(total, wire.bits + graphs[0].weight_bits)

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, wire: Wire) -> Summands:
        assert wire.public is not None
        assert rows is not None
        return Summands(wire.public[rows], wire.bits)

    @override
    def reveal(self, wire: Wire, to: PartyId) -> Tensor:
        assert wire.public is not None
        return wire.public


def _wire(values: Tensor, bits: int) -> Wire:
    return Wire(values, _zeros(values, 64), bits)


def _zeros(like: Tensor, ring: int) -> Tensor:
    return torch.zeros((), dtype=DTYPES[ring]).expand(like.shape)
