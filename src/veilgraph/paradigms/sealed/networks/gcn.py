"""GCN (Kipf and Welling 2017, arXiv:1609.02907): two layers, with a hop in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import override

from veilgraph.mpc.ring import transposed_matmul
from veilgraph.mpc.sealed.wire import Bit, Summands, Wire
from veilgraph.paradigms.sealed.networks.coupled import Coupled
from veilgraph.paradigms.sealed.networks.network import Passed, Suits


class Gcn(Coupled):
    """softmax(P·relu(P·X·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=1, learning_rate=4.0, weight_decay=2e-3)
    words: ClassVar[str] = (
        "A graph convolutional network of two layers, hidden width {hidden}, with all holders' "
        "edges in every step, {hops} a layer"
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
        hops = self.context.plan.hops
        hidden, gate = self.activated(self.propagation(self.from_columns(self.columns, weights[0]), hops))
        return self.propagation(self.linear(hidden, weights[1]), hops), hidden, gate

    @override
    def backward(self, weights: Sequence[Wire], passed: Passed, error: Wire) -> list[Summands]:
        hops, (hidden, gate) = self.context.plan.hops, passed.inner
        assert isinstance(hidden, Wire)
        assert isinstance(gate, Bit)
        spread = self.propagation(self.put_back(error, passed.wanted), hops, transposed=True)
        below = self.propagation(self.hidden_error(spread, weights[1], gate), hops, transposed=True)
        return [
            self.gradient_of_columns(self.columns, below),
            self.machine.product(transposed_matmul, hidden, spread),
        ]

    @override
    def predict(self, weights: Sequence[Wire]) -> Wire:
        return self._all(weights)[0]
