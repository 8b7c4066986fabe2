"""APPNP (Klicpera et al. 2019, arXiv:1810.05997): a hidden layer on every node's own columns, then K hops."""

from __future__ import annotations

from typing import ClassVar

from veilgraph.paradigms.sealed.networks.coupled import Coupled
from veilgraph.paradigms.sealed.networks.network import Suits


class Appnp(Coupled):
    """softmax(Z_K), Z_k = (1 − α)·P·Z_(k−1) + α·Z_0, Z_0 = relu(X·W₁)·W₂."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=1.0, weight_decay=1e-2)
    words: ClassVar[str] = (
        "A hidden layer of {hidden} on all holders' columns, whose outputs go {hops} far over "
        "all holders' edges in every step"
    )
    first_is_moved: ClassVar[bool] = False
