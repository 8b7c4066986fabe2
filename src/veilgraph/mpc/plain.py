"""The plaintext twin of each protocol: the same result by obvious computation in one place.

Tests compare the protocols with these, and the plaintext network of the baselines is built on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from veilgraph.core.config import InitialSettings
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.mpc import ring
from veilgraph.mpc.embed import init_std, init_weight


def rounded(values: Tensor, bits: int) -> Tensor:
    """What ``ring.encode`` keeps of real values, float64."""
    return torch.ldexp(torch.ldexp(values.to(torch.float64), torch.tensor(bits)).round(), torch.tensor(-bits))


def masked_sum(pieces: Sequence[Tensor]) -> Tensor:
    """Twin of ``hide`` and ``open_sum``: the sum, float64."""
    total = pieces[0].to(torch.float64, copy=True)
    for piece in pieces[1:]:
        total += piece
    return total


class PlainCollaborative:
    """Twin of ``embed.Collaborative``: all W^i in one place, float64, SGD with momentum and decoupled decay.

    Args:
        settings: of the initial embedding.
        matrices: holder → x^i [N, F_i], in the job's order.
        streams: holder → its learning streams; W's initial value is the sum of every holder's draw.
        feature_bits: x is rounded to these fractional bits, as in the ring.
        dim: d.
    """

    def __init__(
        self,
        settings: InitialSettings,
        matrices: Mapping[PartyId, Tensor],
        streams: Mapping[PartyId, LearningStreams],
        feature_bits: int,
        dim: int,
    ) -> None:
        self._settings = settings
        self._operands = {
            owner: ring.static_operand(matrix, lambda values: rounded(values, feature_bits))
            for owner, matrix in matrices.items()
        }
        columns = {owner: matrix.shape[1] for owner, matrix in matrices.items()}
        std = init_std(settings, sum(columns.values()), dim) / len(columns) ** 0.5
        self.weights = {
            owner: masked_sum([init_weight(stream, owner, columns[owner], dim, std) for stream in streams.values()])
            for owner in columns
        }
        self._momentum = {owner: torch.zeros_like(weight) for owner, weight in self.weights.items()}

    def embed(self) -> Tensor:
        """h^0 = Σ_i x^i·W^i, [N, d] float64."""
        return masked_sum([operand.times(self.weights[owner]) for owner, operand in self._operands.items()])

    def learn(self, gradients: Sequence[Tensor]) -> None:
        """One SGD step on every block with the sum of the holders' ∂L/∂h^0."""
        settings = self._settings
        gradient = masked_sum(gradients)
        for owner, operand in self._operands.items():
            self._momentum[owner].mul_(settings.momentum).add_(operand.transposed_times(gradient))
            self.weights[owner].mul_(1 - settings.learning_rate * settings.weight_decay)
            self.weights[owner].sub_(self._momentum[owner], alpha=settings.learning_rate)
