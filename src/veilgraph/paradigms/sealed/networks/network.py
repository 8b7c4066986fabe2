"""What a network of a sealed job is: its weights, and logits and gradients from what is secret."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.functions import BITS, FINE_BITS, relu
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, joined
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.propagation import Propagation

Kept = dict[str, tuple[tuple[int, ...], int]]
"""Name → shape and fractional bits."""
Parts = dict[str, tuple[slice, slice]]
"""Name → rows and columns of the first weights."""


_FEW: Final = 140
"""Training rows on which decays were chosen."""


@dataclass(frozen=True)
class Suits:
    """What suits a network where the job leaves it open.

    Attributes:
        hops: K.
        learning_rate: of SGD with momentum on unit rows.
        weight_decay: of L2, with up to ``_FEW`` training rows.
        teleport: α.
    """

    hops: int
    learning_rate: float
    weight_decay: float
    teleport: float = 0.1

    def decay(self, rows: int) -> float:
        """Of L2 with T training rows: the more there are, the less a prior on the weights counts."""
        return self.weight_decay * min(1, _FEW / max(rows, 1))


@dataclass(frozen=True)
class Passed:
    """What a forward pass leaves for the backward one.

    Attributes:
        logits: [B, C], of the wanted training rows.
        wanted: which rows these are.
        inner: what the network itself needs.
    """

    logits: Wire
    wanted: slice
    inner: Sequence[Wire | Bit]


class Network(ABC):
    """One party's part in a network.

    Args:
        machine: of the party.
        context: of the job.
    """

    suits: ClassVar[Suits]
    words: ClassVar[str]
    """What it is, for people, with ``{hops}``, ``{own_hops}`` and ``{hidden}`` in it."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self.machine, self.context = machine, context
        holders = list(context.sizes.edges)
        groups = [[holder] for holder in holders] if context.plan.each and context.plan.hops else [holders]
        self.relations = [Propagation(machine, context, group) for group in groups]
        """What is propagated over: all holders' edges together, or each one's by themselves."""
        self.watched: list[Wire] = []
        """What was opened since its range was last tested: all that is not bounded by what was tested before."""
        self.columns: list[Wire] = []
        """Of every holder, [N, F_i], in the job's order."""

    @property
    @abstractmethod
    def shapes(self) -> list[tuple[int, int]]:
        """Of the weights."""

    @abstractmethod
    def parts(self, holder: PartyId) -> Parts:
        """Where the first weights of a holder's own columns are, by what these are when they are multiplied.

        ``columns``: as they were put in; ``own.k``: after k hops over its own edges; ``pooled``: after K hops over all
        edges together; ``pooled.B``: over holder B's. Later layers have no part that is one holder's.
        """

    @property
    def blocks(self) -> int:
        """Of as many columns each, that a holder puts in side by side: its own, and their hops over its own edges."""
        return 1 + self.context.plan.own_hops

    def place(self, holder: PartyId) -> slice:
        """Where a holder's columns are among those of all, counted in one of its blocks."""
        start, columns = 0, self.context.sizes.columns
        for other, width in columns.items():
            if other == holder:
                break
            start += width // self.blocks
        return slice(start, start + columns[holder] // self.blocks)

    @property
    def relation_names(self) -> list[str]:
        """Of what was propagated over each."""
        if len(self.relations) == 1:
            return ["pooled"]
        return [f"pooled.{holder}" for holder in self.context.sizes.edges]

    def enter(self, *, trains: bool) -> None:
        """Every holder puts its columns and its edges in; once a session."""
        sizes = self.context.sizes
        self.columns = [
            self.machine.put(holder, self.context.of(holder, "features"), (sizes.nodes, columns), BITS)
            for holder, columns in sizes.columns.items()
        ]
        for relation in self.relations if self.context.plan.hops else []:
            relation.enter(transposed=trains)
            if self.context.plan.each:
                relation.enter_roots()

    def normalise(self) -> None:
        """What hops need, once a session."""
        if self._computes_roots and self.relations[0].roots is None:
            self.machine.at("degrees")
            self.relations[0].compute_roots()

    @property
    def _computes_roots(self) -> bool:
        return bool(self.context.plan.hops) and not self.context.plan.each

    def prepare(self) -> None:
        """What training needs once, beyond that."""
        self.normalise()

    def keeps(self) -> Kept:
        """Shapes of what ``prepare`` makes, which a training that is gone on with has again."""
        return {"roots": ((self.context.sizes.nodes, 1), FINE_BITS)} if self._computes_roots else {}

    def kept(self) -> dict[str, Wire | None]:
        """What there is of it."""
        return {"roots": self.relations[0].roots} if self._computes_roots else {}

    def keep(self, found: Mapping[str, Wire]) -> None:
        """Has it again."""
        if self._computes_roots:
            self.relations[0].roots = found["roots"]

    def remembers(self) -> Kept:
        """Shapes of what a prediction needs beside the weights."""
        return {}

    def remember(self, found: Mapping[str, Wire]) -> None:  # noqa: B027 - most need nothing
        """Has it again."""

    def arrive(self, step: int, weights: Sequence[Wire]) -> None:  # noqa: B027 - most do nothing
        """Before a step of the job, counted from 0, with the weights as they are."""

    @abstractmethod
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        """Logits of some of the training rows."""

    @abstractmethod
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        """Gradients of the weights, from that of the logits [B, C]."""

    @abstractmethod
    def predict(self, weights: Sequence[Wire]) -> Wire:
        """Logits of every node: [N, C]."""

    def moved(self, blocks: Wire) -> Wire:
        """Σ_r P_r^K·B_r of one block of columns for each relation: [N, R·d] → [N, d]."""
        width = blocks.shape[1] // len(self.relations)
        total: Wire | None = None
        for place, relation in enumerate(self.relations):
            found = self.spread(relation, blocks[:, place * width : (place + 1) * width])
            total = found if total is None else total + found
        assert total is not None
        return total

    def moved_back(self, error: Wire, *, narrow: bool = False) -> Wire:
        """What ``moved`` does to gradients: [N, d] → [N, R·d]; ``narrow`` as in ``Propagation``."""
        return joined([self.spread(each, error, transposed=True, narrow=narrow) for each in self.relations], 1)

    def spread(self, relation: Propagation, *columns: Wire, transposed: bool = False, narrow: bool = False) -> Wire:
        """P_r^K·B of columns side by side, or with Pᵀ; ``narrow`` as in ``Propagation``, else it is watched."""
        plan = self.context.plan
        found = relation(columns, plan.hops, plan.teleport, transposed=transposed, narrow=narrow)
        self.watched.extend([] if narrow else [found])
        return found

    def glorot(self, bits: int) -> list[Tensor]:
        """Initial weights, which are public: int64."""
        generator = torch.Generator().manual_seed(self.context.plan.seed)
        return [
            torch.empty(shape, dtype=torch.float64)
            .uniform_(-1, 1, generator=generator)
            .mul_((6 / sum(shape)) ** 0.5 * 2.0**bits)
            .round_()
            .to(torch.int64)
            for shape in self.shapes
        ]

    def initial(self, bits: int) -> list[Tensor]:
        """As ``glorot``, where the network does not say otherwise."""
        return self.glorot(bits)

    def hidden_training_rows(self, wanted: slice) -> tuple[PartyId, Tensor | None, int]:
        """Who knows the wanted training rows, which they are, and how many."""
        context = self.context
        rows = context.of(context.label_party, "rows")
        count = len(range(*wanted.indices(context.sizes.training)))
        return context.label_party, None if rows is None else rows[wanted], count

    def linear(self, left: Wire, weight: Wire) -> Wire:
        """left·W, opened."""
        return self.opened(self.machine.product(matmul, left, weight))

    def opened(self, summands: Summands, bits: int = BITS) -> Wire:
        """With so many fractional bits, and watched."""
        self.watched.append(self.machine.open(summands, summands.bits - bits))
        return self.watched[-1]

    def from_columns(self, columns: Sequence[Wire], weight: Wire) -> Wire:
        """Σ_i X_i·W_i over the holders' columns: [N, d]."""
        return self.opened(self.sum_of_columns(columns, weight))

    def sum_of_columns(self, columns: Sequence[Wire], weight: Wire) -> Summands:
        """The same before it is opened."""
        start, total = 0, None
        for part in columns:
            product = self.machine.product(matmul, part, weight[start : start + part.shape[1]])
            start, total = start + part.shape[1], product if total is None else total + product
        assert total is not None
        return total

    def gradient_of_columns(self, columns: Sequence[Wire], error: Wire) -> Summands:
        """Xᵀ·E of all holders' columns, one below the other: [F, d]."""
        parts = [self.machine.product(transposed_matmul, part, error) for part in columns]
        return Summands(torch.cat([part.part for part in parts]), parts[0].bits)

    def hidden_error(self, error: Wire, weight: Wire, gate: Bit) -> Wire:
        """The gradient below a ReLU, of the one above the weights that follow it."""
        back = self.opened(self.machine.product(matmul, error, weight.T), error.bits)
        return self.machine.open(self.machine.gate(gate, back))

    def activated(self, wire: Wire) -> tuple[Wire, Bit]:
        """ReLU, and where it lets through."""
        return relu(self.machine, wire)


def one_hot(places: Tensor, size: int) -> Tensor:
    """float64 [n, size]."""
    return torch.nn.functional.one_hot(places, size).to(torch.float64)
