"""GCN (Kipf and Welling 2017, arXiv:1609.02907): two layers, with a hop in each."""

from __future__ import annotations

from typing import ClassVar

from veilgraph.paradigms.sealed.networks.coupled import Coupled
from veilgraph.paradigms.sealed.networks.network import Suits


class Gcn(Coupled):
    """softmax(P·relu(P·X·W₁)·W₂)."""

    suits: ClassVar[Suits] = Suits(hops=1, learning_rate=1.0, weight_decay=1e-2, teleport=0.0)
    words: ClassVar[str] = (
        "A graph convolutional network of two layers, hidden width {hidden}, with all holders' "
        "edges in every step, {hops} a layer"
    )
    first_is_moved: ClassVar[bool] = True
