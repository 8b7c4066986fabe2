"""Initial embeddings h^0, one holder's side of each method (VFGNN 3.2 and Algorithm 3).

A method is a class here and a line in ``METHODS``. ``embed`` gives h^0 of the current weights, ``learn`` takes
∂L/∂h^0 of the holder's own branch. Weights that a plain optimiser may train are ``parameters``; ``collaborative``
trains its secret-shared W by itself.

A joint method knows the C common nodes. A holder's own nodes get x·W_own, which never leaves it; with ``individual``
the one W serves all N rows. ``perturbed`` is the same over features that all holders released: what a holder is given
as its matrix has them already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.mpc import ring
from veilgraph.mpc.dealer import BLOCK_BYTES
from veilgraph.mpc.mask import PairwiseMasks, sum_among
from veilgraph.mpc.product import SecureProduct
from veilgraph.mpc.shares import open_shares, share_contribution
from veilgraph.nn.settings import InitialSettings

SUM_BITS: Final = 40
"""Fractional bits of what ``secure-sum`` opens: |h^0| and |g| stay below 2^21."""

OWN_NODES: Final = "own nodes"
"""Name of W_own's learning stream; no holder can be called that."""

_INIT_RANGE_STD: Final = 8.0
_SCALE_REMEDY: Final = (
    "lower model.initial.gradient_bits or model.initial.feature_bits, or scale the features (data.feature_scaling)"
)
_SUM_REMEDY: Final = "scale the features (data.feature_scaling) or lower the learning rate"


@dataclass(frozen=True)
class EmbeddingSession:
    """What every method is given: the session of one holder.

    ``matrix`` [C, F] has the features of the common nodes, or [N, F] of all where the method is not joint;
    ``features`` maps holder → number of columns in the job's order (unknown, 0, where the method is not joint);
    ``feature_bits`` is the scale all agreed on; ``own`` [N − C, F] has the features of the nodes that no other
    holder knows, None where there are none or ``matrix`` has them; ``block_bytes`` is as for ``row_blocks``, and
    ``device`` where dense products in the ring are computed; ``trace`` notes what is prepared ahead.
    """

    link: Link
    settings: InitialSettings
    matrix: Tensor
    features: Mapping[PartyId, int]
    feature_bits: int
    dim: int
    masks: PairwiseMasks
    streams: LearningStreams
    dtype: torch.dtype
    own: Tensor | None = None
    block_bytes: int = BLOCK_BYTES
    device: torch.device = ring.CPU
    trace: AnyTrace = NO_TRACE

    @property
    def others(self) -> list[PartyId]:
        """The other holders."""
        return [holder for holder in self.features if holder != self.link.party]


def init_std(settings: InitialSettings, columns: int, dim: int) -> float:
    """Standard deviation of W's initial entries: given, or Glorot's √(2/(F + d))."""
    return settings.init_std or (2.0 / (columns + dim)) ** 0.5


def init_weight(streams: LearningStreams, owner: str, columns: int, dim: int, std: float) -> Tensor:
    """A normal float64 [columns, dim] matrix from the party's stream for ``owner``'s block."""
    return torch.randn(columns, dim, dtype=torch.float64, generator=streams.generator(f"initial/{owner}")) * std


