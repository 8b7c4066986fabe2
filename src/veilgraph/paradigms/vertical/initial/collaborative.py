"""One h^0 of all holders, computed on secret shares (VFGNN Algorithm 3)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.mpc import ring
from veilgraph.mpc.plain import masked_sum, rounded
from veilgraph.mpc.product import SecureProduct
from veilgraph.mpc.shares import open_shares, share_contribution
from veilgraph.paradigms.vertical.initial.method import (
    EmbeddingSession,
    InitialEmbedding,
    InitialSettings,
    PlainEmbedding,
    init_std,
    init_weight,
)
from veilgraph.paradigms.vertical.initial.ranges import SCALE_REMEDY, check_start


class Collaborative(InitialEmbedding):
    """h^0 = Σ_i x^i·W^i with every W^i secret-shared among all holders; only h^0 is opened.

    W is trained by SGD with momentum. Momentum is linear, so each holder keeps a momentum buffer of its own
    gradient per node and multiplies once. Decoupled weight decay is exact: W = c·Ŵ with a public scalar
    c ← (1 − η·λ)·c; shares hold Ŵ, updates are divided by c, and c is applied after opening.
    """

    def __init__(self, session: EmbeddingSession) -> None:
        self._session = session
        weight_bits = session.feature_bits + session.settings.gradient_bits
        self._weight_bits = torch.tensor(weight_bits)  # with the weights: another graph's x may need other bits
        party = session.link.party

        def to_ring(values: Tensor) -> Tensor:
            return ring.encode(values, session.feature_bits, f"{party}'s features", SCALE_REMEDY)

        total = sum(session.features.values())
        std = init_std(session.settings, total, session.dim)
        check_start(party, session.matrix, session.settings, session.feature_bits, std)
        self._product = SecureProduct(
            session.link,
            session.masks,
            session.matrix,
            to_ring,
            session.features,
            session.dim,
            session.block_bytes,
            session.device,
            session.trace,
        )
        own_std = std / len(session.features) ** 0.5
        self.shares = {
            owner: share_contribution(
                ring.encode(
                    init_weight(session.streams, owner, columns, session.dim, own_std),
                    weight_bits,
                    "the initial W",
                    SCALE_REMEDY,
                ),
                session.masks,
                f"W/{owner}",
            )
            for owner, columns in session.features.items()
        }
        self._momentum = torch.zeros(session.matrix.shape[0], session.dim, dtype=session.dtype)
        self._scale = torch.ones((), dtype=torch.float64)

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        session = self._session
        embedding = torch.empty(session.matrix.shape[0], session.dim, dtype=session.dtype)
        opened_bits = session.feature_bits + int(self._weight_bits)
        for block, (rows, share) in enumerate(self._product.forward(step, self.shares, learns=learns)):
            opened = open_shares(session.link, session.others, Tag(Kind.SHARE, step, block), share)
            embedding[rows] = ring.decode(opened, opened_bits, session.dtype, "h^0", SCALE_REMEDY, float(self._scale))
        return embedding

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        settings = self._session.settings
        self._momentum.mul_(settings.momentum).add_(gradient)
        self._scale.mul_(1 - settings.learning_rate * settings.weight_decay)
        rate = float(settings.learning_rate / self._scale)

        def scaled(rows: slice) -> Tensor:
            return ring.encode(
                self._momentum[rows],
                settings.gradient_bits,
                "the scaled gradient of h^0",
                "lower model.initial.gradient_bits or model.initial.learning_rate",
                factor=rate,
            )

        for owner, update in self._product.backward(step, scaled).items():
            self.shares[owner] -= update

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {**self.weights(), "momentum": self._momentum}

    @override
    def weights(self) -> dict[str, Tensor]:
        shares = {f"share/{owner}": share for owner, share in self.shares.items()}
        return {**shares, "scale": self._scale, "weight_bits": self._weight_bits}

    @override
    def close(self) -> None:
        self._product.close()


class PlainCollaborative(PlainEmbedding):
    """Twin of ``Collaborative``: all W^i in one place, float64, SGD with momentum and decoupled decay.

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
