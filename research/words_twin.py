"""The twin of a sealed job on words, without rows: for data sets whose rows do not fit into memory.

Parties make rows once, so that no step has a hop. The twin sends nothing, and its columns are sparse. So it multiplies
columns with the weights in each step and hops with what comes of it, which is as wide as there are classes. That is the
same network but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.ring import matmul
from veilgraph.mpc.sealed.functions import BITS
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.wire import Summands, Wire, concatenate, joined, plain_wire
from veilgraph.paradigms.sealed.networks.network import ForwardState, Network
from veilgraph.paradigms.sealed.plan import Context, Trial, hops_of
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import train_and_restore_best, twin_context

_AT_ONCE: Final = 256
"""Columns that are dense together."""


class SparseNetwork(Network):
    """The network with hops in each step, on sparse columns that are not standardised."""

    def __init__(self, machine: Machine, context: Context) -> None:
        super().__init__(machine, context)
        if context.plan.standard or context.plan.home != ("own",):
            raise ValueError(f"home={context.plan.home}: only own columns of length 1 stay sparse")

    @override
    def sums_rows_of(self, trial: Trial) -> bool:
        return False

    @override
    def enter(self, *, trains: bool) -> None:
        super().enter(trains=trains)
        self._dense = self.columns
        self.columns = [plain_wire(wire.known.to_sparse_csr(), BITS) for wire in self.columns]
        self._turned = [plain_wire(wire.known.t().to_sparse_csr(), BITS) for wire in self.columns]

    @override
    def prepare(self) -> None:
        """Means and gains, of the rows of some columns at a time."""
        self.normalise()
        places = self.context.of(self.context.label_party, "rows")
        assert places is not None
        means, gains = list[Wire](), list[Wire]()
        for block in self.context.plan.blocks:
            for relation in self.relations.get(block, {"": None}).values():
                for columns in self._dense:
                    for start in range(0, columns.shape[1], _AT_ONCE):
                        part = columns[:, start : start + _AT_ONCE]
                        moved = part if relation is None else self.spread(relation, hops_of(block), part, narrow=True)
                        self._standardised(concatenate([moved[:, :1], moved], 1).map(partial(_rows, places=places)))
                        assert self.mean is not None
                        assert self.gain is not None
                        means.append(self.mean)
                        gains.append(self.gain)
        self.mean, self.gain, self._dense = concatenate(means, 1), concatenate(gains, 1), []

    @override
    def _home(self, *blocks: str, of: PartyId | None = None) -> list[Wire]:
        own = zip(self.context.abreast, self.columns, strict=True)
        return [columns for holder, columns in own if of in (None, holder)]

    @override
    def forward(self, learned: Sequence[Wire], wanted: slice, left: float, counts: Wire | None = None) -> ForwardState:
        self._wanted = wanted
        made = self._of_rows("rows", self._all_made(learned))[wanted]
        return self._head(learned, made, made, self._left(len(made.mask)))

    @override
    def _node_slices(self, columns: int) -> list[slice]:
        return [slice(0, self.context.sizes.nodes)]  # sparse columns are not sliced

    def _all_made(self, learned: Sequence[Wire]) -> Wire:
        return joined(self._made_of_all(self.effective(learned[0])), self.context.sizes.nodes)

    @override
    def judged(
        self,
        weights: Sequence[Wire],
        learned: Sequence[Wire] | None = None,
        left: float = 1.0,
        counts: Wire | None = None,
    ) -> Wire:
        return self._of_rows("judged", self.predict(weights))

    def _of_rows(self, what: str, wire: Wire) -> Wire:
        owner = self.context.label_party
        rows = self.context.of(owner, what)
        assert rows is not None
        return self.machine.open(self.machine.pick(owner, rows, len(rows), wire))

    @override
    def _first_gradient(self, rows: Wire, error: Wire) -> Summands:
        """Zᵀ·E, of errors that are put back into their places and hop against the edges' direction."""
        places = self.context.of(self.context.label_party, "rows")
        assert places is not None
        nodes, seen = self.context.sizes.nodes, places[self._wanted]
        whole = error.map(lambda part: part.new_zeros((nodes, part.shape[1])).index_copy(0, seen, part))
        found = [self.machine.split(error).map(lambda part: part.sum(0, keepdim=True)).scaled(1.0, BITS)]
        for block in self.trial.blocks:
            for relation in self.relations.get(block, {"": None}).values():
                back = whole if relation is None else self.spread(relation, hops_of(block), whole, transposed=True)
                found += [self.machine.product(matmul, part, back) for part in self._turned]
        bias, *others = (plain_wire(part.part, part.bits).known for part in found)
        assert self.mean is not None
        assert self.gain is not None
        mean, gain = (wire.columns(self.places(self.trial.blocks)[1:] - 1) for wire in (self.mean, self.gain))
        return Summands(torch.cat([bias, (torch.cat(others) - mean.known.T * bias) * gain.known.T]), found[0].bits)


def _rows(part: Tensor, places: Tensor) -> Tensor:
    return part[places]


def chosen_words_twin(job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedProgram:
    """As ``chosen_twin``."""
    context, data = twin_context(job, graphs)
    program = SealedProgram(PlainMachine(list(data)), context)
    program.network = SparseNetwork(PlainMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    return train_and_restore_best(job, program)
