"""The program of a sealed job with noise on training records: one sum of products, and scores by hidden weights.

The mathematics and the proof are in ``rows``. A training is a single step. Every holder's whitening matrix stays at
it, and is saved with its shares of the noisy sums, so that later predictions are of the same rows and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import matmul, transposed_matmul
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.program import TRIAL, Program
from veilgraph.paradigms.sealed.records.rows import (
    RecordNoise,
    feature_rows,
    halvings,
    noise_of_sums,
    outputs_of,
    residual_bits,
    row_bits,
    whitening,
)
from veilgraph.privacy.plan import NodePlan, RecordPlan

SUMS: Final = "weight.sums."
WHITENING: Final = "weight.whitening."
TOLD: Final = "weight.told"
"""Names of saved shares, the first two before a holder's name: noisy sums, a matrix of its own, whose scores open."""
_WEIGHT_BITS: Final = 30  # at most; with rows of up to 20 bits a product of numbers up to 1 is below 2^51
SCORE_BITS: Final = 24


class RecordProgram(Program):
    """One party's part; ``context.data`` has what the party puts in, ``source`` what a holder draws noise from."""

    def __init__(self, machine: Machine, context: Context, source: Callable[[PartyId], SecretSource]) -> None:
        super().__init__()
        self._machine, self._context, self._source = machine, context, source
        self._outputs = outputs_of(context.sizes.classes)
        self._whitening: dict[PartyId, Tensor] = {}
        self._rows: dict[PartyId, Wire] = {}
        self._sums: dict[PartyId, Wire] = {}
        self._told: Wire | None = None

    @cached_property
    def noises(self) -> dict[PartyId, RecordNoise]:
        """Holder other than the label holder → its noise."""
        multiplier, sizes = self._context.plan.records, self._context.sizes
        assert multiplier is not None
        others = (holder for holder in sizes.columns if holder != self._context.label_party)
        share = RecordPlan.share if self._context.plan.flips is None else NodePlan.share
        return {holder: RecordNoise(multiplier, sizes.columns[holder], share) for holder in others}

    @property
    def halved(self) -> int:
        """How often weights are halved, so that scores are no larger than 1."""
        return halvings([*self.noises.values()], self._context.sizes.nodes)

    def _put_rows(self) -> None:
        """Put in the other holders' rows; once a session."""
        for holder, noise in () if self._rows else self.noises.items():
            columns, made = self._context.columns_of(holder), None
            if columns is not None:
                if holder not in self._whitening:
                    self._whitening[holder] = whitening(columns, noise, self._source(holder))
                made = feature_rows(columns, self._whitening[holder], noise)
            shape = self._context.sizes.nodes, noise.columns
            self._rows[holder] = self._machine.put(holder, made, shape, row_bits(noise))

    @override
    def enter(self, *, trains: bool) -> None:
        self._machine.at("enter")
        if trains:
            self._put_rows()

    @override
    def begin(self) -> None:
        """Do nothing: sums need no rows but those that are put in."""

    @override
    def step(self, number: int, best: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Compute the noisy sums."""
        machine, context, owner = self._machine, self._context, self._context.label_party
        nodes, outputs, multiplier = context.sizes.nodes, self._outputs, context.plan.records
        assert multiplier is not None
        machine.at(f"step {number}")
        bits = residual_bits(multiplier)
        residuals = machine.put(owner, context.of(owner, "residuals"), (nodes, outputs), bits)
        self._told = machine.put(owner, context.of(owner, "told"), (nodes, 1), 0)
        for holder, noise in self.noises.items():
            drawn = None
            if holder in context.data:
                drawn = noise_of_sums(noise, outputs, self._source(holder))
            hidden = machine.put(holder, drawn, (noise.columns, outputs), noise.bits)
            total = machine.product(transposed_matmul, self._rows[holder], residuals) + machine.split(hidden)
            self._sums[holder] = machine.open(total)

    @override
    def shares(self) -> dict[str, Tensor]:
        named = {SUMS + holder: wire for holder, wire in self._sums.items()}
        named |= {} if self._told is None else {TOLD: self._told}
        own = {WHITENING + holder: matrix for holder, matrix in self._whitening.items()}
        shares = {name: self._machine.share(wire) for name, wire in named.items()}
        return {**shares, **own, TRIAL: torch.zeros(1, dtype=torch.int64)}

    @property
    def _saved(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of what a party has to have saved."""
        needed: dict[str, tuple[int, ...]] = {
            SUMS + holder: (noise.columns, self._outputs) for holder, noise in self.noises.items()
        }
        needed[TOLD] = self._context.sizes.nodes, 1
        own = self.noises.keys() & self._context.data.keys()
        return needed | {WHITENING + holder: 2 * (self.noises[holder].columns,) for holder in own}

    @override
    def check(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        for name, shape in self._saved.items():
            found = saved.get(name)
            if found is None or tuple(found.shape) != shape:
                has = "nothing" if found is None else str(list(found.shape))
                raise RunError(
                    f"{name}: the saved shares are {has}, and the job needs {list(shape)} with the nodes, columns and "
                    "classes that there are now; give the files of this party's own run, or train anew",
                    code="other-network",
                    key=name,
                    value=has,
                )

    @override
    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        for holder in self.noises:
            if (matrix := saved.get(WHITENING + holder)) is not None:
                self._whitening[holder] = matrix
        self._put_rows()
        nodes = self._context.sizes.nodes
        for holder, noise in self.noises.items():
            self._sums[holder] = self._reopened(saved, SUMS + holder, (noise.columns, self._outputs), noise.bits)
        self._told = self._reopened(saved, TOLD, (nodes, 1), 0)

    def _reopened(self, saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], bits: int) -> Wire:
        return self._machine.open(self._machine.summands(saved.get(name), shape, 0), bits=bits)

    @override
    def predict(self) -> Tensor | None:
        """Reveal scores [N, outputs] to the label holder, 0 at training nodes; None at all others."""
        machine, context = self._machine, self._context
        assert self._told is not None
        machine.at("predict")
        total: Summands | None = None
        for holder in self.noises:
            scores = machine.split(self._scores_of(holder, self._weights_of(holder)))
            total = scores if total is None else total + scores
        assert total is not None
        spread = self._told.map(lambda part: part.expand(-1, self._outputs))
        found: Summands = machine.product(torch.mul, machine.open(total), spread)
        return machine.reveal(machine.open(found), context.label_party)

    def _weights_of(self, holder: PartyId) -> Wire:
        """Halve a holder's sums so that no row of length 1 makes a score above 1: [columns, outputs]."""
        weights = self._machine.split(self._sums[holder]).halved(self.halved)
        return self._machine.open(weights, max(0, weights.bits - _WEIGHT_BITS))

    def _scores_of(self, holder: PartyId, weights: Wire) -> Wire:
        """Compute what halved weights make of a holder's rows: [N, outputs]."""
        made = self._machine.product(matmul, self._rows[holder], weights)
        return self._machine.open(made, made.bits - SCORE_BITS)
