"""h^0 of a holder that has nodes of its own beside the common ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.paradigms.vertical.initial.individual import Individual, PlainOwn
from veilgraph.paradigms.vertical.initial.method import InitialEmbedding, PlainEmbedding

OWN_NODES: Final = "own nodes"
"""Name of W_own's learning stream; no holder can be called that."""


class WithOwnNodes(InitialEmbedding):
    """h^0 [N, d] of all nodes of a holder: the joint method's for the common rows, x·W_own below.

    Args:
        joint: the job's method, over the common nodes.
        own: over the holder's own nodes.
        common: C.
    """

    def __init__(self, joint: InitialEmbedding, own: Individual, common: int) -> None:
        self._joint, self._own, self._common = joint, own, common

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        return torch.cat([self._joint.embed(step, learns=learns), self._own.embed(step, learns=learns)])

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        self._joint.learn(step, gradient[: self._common])
        self._own.learn(step, gradient[self._common :])

    @override
    def parameters(self) -> list[nn.Parameter]:
        return [*self._joint.parameters(), *self._own.parameters()]

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {**self._joint.tensors(), "own_weight": self._own.weight}

    @override
    def weights(self) -> dict[str, Tensor]:
        return {**self._joint.weights(), "own_weight": self._own.weight}

    @override
    def close(self) -> None:
        self._joint.close()


class PlainWithOwnNodes(PlainEmbedding):
    """Twin of ``WithOwnNodes``: a joint method for the common rows and x·W_own below, trained by Adam.

    Args:
        joint: over the common nodes.
        own: over their own nodes, of the holders that have some; not summed.
        common: C.
    """

    def __init__(self, joint: PlainEmbedding, own: PlainOwn, common: int) -> None:
        self._joint, self._own, self._common = joint, own, common

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        own = self._own.embed()
        return {
            party: torch.cat([common, own[party]]) if party in own else common
            for party, common in self._joint.embed().items()
        }

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        self._joint.learn({party: gradient[: self._common] for party, gradient in gradients.items()})
        self._own.learn({party: gradients[party][self._common :] for party in self._own.weights()})

    @override
    def parameters(self) -> list[nn.Parameter]:
        return [*self._joint.parameters(), *self._own.parameters()]

    @override
    def weights(self) -> dict[PartyId, Tensor]:
        return self._joint.weights()

    @override
    def own_weights(self) -> dict[PartyId, Tensor]:
        return self._own.weights()
