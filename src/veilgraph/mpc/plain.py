"""The plaintext twin of each protocol: the same result by obvious computation in one place.

Tests compare the protocols with these, and the plaintext network of the baselines is built on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.mpc import ring
from veilgraph.mpc.embed import init_std, init_weight
from veilgraph.nn.settings import InitialSettings


def rounded(values: Tensor, bits: int) -> Tensor:
    """What ``ring.encode`` keeps of real values, float64."""
    return torch.ldexp(torch.ldexp(values.to(torch.float64), torch.tensor(bits)).round(), torch.tensor(-bits))


def masked_sum(pieces: Sequence[Tensor]) -> Tensor:
    """Twin of ``hide`` and ``open_sum``: the sum, float64."""
    total = pieces[0].to(torch.float64, copy=True)
    for piece in pieces[1:]:
        total += piece
    return total


def plain_max(values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Twin of the secure maximum.

    Args:
        values: of every holder, in the job's order, floating and of one shape.

    Returns:
        The elementwise maximum, and for every holder the bool mask of where it attains it: the first one of several,
        and nobody where all are −inf.
    """
    stacked = torch.stack(list(values))
    maximum = stacked.amax(dim=0)
    attained = (stacked == maximum) & (stacked > float("-inf"))
    first = attained & (attained.cumsum(dim=0) == 1)
    return maximum, list(first)


class PlainEmbedding(ABC):
    """All holders' initial embeddings in one place."""

    @abstractmethod
    def embed(self) -> dict[PartyId, Tensor]:
        """Holder → its h^0 in the job's precision, a row for each of its nodes, without a graph."""

    @abstractmethod
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        """Takes every holder's ∂L/∂h^0, of the same shape: updates W, or leaves gradients in ``parameters``."""

    def parameters(self) -> list[nn.Parameter]:
        """Weights for Adam."""
        return []

    @abstractmethod
    def weights(self) -> dict[PartyId, Tensor]:
        """Owner → W of its columns [F_owner, d]."""

    def own_weights(self) -> dict[PartyId, Tensor]:
        """Owner → W_own [F_owner, d], for those that have nodes of their own with a W_own."""
        return {}


class PlainCollaborative(PlainEmbedding):
    """Twin of ``embed.Collaborative``: all W^i in one place, float64, SGD with momentum and decoupled decay.

    Args:
        settings: of the initial embedding.
        matrices: holder → x^i [N, F_i], in the job's order.
        streams: holder → its learning streams; W's initial value is the sum of every holder's draw.
        feature_bits: x is rounded to these fractional bits, as in the ring.
        dim: d.
        dtype: of h^0.
    """

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        feature_bits: int,
        dim: int,
        dtype: torch.dtype,
    ) -> None:
        self._settings, self._dtype = settings, dtype
        self._operands = {
            owner: ring.static_operand(matrix, lambda values: rounded(values, feature_bits))
            for owner, matrix in matrices.items()
        }
        columns = {owner: matrix.shape[1] for owner, matrix in matrices.items()}
        std = init_std(settings, sum(columns.values()), dim) / len(columns) ** 0.5
        self._weights = {
            owner: masked_sum([init_weight(streams[other], owner, columns[owner], dim, std) for other in columns])
            for owner in columns
        }
        self._momentum = {owner: torch.zeros_like(weight) for owner, weight in self._weights.items()}

    @override
    def embed(self) -> dict[PartyId, Tensor]:
        parts = [operand.times(self._weights[owner]) for owner, operand in self._operands.items()]
        return dict.fromkeys(self._operands, masked_sum(parts).to(self._dtype))

    @override
    def learn(self, gradients: Mapping[PartyId, Tensor]) -> None:
        settings = self._settings
        gradient = masked_sum(list(gradients.values()))
        for owner, operand in self._operands.items():
            self._momentum[owner].mul_(settings.momentum).add_(operand.transposed_times(gradient))
            self._weights[owner].mul_(1 - settings.learning_rate * settings.weight_decay)
            self._weights[owner].sub_(self._momentum[owner], alpha=settings.learning_rate)

    @override
    def weights(self) -> dict[PartyId, Tensor]:
        return self._weights


class PlainOwn(PlainEmbedding):
    """Twin of ``embed.Individual`` and, with ``summed``, of ``embed.SecureSum``: each W^i trained by Adam."""

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


class PlainWithOwnNodes(PlainEmbedding):
    """Twin of ``embed.WithOwnNodes``: a joint method for the common rows and x·W_own below, trained by Adam.

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
