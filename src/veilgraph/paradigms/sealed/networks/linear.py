"""SGC: one linear layer on propagated rows (Wu et al. 2019, arXiv:1902.07153), its loss convex."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.paradigms.sealed.networks.decoupled import Decoupled
from veilgraph.paradigms.sealed.networks.network import Suits


class Linear(Decoupled):
    """softmax(P^K·X·W)."""

    suits: ClassVar[Suits] = Suits(hops=10, learning_rate=4.0, weight_decay=1e-3)
    words: ClassVar[str] = (
        "A linear model on rows that are propagated over all holders' edges together once, {hops} far"
    )

    @override
    def initial(self, bits: int) -> list[Tensor]:
        return [torch.zeros(shape, dtype=torch.int64) for shape in self.shapes]
