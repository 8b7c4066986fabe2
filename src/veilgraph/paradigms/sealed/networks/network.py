"""The network of sealed jobs: logits Z·W + relu(Z·U)·V on rows Z that are made once, before any step.

Where training rows Z_T are far fewer than columns, the first weights W are not stepped: c·W_0 + Z_Tᵀ·A is, in A. The
gradient of W is Z_Tᵀ·E, so a step adds to A what it would add to W but for Z_Tᵀ, and Z_T·W = c·Z_T·W_0 + (Z_T·Z_Tᵀ)·A.
What a step multiplies, opens and tests is then as small as the rows are few. c is public: what decay leaves of W_0.
Where rows count differently in the loss, Z_Tᵀ·G·A stands for Z_Tᵀ·A, with what each counts on the diagonal of G: every
row of A then changes by its own error, and nothing is multiplied by G in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, multiply_open, relu
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, apart, concatenate, in_a_row
from veilgraph.paradigms.sealed.networks.rows import Rows
from veilgraph.paradigms.sealed.plan import Context, Trial, hops_of, is_near

Parts = dict[str, slice]  # name → rows of the first weights


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
        self._of_trial: dict[Trial, Wire] = {}
        self._products: dict[Trial, tuple[Wire, Wire]] = {}

    def anew(self) -> Self:
        """Return a network on the same rows that has computed nothing else yet."""
        found = copy(self)
        found.watched, found._of_trial, found._products = [], {}, {}
        return found

    @property
    def width(self) -> int:
        """Outputs of the first weights: C logits and the trial's hidden units."""
        classes = self.context.sizes.classes
        return classes + self.context.plan.hidden * self.trial.deep

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of the trial's weights: W and U side by side, and V where it is deep."""
        classes, hidden = self.context.sizes.classes, self.context.plan.hidden * self.trial.deep
        first = 1 + sum(self._block_widths[block] for block in self.trial.blocks), self.width
        return [first, (hidden, classes)] if self.trial.deep else [first]

    @property
    def sums_rows(self) -> bool:
        """Whether steps change A [T, width] in place of the first weights, which are c·W_0 + Z_Tᵀ·G·A.

        Not where columns are standardised: products of two rows may then be large.
        """
        plan, training = self.context.plan, self.context.sizes.training
        return not plan.standard and plan.rows_of_step(training) == training <= self.shapes[0][0] // 2

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
        """Compute logits of the ``wanted`` training rows, from what steps change; ``left``: c, as in ``sums_rows``.

        ``counts``: what each training row counts, [T, 1], the same in all steps; None: 1.
        """
        rows = self._trial_rows()[wanted]
        if self.sums_rows:
            both, begun = self._row_products(counts)
            made = self.machine.product(matmul, both, learned[0])
            made += self.machine.split(begun).scaled(left, learned[0].bits)
        else:
            made = self.machine.product(matmul, rows, learned[0])
        # Nothing is multiplied by logits themselves, so they need not be cut.
        opened = self.opened(made, BITS if self.trial.deep else made.bits)
        return self._head(learned, rows, opened, self._left(len(rows.mask)), bits=made.bits)

    def _left(self, rows: int) -> Tensor | int:
        """Public dropout factors of a step's hidden units, int64 [rows, hidden], 0 or 2; 1 if the trial drops none."""
        plan = self.context.plan
        if not self.trial.drops:
            return 1
        drawn = sha256(f"{plan.seed}, step {self._place}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(drawn[:7], "big"))
        return 2 * torch.randint(0, 2, (rows, plan.hidden * self.trial.deep), generator=generator)

    def _row_products(self, counts: Wire | None) -> tuple[Wire, Wire]:
        """Compute Z_T·Z_Tᵀ·G [T, T] and Z_T·W_0 [T, width] once a trial."""
        if self.trial not in self._products:
            rows = self._training_rows()
            begun = self.machine.constant(self.initial(BITS)[0], BITS)
            both = self.linear(rows, rows.T)
            if counts is not None:
                both = self.opened(self.machine.product(torch.mul, both, counts.T))
            self._products = {self.trial: (both, self.linear(rows, begun))}
        return self._products[self.trial]

    def first(self, learned: Wire, left: float, counts: Wire | None) -> Wire:
        """Compute the first weights c·W_0 + Z_Tᵀ·G·A, of A ``learned`` and c ``left``; the caller tests their range."""
        begun = self.machine.split(self.machine.constant(self.initial(learned.bits)[0], learned.bits))
        if counts is not None:
            learned = multiply_open(self.machine, learned, counts, learned.bits)
        total = self.machine.product(transposed_matmul, self._training_rows(), learned) + begun.scaled(left, BITS)
        return self.machine.open(total, total.bits - learned.bits)

    def judged(self, weights: Sequence[Wire]) -> Wire:
        """Compute logits of the validation nodes that steps are judged by: [V, C]."""
        sizes, owner = self.context.sizes, self.context.label_party
        if self.propagates_columns:
            return self._logits(weights, self._trial_rows()[sizes.training :]).logits
        picked = self.machine.pick(owner, self.context.of(owner, "judged"), sizes.validation, self.predict(weights))
        return self.machine.open(picked)

    def _logits(self, weights: Sequence[Wire], rows: Wire) -> ForwardState:
        return self._head(weights, rows, self.linear(rows, weights[0]))

    def _head(
        self, weights: Sequence[Wire], rows: Wire, made: Wire, left: Tensor | int = 1, bits: int = BITS
    ) -> ForwardState:
        """Compute logits from ``made``, the rows times the first weights, through the hidden layer if there is one.

        Those of a hidden layer have ``bits``.
        """
        if not self.trial.deep:
            return ForwardState(rows, made, None)
        classes = self.context.sizes.classes
        units, gate = relu(self.machine, made[:, classes:])
        hidden = units.times(left)
        through = self.machine.product(matmul, hidden, weights[1])
        logits = self.machine.split(made[:, :classes]).scaled(1.0, weights[1].bits) + through
        return ForwardState(rows, self.opened(logits, bits), (hidden, gate), left)

    def backward(
        self, weights: Sequence[Wire], passed: ForwardState, error: Summands, counts: Wire | None = None
    ) -> list[Summands]:
        """Gradients of what steps change, from ``error``, that of the logits [B, C] if each row counts 1.

        ``counts``: what each row counts, [B, 1]; None: 1.
        """
        machine, rows = self.machine, passed.rows
        if passed.hidden is None and self.sums_rows:
            return [error.scaled(1.0, rows.bits)]
        opened = machine.open(error)
        if passed.hidden is None:
            return [self._first_gradient(rows, self._counted(opened, counts))]
        hidden, gate = passed.hidden
        if self.sums_rows:
            parts = [machine.product(matmul, opened, weights[1].T)]
            if counts is not None:
                parts.append(machine.product(torch.mul, opened, counts))
            back, *counted = apart(self.opened(in_a_row(parts), error.bits), [part.shape for part in parts])
            through = machine.gate(gate, back).times(passed.left)
            both = Summands(torch.cat([error.part, through.part], 1), error.bits)
            return [both.scaled(1.0, rows.bits), machine.product(transposed_matmul, hidden, (*counted, opened)[0])]
        opened = self._counted(opened, counts)
        back = self.opened(machine.product(matmul, opened, weights[1].T), error.bits)
        through_rows = machine.open(machine.gate(gate, back)).times(passed.left)
        both_rows = concatenate([opened, through_rows], 1)
        return [self._first_gradient(rows, both_rows), machine.product(transposed_matmul, hidden, opened)]

    def _first_gradient(self, rows: Wire, error: Wire) -> Summands:
        return self.machine.product(transposed_matmul, rows, error)

    def _counted(self, error: Wire, counts: Wire | None) -> Wire:
        return error if counts is None else multiply_open(self.machine, error, counts)

    def predict(self, weights: Sequence[Wire]) -> Wire:
        """Compute logits of every node: [N, C]."""
        first = self.effective(weights[0])
        return self._head(weights, first, self._made_of_all(first)).logits

    def effective(self, first: Wire) -> Wire:
        """Fold standardisation into the first weights, for plain columns: gain·w, and the bias less mean·gain·w."""
        assert self.gain is not None
        assert self.mean is not None
        machine, places = self.machine, self.places(self.trial.blocks)[1:] - 1
        columns = multiply_open(machine, first[1:], self.gain.columns(places).T, first.bits)
        moved = self.opened(machine.product(matmul, self.mean.columns(places), columns), first.bits)
        self.watched.append(columns)
        return concatenate([first[:1] - moved, columns])

    def _made_of_all(self, first: Wire) -> Wire:
        """Multiply every node's row by the first weights, before or after hops as is cheaper: [N, width]."""
        machine, nodes, start = self.machine, self.context.sizes.nodes, 1
        total: Summands = machine.split(first[:1]).map(lambda part: part.expand(nodes, -1)).scaled(1.0, BITS)
        moved: list[Wire] = []
        near = dict[int, Wire]()
        for block in self.trial.blocks:
            relations = self.relations.get(block)
            if relations is None:
                total = total + self._sum_products(self._home(block), first, start)
                start += self._block_widths[block]
                continue
            for name, relation in relations.items():
                if name in self._spread or self._moved_width(block) <= self.width:
                    total = total + self._sum_products([self._moved_columns(block, name, relation)], first, start)
                else:
                    made = self.opened(self._sum_products(self._home(*self.context.plan.moved(block)), first, start))
                    if relation is self._pooled and is_near(block):
                        hops = hops_of(block)
                        near[hops] = near[hops] + made if hops in near else made
                    else:
                        moved.append(self.spread(relation, hops_of(block), made))
                start += self._moved_width(block)
        moved += self._hop_by_hop(near)
        made = self.opened(total)
        for part in moved:
            made = made + part
        return made

    def _sum_products(self, columns: Sequence[Wire], weight: Wire, start: int) -> Summands:
        """Σ_i X_i·W_i, where W_i are consecutive rows of ``weight`` from ``start`` on."""
        total: Summands | None = None
        for part in columns:
            product = self.machine.product(matmul, part, weight[start : start + part.shape[1]])
            start, total = start + part.shape[1], product if total is None else total + product
        assert total is not None
        return total

    def _trial_rows(self) -> Wire:
        assert self.rows is not None
        if self.trial not in self._of_trial:
            self._of_trial = {self.trial: self.rows.columns(self.places(self.trial.blocks))}
        return self._of_trial[self.trial]

    def _training_rows(self) -> Wire:
        return self._trial_rows()[: self.context.sizes.training]
