"""The network of sealed jobs: logits Z·W + relu(Z·U)·V on rows Z that are made once, before any step.

Where training rows Z_T are few, the first weights W are not stepped: c·W_0 + Z_Tᵀ·A is, in A. The gradient of W is
Z_Tᵀ·E, so a step adds to A what it would add to W but for Z_Tᵀ, and Z_T·W = c·Z_T·W_0 + (Z_T·Z_Tᵀ)·A. What a step
multiplies, opens and tests is then as small as the rows are few. c is public: what decay leaves of W_0. Likewise
Z_V·W_0 and Z_V·Z_Tᵀ of validation rows, made once, may stand for hops of what W makes of all nodes in each evaluation.

Where rows of length 1 count differently in the loss, Z_Tᵀ·G·A stands for Z_Tᵀ·A, with what each counts on the diagonal
of G: every row of A then changes by its own error, and nothing is multiplied by G in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from hashlib import sha256
from operator import add
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from veilgraph.core.memory import give_back_freed_memory
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, WHOLE_BITS, multiply_open, relu
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, concatenate, joined, row_slices
from veilgraph.paradigms.sealed.networks.rows import Rows
from veilgraph.paradigms.sealed.plan import Context, Trial, hops_of, is_near

Parts = dict[str, slice]  # name → rows of the first weights
_FEW_SUMMED: Final = 1 << 9  # of training rows' errors, each with 44 bits, velocities up to 2^8 fit the ring


@dataclass(frozen=True)
class ForwardState:
    """What a forward pass leaves for the backward one: rows [B, columns], logits [B, C], hidden units and their gates.

    ``left`` is the dropout factor of the hidden units: int64 [B, width], 0 or 2; or 1.
    """

    rows: Wire
    logits: Wire
    hidden: tuple[Wire, Bit] | None
    left: Tensor | int = 1


class Network(Rows):
    """One party's part in the network of the trial ``trial``: forward and backward pass on its rows, and prediction."""

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        self.trial = context.plan.trials[0]
        self._of_trial: dict[Trial, tuple[Wire, Wire]] = {}
        self._products: dict[tuple[Trial, bool], tuple[Wire, Wire]] = {}

    def anew(self) -> Self:
        """Return a network on the same rows that has computed nothing else yet."""
        found = self.aside()
        found._of_trial, found._products = {}, {}
        return found

    def aside(self) -> Self:
        """Return a network that has what this one has computed, and notes tests of its own."""
        found = copy(self)
        found.tests = []
        return found

    @property
    def width(self) -> int:
        """Outputs of the first weights: C logits and the trial's hidden units."""
        return self.width_of(self.trial)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of the trial's weights: W and U side by side, and V where it is deep."""
        classes = self.context.sizes.classes
        first = self.row_width(self.trial), self.width
        return [first, (self.width - classes, classes)] if self.trial.deep else [first]

    @property
    def sums_rows(self) -> bool:
        """``sums_rows_of`` the trial."""
        return self.sums_rows_of(self.trial)

    @property
    def _weighs_products(self) -> bool:
        """Whether products of rows are multiplied by what these count; those of standardised columns are large."""
        return self.sums_rows and not self.context.plan.standard

    @property
    def learned_shapes(self) -> list[tuple[int, int]]:
        """Shapes of what steps change: the weights, or A [T, width] in place of the first."""
        first, *more = self.shapes
        return [(self.context.sizes.training, self.width) if self.sums_rows else first, *more]

    def parts(self, holder: PartyId) -> Parts:
        """Rows of the trial's first weights that multiply a holder's own columns, by name of the block.

        ``own``: as put in; ``neighbours``, ``quantiles``, ``boosting``: as ``inputs`` makes them; ``pooled.k``: after k
        hops over all edges together; ``each.k.B``: over holder B's. The hidden layer has no part of one holder's.
        """
        found, start = Parts(), 1
        for block in self.trial.blocks:
            for name in self.relations.get(block, {block: None}):
                for other in self.context.sizes.columns:
                    size = self.context.width_of(other, block)
                    if other == holder and size:
                        found[name] = slice(start, start + size)
                    start += size
        return found

    def resume(self) -> None:
        """Drop what was cached of ``rows``, after a resumed training has restored them."""
        self._of_trial.clear()

    def leave_rows(self) -> None:
        """Let go of what only training needs: rows of training and validation nodes, and products of them."""
        self.rows = None
        self._of_trial.clear()
        self._products.clear()

    def arrive(self, step: int) -> None:
        """Prepare for a step of the job, counted from 0, by whose place in its trial dropout is drawn."""
        self._place = self.context.plan.place_of(step)

    def finish(self, weights: Sequence[Wire]) -> None:
        """Hook after the last step of the job, with its weights."""

    def told(self) -> Wire | None:
        """What the label holder learns of every node beside predictions: [N, C] noisy votes; None without them."""
        return None

    def initial(self, bits: int) -> list[Tensor]:
        """Draw the trial's public initial weights, int64 of 2^−bits: W is zero, U and V as Glorot and Bengio (2010)."""
        generator = torch.Generator().manual_seed(self.context.plan.seed)

        def glorot(rows: int, columns: int) -> Tensor:
            drawn = torch.empty((rows, columns), dtype=torch.float64).uniform_(-1, 1, generator=generator)
            return drawn.mul_((6 / (rows + columns)) ** 0.5 * 2.0**bits).round_().to(torch.int64)

        (rows, width), *second = self.shapes
        classes = self.context.sizes.classes
        return [
            torch.cat(
                [torch.zeros((rows, classes), dtype=torch.int64), *([glorot(rows, width - classes)] * len(second))], 1
            ),
            *(glorot(*shape) for shape in second),
        ]

    def forward(self, learned: Sequence[Wire], wanted: slice, left: float, counts: Wire | None = None) -> ForwardState:
        """Compute logits of the ``wanted`` training rows, from what steps change; ``left``: c of ``sums_rows_of``.

        ``counts``: what each training row counts, [T, 1], the same in all steps; None: 1.
        """
        rows = self._trial_rows()[wanted]
        if self.sums_rows:
            made = self._made_of_products(*self._row_products(counts, judged=False), learned[0], left)
        else:
            made = self.machine.product(matmul, rows, learned[0])
        if not self.trial.deep:  # nothing is multiplied by logits themselves, so they need not be cut
            return ForwardState(rows, self.opened(made, made.bits), None)
        hidden = made[:, self.context.sizes.classes :]
        opened, positive = self.machine.both(  # signs are found while what they choose is cut, which saves a round
            lambda: self.opened(made),
            lambda: ~self.machine.negative(self.machine.open(hidden), WHOLE_BITS),
        )
        return self._head(learned, rows, opened, self._left(len(rows.mask)), positive=positive, cuts=False)

    def _left(self, rows: int) -> Tensor | int:
        """Public dropout factors of a step's hidden units, int64 [rows, hidden], 0 or 2; 1 if the trial drops none."""
        plan = self.context.plan
        if not self.trial.drops:
            return 1
        drawn = sha256(f"{plan.seed}, step {self._place}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(drawn[:7], "big"))
        return 2 * torch.randint(0, 2, (rows, plan.hidden * self.trial.deep), generator=generator)

    def _row_products(self, counts: Wire | None, *, judged: bool) -> tuple[Wire, Wire]:
        """Multiply training rows, or all ``judged`` ones, by W_0 and Z_Tᵀ·G/2^s, once a trial: [T or V, width], [·, T].

        W_0 is divided by 2^s likewise. Its columns of classes are zero, and not multiplied.
        """
        if (self.trial, judged) not in self._products:
            classes, rows = self.context.sizes.classes, self._training_rows()
            begun = self.machine.constant(self.initial(BITS)[0], BITS)
            both = concatenate([begun[:, classes:], rows.T], 1).halved(self.row_shift(self.trial))
            made = self._picked(self.effective(both)) if judged else self.linear(rows, both)
            hidden = self.width - classes
            products = made[:, hidden:]  # the same wire at every step, as products by it are made ahead
            if counts is not None and self._weighs_products:
                products = self.opened(self.machine.product(torch.mul, products, counts.T))
            self._products = {key: of for key, of in self._products.items() if key[0] == self.trial}
            self._products[self.trial, judged] = made[:, :hidden].map(partial(pad, pad=(classes, 0))), products
        return self._products[self.trial, judged]

    def _made_of_products(self, begun: Wire, products: Wire, learned: Wire, left: float) -> Summands:
        """Multiply rows by c·W_0 + Z_Tᵀ·G·A, of A ``learned`` and c ``left``, given their ``_row_products``."""
        made = self.machine.product(matmul, products, learned)
        return (made + self.machine.split(begun).scaled(left, learned.bits)).halved(-self.row_shift(self.trial))

    def first(self, learned: Wire, left: float, counts: Wire | None) -> Wire:
        """Compute the first weights c·W_0 + Z_Tᵀ·G·A, of A ``learned`` and c ``left``; the caller tests their range."""
        begun = self.machine.split(self.machine.constant(self.initial(learned.bits)[0], learned.bits))
        if counts is not None and self._weighs_products:
            learned = multiply_open(self.machine, learned, counts, learned.bits)
        total = self.machine.product(transposed_matmul, self._training_rows(), learned) + begun.scaled(left, BITS)
        return self.machine.open(total, total.bits - learned.bits)

    def judged(
        self,
        weights: Sequence[Wire],
        learned: Sequence[Wire] | None = None,
        left: float = 1.0,
        counts: Wire | None = None,
    ) -> Wire:
        """Compute logits of the validation nodes that steps are judged by: [V, C].

        ``learned`` is what steps have changed into these ``weights``, with c ``left`` and ``counts``; None: not known.
        """
        if self.propagates_columns:
            return self._logits(weights, self._trial_rows()[self.context.sizes.training :]).logits
        if learned is not None and self.judges_by_rows(self.trial):
            begun, products = self._row_products(counts, judged=True)
            made = self._made_of_products(begun, products, learned[0], left)
            return self._head(weights, products, self.opened(made)).logits
        first = self.effective(weights[0])
        return self._head(weights, first, self._picked(first)).logits

    def _picked(self, first: Wire) -> Wire:
        """Multiply the validation nodes' rows by first weights or their like, of all nodes': [V, d]."""
        sizes, owner = self.context.sizes, self.context.label_party
        made = joined(self._made_of_all(first), sizes.nodes)
        return self.machine.open(self.machine.pick(owner, self.context.of(owner, "judged"), sizes.validation, made))

    def _logits(self, weights: Sequence[Wire], rows: Wire) -> ForwardState:
        return self._head(weights, rows, self.linear(rows, weights[0]))

    def _head(
        self,
        weights: Sequence[Wire],
        rows: Wire,
        made: Wire,
        left: Tensor | int = 1,
        *,
        positive: Bit | None = None,
        cuts: bool = True,
    ) -> ForwardState:
        """Compute logits from ``made``, the rows times the first weights, through the hidden layer if there is one.

        ``positive``: which of its hidden columns are not below zero, where that is known. ``cuts``: whether logits of a
        hidden layer are cut to the bits of the others.
        """
        if not self.trial.deep:
            return ForwardState(rows, made, None)
        classes = self.context.sizes.classes
        units, gate = relu(self.machine, made[:, classes:], positive)
        hidden = units.times(left)
        through = self.machine.product(matmul, hidden, weights[1])
        logits = self.machine.split(made[:, :classes]).scaled(1.0, weights[1].bits) + through
        opened = self.opened(logits, BITS if cuts else logits.bits)
        return ForwardState(rows, opened, (hidden, gate), left)

    def backward(
        self, weights: Sequence[Wire], passed: ForwardState, error: Summands, counts: Wire | None = None
    ) -> list[Summands]:
        """Gradients of what steps change, from ``error``, that of the logits [B, C] if each row counts 1.

        ``counts``: what each row counts, [B, 1]; None: 1.
        """
        machine, rows = self.machine, passed.rows
        if passed.hidden is None and self.sums_rows and (counts is None or self._weighs_products):
            return [error.scaled(1.0, rows.bits)]
        if passed.hidden is None:
            return [self._first_gradient(rows, self._opened_error(error, counts))]
        hidden, gate = passed.hidden

        def pass_back() -> tuple[Wire, Wire]:
            opened = self._opened_error(error, counts)
            made = machine.product(matmul, opened, weights[1].T)
            return opened, self.opened(made, made.bits if self._has_room else error.bits)

        def weigh() -> Wire:  # beside it, which saves a round
            return hidden if counts is None else multiply_open(machine, hidden, counts, hidden.bits)

        weighs = self._weighs_products and counts is not None
        (opened, back), weighed = machine.both(pass_back, weigh) if weighs else (pass_back(), hidden)
        through = machine.gate(gate, back).times(passed.left)
        if self.sums_rows:
            aligned = machine.split(opened).scaled(1.0, through.bits - opened.bits)
            first = Summands(torch.cat([aligned.part, through.part], 1), through.bits)
            first = first.scaled(1.0, max(0, error.bits + rows.bits - first.bits))
        else:
            first = self._first_gradient(rows, concatenate([opened, machine.open(through)], 1))
        return [first, machine.product(transposed_matmul, weighed, opened)]

    @property
    def _has_room(self) -> bool:
        """Whether what is passed back to hidden units need not be cut: so few rows are summed that velocities fit."""
        return self.sums_rows and self.context.sizes.training < _FEW_SUMMED

    def _opened_error(self, error: Summands, counts: Wire | None) -> Wire:
        """Open the error, times what each row counts unless products of rows have that."""
        opened = self.machine.open(error)
        return opened if counts is None or self._weighs_products else multiply_open(self.machine, opened, counts)

    def _first_gradient(self, rows: Wire, error: Wire) -> Summands:
        if self.sums_rows:
            return self.machine.split(error).scaled(1.0, rows.bits)
        return self.machine.product(transposed_matmul, rows, error)

    def predict(self, weights: Sequence[Wire]) -> Wire:
        """Compute logits of every node: [N, C]."""
        first = self.effective(weights[0])
        logits = (self._head(weights, first, made).logits for made in self._made_of_all(first))
        return joined(logits, self.context.sizes.nodes)

    def effective(self, first: Wire) -> Wire:
        """Fold standardisation into the first weights, for plain columns: gain·w, and the bias less mean·gain·w."""
        assert self.gain is not None
        assert self.mean is not None
        machine, places = self.machine, self.places(self.trial.blocks)[1:] - 1
        columns = multiply_open(machine, first[1:], self.gain.columns(places).T, first.bits)
        moved = self.opened(machine.product(matmul, self.mean.columns(places), columns), first.bits)
        self.watch(columns)
        return concatenate([first[:1] - moved, columns])

    def _made_of_all(self, first: Wire) -> Iterator[Wire]:
        """Multiply every node's row by first weights or their like, before or after hops as is cheaper; yields [·, d].

        Args:
            first: [row_width, d].
        """
        start, alone, moved = 1, list[tuple[Sequence[Sequence[Wire]], int]](), list[Wire]()
        near = dict[int, Wire]()
        for block in self.trial.blocks:
            relations = self.relations.get(block)
            if relations is None:
                alone.append(([[wire] for wire in self._home(block)], start))
                start += self._block_widths[block]
                continue
            for name, relation in relations.items():
                if name in self._spread or self._moved_width(block) <= first.shape[1]:
                    alone.append(([self._moved_columns(block, name, relation)], start))
                else:
                    made = self.opened(self._sum_products(self._home(*self.context.plan.moved(block)), first, start))
                    if relation is self._pooled and is_near(block):
                        hops = hops_of(block)
                        near[hops] = near[hops] + made if hops in near else made
                    else:
                        moved.append(self.spread(relation, hops_of(block), made))
                start += self._moved_width(block)
        if near:
            moved.append(self._pooled.sum_powers(near))
            self.watch(moved[-1])
        for rows in self._node_slices(first.shape[1]):
            if rows.start:
                give_back_freed_memory()
            total = self.machine.split(first[:1]).scaled(1.0, BITS).map(partial(_repeat, rows.stop - rows.start))
            for columns, start in alone:
                total = total + self._sum_products_of(columns, rows, first, start)
            yield reduce(add, [self.opened(total), *(_taken(part, rows) for part in moved)])

    def _node_slices(self, columns: int) -> list[slice]:
        """Slices of nodes whose rows are multiplied together, by so many columns."""
        return row_slices((self.context.sizes.nodes, columns))

    def _sum_products_of(self, columns: Sequence[Sequence[Wire]], rows: slice, weight: Wire, start: int) -> Summands:
        """Do as ``_sum_products`` for some rows of columns, each of wires side by side, joined few rows at a time."""
        if all(len(each) == 1 for each in columns):
            return self._sum_products([_taken(each[0], rows) for each in columns], weight, start)
        made = list[Summands]()
        for few in row_slices((rows.stop - rows.start, sum(part.shape[1] for each in columns for part in each))):
            taken = slice(rows.start + few.start, rows.start + few.stop)
            parts = [concatenate([part[taken] for part in each], 1) for each in columns]
            made.append(self._sum_products(parts, weight, start))
        return replace(made[0], part=torch.cat([each.part for each in made]))

    def _sum_products(self, columns: Sequence[Wire], weight: Wire, start: int) -> Summands:
        """Σ_i X_i·W_i, where W_i are consecutive rows of ``weight`` from ``start`` on."""
        total: Summands | None = None
        for part in columns:
            product = self.machine.product(matmul, part, weight[start : start + part.shape[1]])
            start, total = start + part.shape[1], product if total is None else total + product
        assert total is not None
        return total

    def _trial_rows(self) -> Wire:
        return self._of_this_trial()[0]

    def _training_rows(self) -> Wire:
        return self._of_this_trial()[1]

    def _of_this_trial(self) -> tuple[Wire, Wire]:
        """Return the trial's rows, all and those of training; the same wires each time, as products by them need."""
        assert self.rows is not None
        if self.trial not in self._of_trial:
            places = self.places(self.trial.blocks)
            is_all = torch.equal(places, torch.arange(self.rows.shape[1]))  # which need no copy
            rows = self.rows if is_all else self.rows.columns(places)
            self._of_trial = {self.trial: (rows, rows[: self.context.sizes.training])}
        return self._of_trial[self.trial]


def _taken(wire: Wire, rows: slice) -> Wire:
    return wire if rows.stop - rows.start == wire.shape[0] else wire[rows]


def _repeat(rows: int, part: Tensor) -> Tensor:
    """Repeat a row [1, d] without copying it: [rows, d]."""
    return part.expand(rows, -1)
