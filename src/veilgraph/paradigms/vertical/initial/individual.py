"""Each holder's own h^0: nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.mpc import ring
from veilgraph.mpc.plain import masked_sum
from veilgraph.paradigms.vertical.initial.method import (
    EmbeddingSession,
    InitialEmbedding,
    InitialSettings,
    PlainEmbedding,
    init_std,
    init_weight,
)


class Individual(InitialEmbedding):
    """h^0_i = x^i·W^i, everything local; the holders' h^0 differ.

    Args:
        session: of the holder.
        stream: of W's initial value; default: the holder's name.
    """

    def __init__(self, session: EmbeddingSession, stream: str | None = None) -> None:
        self._operand = ring.static_operand(session.matrix, lambda values: values.to(session.dtype))
        columns = session.matrix.shape[1]
        std = init_std(session.settings, columns, session.dim)
        weight = init_weight(session.streams, stream or session.link.party, columns, session.dim, std)
        self.weight = nn.Parameter(weight.to(session.dtype))

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        return self._operand.times(self.weight.detach())

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        self.weight.grad = self._operand.transposed_times(gradient)

    @override
    def parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}


class PlainOwn(PlainEmbedding):
    """Twin of ``Individual`` and, with ``summed``, of ``SecureSum``: each W^i trained by Adam."""

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        dim: int,
        dtype: torch.dtype,
        *,
        summed: bool,
        stream: str | None = None,
    ) -> None:
        self._summed = summed
        self._operands = {
            owner: ring.static_operand(matrix, lambda values: values.to(dtype)) for owner, matrix in matrices.items()
        }
        total = sum(matrix.shape[1] for matrix in matrices.values())
        self._parameters = {}
        for owner, matrix in matrices.items():
            columns = matrix.shape[1]
            std = init_std(settings, total if summed else columns, dim)
            self._parameters[owner] = nn.Parameter(
                init_weight(streams[owner], stream or owner, columns, dim, std).to(dtype)
            )

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        own = {owner: operand.times(self._parameters[owner].detach()) for owner, operand in self._operands.items()}
        return self._shared(own)

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        for owner, gradient in self._shared(gradients).items():
            self._parameters[owner].grad = self._operands[owner].transposed_times(gradient)

    @override
    def parameters(self) -> list[nn.Parameter]:
        return list(self._parameters.values())

    @override
    def weights(self) -> dict[PartyId, Tensor]:
        return {owner: parameter.data for owner, parameter in self._parameters.items()}

    def _shared(self, own: Mapping[PartyId, Tensor]) -> dict[PartyId, Tensor]:
        if not self._summed:
            return dict(own)
        total = masked_sum(list(own.values()))
        return {owner: total.to(part.dtype) for owner, part in own.items()}
