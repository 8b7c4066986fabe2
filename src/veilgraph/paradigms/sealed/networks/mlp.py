"""A hidden layer on propagated rows."""

from __future__ import annotations

from typing import ClassVar

from veilgraph.paradigms.sealed.networks.decoupled import Perceptron
from veilgraph.paradigms.sealed.networks.network import Suits


class Mlp(Perceptron):
    """softmax(relu(P^K·X·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=2.0, weight_decay=1e-2)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on rows that are propagated over all holders' edges together once, {hops} far"
    )
