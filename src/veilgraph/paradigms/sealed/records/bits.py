"""One bit a node: what the label holder A learns of nodes that it does not train on, in place of their scores.

Every other holder i has weights W_i = Σ_v φ(x_v)·r_v + noise over training nodes v, as in ``rows``, hidden. With ρ the
sum of the second class's residuals, A is told of every other node u, and of each holder i,

    [φ(x_u)·W_i > |W_i|² / 2ρ] ⊕ f,      P(f = 1) ≤ 1/(e^ε′ + 1),

f drawn by holder i and by nobody else, and added under masks: nobody sees the bit without it. As Σ_v r_v·φ(x_v)·W_i is
|W_i|² but for noise, and residuals add up to about 0, the threshold is midway between the mean scores of both classes.

*One record* is all columns that holder i has of one common node: there or zero. A node that is trained on is in G_i and
in W_i, whose noise costs 1/σ² = s/σ² + (1 − s)/σ² together, and no bit of it is opened. Any other is in G_i, and in its
own bit, which is (ε′, 0)-private whatever W_i and its threshold are: the flip's probability is exact
(``randomised_response``). ε′ is what s/σ² leaves of ε at δ. Bits of other nodes are made of their own rows, and bits of
other holders of other columns. So either way a record costs ε, and no holder knows which way (``EitherEvent``).

*Once.* A flip covers one bit. A bit that is computed anew could round otherwise near its threshold, and show that under
the same flip. So bits are made once, in training, and only shares of them are kept: every prediction opens the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import transposed_matmul
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire, concatenate
from veilgraph.paradigms.sealed.program import TRIAL
from veilgraph.paradigms.sealed.records.program import SCORE_BITS, RecordProgram
from veilgraph.privacy.randomised_response import least_cells, uniform

BITS: Final = "weight.bits"
"""Name of saved shares: flipped bits of every node, of every holder but the label holder, 0 at training nodes."""
_LENGTH_BITS: Final = 34  # of |W|², at most 1
_MIDWAY_BITS: Final = 8
_MOST_MIDWAY: Final = 2.0**12  # a threshold then has 42 bits below 2^12, which the ring holds


def midway(residuals: Tensor, halved: int) -> Tensor:
    """Return the factor of |W|² that is half-way between classes, of residuals [N, 1]: float64 [1, 1].

    ``halved``: how often W is halved; the score is then halved as often.
    """
    total = residuals.clamp_min(0).sum()
    return (2.0**halved / (2 * total.clamp_min(2.0**-20))).clamp_max(_MOST_MIDWAY).reshape(1, 1)


def flips(nodes: int, epsilon: float, source: SecretSource) -> Tensor:
    """Draw which bits are turned over by randomised response of ε: float64 [N, 1], 0 or 1."""
    drawn = uniform(source(SEED_BYTES), "bits", (nodes, 1))
    return (drawn < least_cells(epsilon)).to(torch.float64)


class BitProgram(RecordProgram):
    """One party's part in a job that opens one bit a node and holder."""

    _bits: Wire | None = None

    @override
    def step(self, number: int, best: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Compute the noisy sums, and of them the flipped bits."""
        super().step(number, best)
        machine, context = self._machine, self._context
        assert self._told is not None
        residuals = context.of(context.label_party, "residuals")
        factor = None if residuals is None else midway(residuals, self.halved)
        middle = machine.put(context.label_party, factor, (1, 1), _MIDWAY_BITS)
        found = concatenate([machine.open(self._flipped(holder, middle)) for holder in self.noises], 1)
        told = self._told.map(lambda part: part.expand(-1, len(self.noises)))
        self._bits = machine.open(machine.product(torch.mul, found, told))

    def _flipped(self, holder: PartyId, middle: Wire) -> Summands:
        """Return whether each score of a holder's columns is above the threshold, flipped: 0 or 1, [N, 1]."""
        machine, context, epsilon = self._machine, self._context, self._context.plan.flips
        assert epsilon is not None
        nodes = context.sizes.nodes
        weights = self._weights_of(holder)
        length = machine.product(transposed_matmul, weights, weights)
        length = machine.product(torch.mul, machine.open(length, max(0, length.bits - _LENGTH_BITS)), middle)
        threshold = machine.open(length, length.bits - SCORE_BITS).map(lambda part: part.expand(nodes, -1))
        above: Bit = machine.negative(threshold - self._scores_of(holder, weights))
        drawn = flips(nodes, epsilon, self._source(holder)) if holder in context.data else None
        turned = machine.put(holder, drawn, (nodes, 1), 0)
        return machine.value(above) + machine.split(turned) - machine.gate(above, turned).times(2)

    @override
    def shares(self) -> dict[str, Tensor]:
        trial = {TRIAL: torch.zeros(1, dtype=torch.int64)}
        return trial if self._bits is None else {**trial, BITS: self._machine.share(self._bits)}

    @property
    @override
    def _saved(self) -> dict[str, tuple[int, ...]]:
        return {BITS: (self._context.sizes.nodes, len(self.noises))}

    @override
    def restore(self, saved: Mapping[str, Tensor], *, training: bool) -> None:
        self._bits = self._reopened(saved, BITS, self._saved[BITS], 0)

    @override
    def predict(self) -> Tensor | None:
        """Reveal bits [N, holders − 1] to the label holder, 0 at training nodes; None at all others."""
        self._machine.at("predict")
        assert self._bits is not None
        # Under a fresh mask: that of the kept bits is under them in every session.
        return self._machine.reveal(self._machine.open(self._machine.split(self._bits)), self._context.label_party)
