"""Networks on rows that are propagated once: linear propagation does not depend on weights, so no step has a hop in it.

Rows of P^K·X are wanted at T training nodes that nobody but the label holder may know. Either T hidden one-hot columns
are propagated and multiplied with every holder's columns, or the columns themselves are propagated and the label holder
picks its rows: what is fewer is propagated. Prediction likewise propagates either what the first weights make of the
columns, or the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, one_hot_of_largest
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, joined
from veilgraph.paradigms.sealed.networks.network import Kept, Network, Parts, Passed, Propagation, Suits, one_hot
from veilgraph.paradigms.sealed.plan import Context, OwnData, shrink


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
    def kept(self) -> dict[str, Kept]:
        return super().kept() | {"rows": Kept(self, "rows", (self.context.sizes.training, self.row_columns), BITS)}

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


class Linear(Decoupled):
    """SGC (Wu et al. 2019, arXiv:1902.07153): softmax(P^K·X·W), whose loss is convex."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=4.0, weight_decay=1e-3)
    words: ClassVar[str] = (
        "A linear model on rows that are propagated over all holders' edges together once, {hops} far"
    )

    @override
    def initial(self, bits: int) -> list[Tensor]:
        return [torch.zeros(shape, dtype=torch.int64) for shape in self.shapes]


class Mlp(Perceptron):
    """softmax(relu(P^K·X·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=2.0, weight_decay=1e-2)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on rows that are propagated over all holders' edges together once, {hops} far"
    )


class Sign(Perceptron):
    """SIGN (Frasca et al. 2020, arXiv:2004.11198): softmax(relu([X, P_i·X, P_i²·X, …, P^K·X]·W₁)·W₂).

    Every holder makes the hops of its own columns over its own edges by itself, in plaintext and for nothing. What only
    the pooled graph has is one more block, where the job asks for pooled hops.
    """

    suits: ClassVar[Suits] = Suits(hops=0, learning_rate=1.0, weight_decay=5e-3)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on every holder's columns and their hops over its own edges, "
        "{own_hops} far, and pooled ones, {hops} far"
    )

    @property
    @override
    def pooled_columns(self) -> int:
        return self.own_columns // self.blocks if self.context.plan.hops else 0

    @property
    @override
    def own_columns(self) -> int:
        return sum(self.context.sizes.columns.values())

    @override
    def own(self) -> Sequence[Wire]:
        return self.columns

    @override
    def pooled(self) -> Sequence[Wire]:
        if not self.context.plan.hops:
            return []
        return [part[:, : part.shape[1] // self.blocks] for part in self.columns]


def own_blocks(own: OwnData, hops: int, *, symmetric: bool) -> Tensor:
    """A holder's columns and their hops over its own edges, side by side: [N, (hops + 1)·F].

    Args:
        own: columns, edges and their weights.
        hops: how many.
        symmetric: the normalisation by the holder's own degrees.
    """
    nodes, (sources, targets) = len(own.features), own.edges.numpy()
    degrees = 1.0 + own.degrees(nodes)
    into, out = (degrees.rsqrt(), degrees.rsqrt()) if symmetric else (degrees.reciprocal(), torch.ones_like(degrees))
    counts = np.ones(len(sources)) if own.edge_weights is None else own.edge_weights.numpy()
    adjacency = csr_array((counts, (targets, sources)), (nodes, nodes)) + eye_array(nodes, format="csr")
    blocks = [own.features]
    for _ in range(hops):
        blocks.append(torch.from_numpy(adjacency @ (blocks[-1] * out[:, None]).numpy()) * into[:, None])
    return torch.cat(blocks, 1)


VOTE_BITS: Final = 8
"""Of noisy counts: up to 2^21 votes and the noise on them fit Z_2^32."""
_SHRINK_BITS: Final = 24
VOTES: Final = "weight.votes"
"""Name of what is kept of them, with the weights: a prediction needs both."""


class Voting(Linear):
    """With ``privacy``: softmax([P^K·X, s·H]·W), P over the label holder's edges, H the noisy votes over the others'.

    Half of the steps train on rows that are propagated over the label holder's own edges. Then every node votes for the
    class that it is taken for, in the rows of its neighbours over the other holders' edges, with noise (``plan``). What
    comes of it is C more columns, which the other half of the steps train on as well, and every prediction uses again.
    """

    words: ClassVar[str] = (
        "A linear model on rows that are propagated over the label holder's own edges once, {hops} far, and on votes "
        "of neighbours over all other holders' edges, counted once, with noise"
    )

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        owner, holders = context.label_party, context.sizes.edges
        self.relations = [Propagation(machine, context, [owner])]
        self._others = Propagation(machine, context, [holder for holder in holders if holder != owner])
        self.votes = self._none(context.sizes.nodes)
        """[N, C], shrunk; zero until they are counted."""
        self._picked = self._none(context.sizes.training)

    def _none(self, rows: int) -> Wire:
        return self.machine.constant(torch.zeros((rows, self.context.sizes.classes), dtype=torch.int64), BITS)

    @property
    @override
    def shapes(self) -> list[tuple[int, int]]:
        classes = self.context.sizes.classes
        return [(self.row_columns + classes, classes)]

    @property
    @override
    def _computes_roots(self) -> bool:
        return False

    @override
    def enter(self, *, trains: bool) -> None:
        super().enter(trains=trains)
        if self.context.plan.hops:
            self.relations[0].enter_roots()
        if trains:
            self._others.enter(transposed=False)

    @override
    def arrive(self, step: int, weights: Sequence[Wire]) -> None:
        if step != self.context.plan.steps // 2:
            return
        machine, deviation = self.machine, self.context.plan.votes
        assert deviation is not None
        machine.at("votes")
        votes = machine.open(one_hot_of_largest(machine, self.first(self._of_rows(weights))), ring=32)
        sums = self._others.neighbours(votes).scaled(1.0, VOTE_BITS)
        noisy = machine.open(machine.noised(sums, deviation))
        shrunk = machine.split(noisy).scaled(shrink(deviation), _SHRINK_BITS)
        self.votes = machine.open(shrunk, shrunk.bits - BITS)
        self._pick()

    def _pick(self) -> None:
        owner, rows, count = self.hidden_training_rows(slice(None))
        self._picked = self.machine.open(self.machine.pick(owner, rows, count, self.votes))

    def _of_rows(self, weights: Sequence[Wire]) -> Wire:
        return weights[0][: self.row_columns]

    def _inputs(self, wanted: slice) -> Wire:
        assert self.rows is not None
        return joined([self.rows[wanted], self._picked[wanted]], 1)

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        return Passed(self.linear(self._inputs(wanted), weights[0]), wanted, [])

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        return [self.machine.product(transposed_matmul, self._inputs(passed.wanted), error)]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        voted = self.opened(self.machine.product(matmul, self.votes, weights[0][self.row_columns :]))
        return self.first(self._of_rows(weights)) + voted

    @override
    def kept(self) -> dict[str, Kept]:
        sizes = self.context.sizes
        return super().kept() | {VOTES: Kept(self, "votes", (sizes.nodes, sizes.classes), BITS, predicts=True)}

    @override
    def resume(self) -> None:
        self._pick()
