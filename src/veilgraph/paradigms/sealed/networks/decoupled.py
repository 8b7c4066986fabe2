"""Networks on rows that are propagated once: linear propagation does not depend on weights, so no step has a hop in it.

Rows of P^K·X are wanted at T training nodes that nobody but the label holder may know. Either T hidden one-hot columns
are propagated and multiplied with every holder's columns, or the columns themselves are propagated and the label holder
picks its rows: what is fewer is propagated. Prediction likewise propagates either what the first weights make of the
columns, or the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, joined
from veilgraph.paradigms.sealed.networks.network import Kept, Network, Parts, Passed, one_hot


class Decoupled(Network):
    """The head of it is a linear model; ``Perceptron`` has a hidden layer."""

    rows: Wire | None = None
    """Of the training nodes: [T, all columns]."""
    _everything: Wire | None = None
    """P^K·X of every relation, side by side, where it has been computed."""

    @property
    def width(self) -> int:
        """Of what the first weights make of a row."""
        return self.context.sizes.classes

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(self.row_columns, self.context.sizes.classes)]

    @override
    def parts(self, holder: PartyId) -> Parts:
        """Own blocks of all holders come first, then those of each relation."""
        place, found = self.place(holder), Parts()
        width = place.stop - place.start
        if self.own_columns:
            start = place.start * self.blocks
            found |= {f"own.{hops}": _rows(start + hops * width, width) for hops in range(self.blocks)}
        if self.pooled_columns:
            start = self.own_columns + place.start
            for number, name in enumerate(self.relation_names):
                found[name] = _rows(start + number * self.pooled_columns, width)
        return found

    @property
    def pooled_columns(self) -> int:
        """How many are propagated."""
        return sum(self.context.sizes.columns.values())

    @property
    def row_columns(self) -> int:
        """Of a row that is trained on: its own ones, and for each relation the propagated ones."""
        return self.own_columns + len(self.relations) * self.pooled_columns

    @property
    def own_columns(self) -> int:
        """How many stay as they are."""
        return 0

    def own(self) -> Sequence[Wire]:
        """Holders' columns that stay beside the propagated ones as they are."""
        return []

    def pooled(self) -> Sequence[Wire]:
        """Holders' columns that are propagated."""
        return self.columns

    @override
    def prepare(self) -> None:
        super().prepare()
        self.machine.at("rows")
        self.rows = self._training_rows()

    @override
    def keeps(self) -> Kept:
        return super().keeps() | {"rows": ((self.context.sizes.training, self.row_columns), BITS)}

    @override
    def kept(self) -> dict[str, Wire | None]:
        return super().kept() | {"rows": self.rows}

    @override
    def keep(self, found: Mapping[str, Wire]) -> None:
        super().keep(found)
        self.rows = found["rows"]

    def _training_rows(self) -> Wire:
        machine, sizes = self.machine, self.context.sizes
        owner, rows, count = self.hidden_training_rows(slice(None))
        if sizes.training >= self.row_columns:
            everything = joined([*self.own(), self._propagated()] if self.pooled() else self.own(), 1)
            return self.opened(machine.pick(owner, rows, count, everything))
        columns = None if rows is None else one_hot(rows, sizes.nodes).T.contiguous()
        start = machine.put(owner, columns, (sizes.nodes, count), BITS)
        found = [self.opened(machine.product(matmul, start.T, part)) for part in self.own()]
        if self.pooled():
            for relation in self.relations:
                moved = self.spread(relation, start, transposed=True, narrow=True).T
                found += [self.opened(machine.product(matmul, moved, part)) for part in self.pooled()]
        return joined(found, 1)

    def _propagated(self) -> Wire:
        """Once a session."""
        if self._everything is None:
            narrow, columns = self.context.plan.unit_rows, self.pooled()
            self._everything = joined([self.spread(each, *columns, narrow=narrow) for each in self.relations], 1)
        return self._everything

    def first(self, weight: Wire) -> Wire:
        """What the first weights make of every node's row: [N, d]."""
        own, pooled, beside = self.own(), self.pooled(), self.own_columns
        if not pooled:
            return self.from_columns(own, weight)
        if self._everything is not None or self.pooled_columns <= self.width:
            return self.from_columns([*own, self._propagated()], weight)
        starts = range(beside, self.row_columns, self.pooled_columns)
        parts = [self.from_columns(pooled, weight[start : start + self.pooled_columns]) for start in starts]
        moved = self.moved(joined(parts, 1))
        return self.from_columns(own, weight[:beside]) + moved if own else moved

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        assert self.rows is not None
        return Passed(self.linear(self.rows[wanted], weights[0]), wanted, [])

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        assert self.rows is not None
        return [self.machine.product(transposed_matmul, self.rows[passed.wanted], error)]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        return self.first(weights[0])


def _rows(start: int, count: int) -> tuple[slice, slice]:
    return slice(start, start + count), slice(None)


class Perceptron(Decoupled):
    """With one hidden layer of ReLU."""

    @property
    @override
    def width(self) -> int:
        return self.context.plan.hidden

    @property
    @override
    def shapes(self) -> list[tuple[int, int]]:
        return [(self.row_columns, self.width), (self.width, self.context.sizes.classes)]

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        assert self.rows is not None
        hidden, gate = self.activated(self.linear(self.rows[wanted], weights[0]))
        return Passed(self.linear(hidden, weights[1]), wanted, [hidden, gate])

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        hidden, gate = passed.inner
        assert isinstance(hidden, Wire)
        assert isinstance(gate, Bit)
        below = super().backward(weights, passed, self.hidden_error(error, weights[1], gate))
        return [*below, self.machine.product(transposed_matmul, hidden, error)]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        return self.linear(self.activated(self.first(weights[0]))[0], weights[1])