class InitialEmbedding(ABC):
    """One holder's side of a method."""

    @abstractmethod
    def embed(self, step: int, *, learns: bool) -> Tensor:
        """h^0 of the current weights, a row for each node; ``learns`` announces that ``learn`` follows."""

    @abstractmethod
    def learn(self, step: int, gradient: Tensor) -> None:
        """Takes ∂L/∂h^0 of this holder's branch: updates W, or leaves its gradient in ``parameters``."""

    def parameters(self) -> list[nn.Parameter]:
        """Weights that the holder's own optimiser trains."""
        return []

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The live state, by name: weights or shares, and the optimiser state kept here."""

    def weights(self) -> dict[str, Tensor]:
        """The live part of ``tensors`` that inference needs, whatever the number of nodes."""
        return self.tensors()

    def close(self) -> None:  # noqa: B027  (most methods have no background work)
        """Ends background work."""


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


class SecureSum(Individual):
    """h^0 = Σ_i x^i·W^i by a masked sum; each W^i stays in plaintext at its holder.

    Only the sum, and on the way back the sum of the gradients, is opened among the holders. With two holders each
    can subtract its own part: see docs/threat-model.md.
    """

    def __init__(self, session: EmbeddingSession) -> None:
        super().__init__(session)
        self._session = session
        std = init_std(session.settings, sum(session.features.values()), session.dim)
        party = session.link.party
        weight = init_weight(session.streams, party, session.features[party], session.dim, std)
        self.weight.data.copy_(weight.to(session.dtype))

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        return self._sum(super().embed(step, learns=learns), Tag(Kind.MASKED, step), "h0")

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        super().learn(step, self._sum(gradient, Tag(Kind.MASKED_GRADIENT, step), "h0 gradient"))

    def _sum(self, own: Tensor, tag: Tag, purpose: str) -> Tensor:
        session = self._session
        return sum_among(
            session.link, session.others, session.masks, own, tag, bits=SUM_BITS, purpose=purpose, remedy=_SUM_REMEDY
        )


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
            return ring.encode(values, session.feature_bits, f"{party}'s features", _SCALE_REMEDY)

        total = sum(session.features.values())
        std = init_std(session.settings, total, session.dim)
        self._check_range(std, session.feature_bits + weight_bits)
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
                    _SCALE_REMEDY,
                ),
                session.masks,
                f"W/{owner}",
            )
            for owner, columns in session.features.items()
        }
        self._momentum = torch.zeros(session.matrix.shape[0], session.dim, dtype=session.dtype)
        self._scale = torch.ones((), dtype=torch.float64)

    def _check_range(self, std: float, opened_bits: int) -> None:
        matrix = self._session.matrix
        if matrix.layout == torch.sparse_csr:
            rows = torch.repeat_interleave(torch.arange(matrix.shape[0]), matrix.crow_indices().diff())
            sizes = torch.zeros(matrix.shape[0], dtype=torch.float64)
            sizes.index_add_(0, rows, matrix.values().to(torch.float64).square())
        else:
            sizes = torch.linalg.vector_norm(matrix, dim=1).square()
        largest = float(sizes.max().sqrt()) * _INIT_RANGE_STD * std
        room = 63 - ring.GUARD_BITS - opened_bits
        if largest >= 2.0**room:
            raise RangeOverflow(
                f"{self._session.link.party}'s features are too large for the ring: h^0 of about {largest:.3g} needs "
                f"|h^0| < 2^{room} with feature_bits={self._session.feature_bits} and gradient_bits="
                f"{self._session.settings.gradient_bits}; {_SCALE_REMEDY}"
            )

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        session = self._session
        embedding = torch.empty(session.matrix.shape[0], session.dim, dtype=session.dtype)
        opened_bits = session.feature_bits + int(self._weight_bits)
        for block, (rows, share) in enumerate(self._product.forward(step, self.shares, learns=learns)):
            opened = open_shares(session.link, session.others, Tag(Kind.SHARE, step, block), share)
            embedding[rows] = ring.decode(opened, opened_bits, session.dtype, "h^0", _SCALE_REMEDY, float(self._scale))
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


METHODS: Final[dict[str, type[Individual] | type[Collaborative]]] = {
    "individual": Individual,
    "secure-sum": SecureSum,
    "collaborative": Collaborative,
}


def build_embedding(session: EmbeddingSession) -> InitialEmbedding:
    """The method that the job names, set up for this session (may exchange messages)."""
    joint = METHODS[session.settings.method if session.settings.is_joint else "individual"](session)
    if session.own is None:
        return joint
    own = Individual(replace(session, matrix=session.own, own=None), OWN_NODES)
    return WithOwnNodes(joint, own, common=session.matrix.shape[0])
