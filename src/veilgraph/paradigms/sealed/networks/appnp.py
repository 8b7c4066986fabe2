"""APPNP (Klicpera et al. 2019, arXiv:1810.05997): a hidden layer on every node's own columns, then K hops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from veilgraph.mpc.ring import transposed_matmul
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire
from veilgraph.paradigms.sealed.networks.coupled import Coupled
from veilgraph.paradigms.sealed.networks.network import Passed, Suits


class Appnp(Coupled):
    """softmax(Z_K), Z_k = (1 − α)·P·Z_(k−1) + α·Z_0, Z_0 = relu(X·W₁)·W₂."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=4.0, weight_decay=2e-3)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on all holders' columns, whose outputs go {hops} far over "
        "all holders' edges in every step"
    )

    @property
    @override
    def shapes(self) -> list[tuple[int, int]]:
        sizes, hidden = self.context.sizes, self.context.plan.hidden
        return [(sum(sizes.columns.values()), hidden), (hidden, sizes.classes)]

    @override
    def forward(self, weights: Sequence[Wire], wanted: slice) -> Passed:
        logits, hidden, gate = self._all(weights)
        return Passed(self.picked(logits, wanted), wanted, [hidden, gate])

    def _all(self, weights: Sequence[Wire]) -> tuple[Wire, Wire, Bit]:
        hidden, gate = self.activated(self.from_columns(self.columns, weights[0]))
        return self._moved(self.linear(hidden, weights[1])), hidden, gate

    def _moved(self, wire: Wire, *, transposed: bool = False) -> Wire:
        plan = self.context.plan
        return self.propagation(wire, plan.hops, plan.teleport, transposed=transposed)

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        hidden, gate = passed.inner
        assert isinstance(hidden, Wire)
        assert isinstance(gate, Bit)
        spread = self._moved(self.put_back(error, passed.wanted), transposed=True)
        below = self.hidden_error(spread, weights[1], gate)
        return [
            self.gradient_of_columns(self.columns, below),
            self.machine.product(transposed_matmul, hidden, spread),
        ]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        return self._all(weights)[0]
