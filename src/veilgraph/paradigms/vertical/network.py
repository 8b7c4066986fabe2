"""The split network of vertical jobs, by party, and initial embeddings h^0 by each method (VFGNN 3.2, Algorithm 3).

A joint method computes h^0 of the C common nodes. A holder's own nodes get x·W_own, which never leaves it; with
``individual`` one W serves all N rows. The roles run the network's parts apart, the plaintext twin together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, cast

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.mpc import ring
from veilgraph.mpc.mask import PairwiseMasks, open_shares, share_contribution, sum_among
from veilgraph.mpc.product import BLOCK_BYTES, SecureProduct
from veilgraph.nn.combine import AnyCombineSettings, CombineSettings, build_combine
from veilgraph.nn.layers import ACTIVATIONS, Activation, HeadSettings, Probability, ServerSettings, build_deep, dropout
from veilgraph.nn.local.build import AnyLocalSettings, CustomModel, FirstSettings, build_local
from veilgraph.nn.local.model import LocalModel
from veilgraph.nn.neighbourhood import Neighbourhood, Sampler
from veilgraph.nn.propagate import Adjacency, first_rows

with deferred():  # a twentieth of a second to import, and for sparse features alone
    from scipy.sparse.linalg import norm as sparse_norm


def _not_retired(method: object) -> object:
    if method == "perturbed":
        raise ValueError(
            "vertical jobs release no node's features with noise, for that gained nothing over the label holder's own "
            "columns; take paradigm: node-dp, which releases whole tables so"
        )
    return method


class InitialSettings(Settings):
    """Initial embeddings h^0 (docs/explanation/protocol.md)."""

    method: Annotated[Literal["collaborative", "individual", "secure-sum"], BeforeValidator(_not_retired)] = (
        "collaborative"
    )
    """how h^0 follows from all holders' features, or each one's"""
    learning_rate: float = Field(0.1, gt=0)
    """SGD on the secret-shared W; collaborative only"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """collaborative only"""
    weight_decay: float = Field(0.0, ge=0, le=0.5)
    """W ← (1 − learning_rate·weight_decay)·W each step; collaborative only"""
    init_std: float | None = Field(None, gt=0)
    """of W's normal initialisation; null: √(2/(F + d))"""
    activation: Activation = "none"
    """of h^0, at each holder"""
    dropout: Probability = 0.0
    """of h^0, at each holder"""
    feature_bits: int | None = Field(None, ge=0, le=24)
    """fractional bits of x; null: as many as x needs, up to 12"""
    gradient_bits: int = Field(28, ge=8, le=40)
    """fractional bits of the scaled gradient"""

    @model_validator(mode="before")
    @classmethod
    def _without_release(cls, content: object) -> object:
        """A job that an older version stored says ``release: null``."""
        if isinstance(content, Mapping) and "release" in content and content["release"] is None:
            return {key: value for key, value in content.items() if key != "release"}
        return content

    @model_validator(mode="after")
    def _check_decay(self) -> Self:
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"learning_rate·weight_decay = {self.learning_rate * self.weight_decay:g} must stay below 1: each step "
                "multiplies W by one minus it; lower one of them"
            )
        return self

    @property
    def is_joint(self) -> bool:
        """Whether the holders compute one h^0 together; else each computes its own from its own features."""
        return self.method in ("collaborative", "secure-sum")


@dataclass(frozen=True)
class EmbeddingSession:
    """What one holder's side of a method needs, whichever method it is.

    ``matrix`` [C, F] has the features of the common nodes, or [N, F] of all where the method is not joint. ``features``
    are columns (0 where it is not joint); ``feature_bits`` the scale all agreed on; ``block_bytes`` is as for
    ``row_blocks``.
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
    block_bytes: int = BLOCK_BYTES
    device: torch.device = ring.CPU
    trace: AnyTrace = NO_TRACE

    @property
    def others(self) -> list[PartyId]:
        """The other holders."""
        return [holder for holder in self.features if holder != self.link.party]


def init_std(settings: InitialSettings, columns: int, dim: int) -> float:
    """Standard deviation of W's initial entries: ``init_std`` if set, else Glorot's √(2/(F + d)), F ``columns``."""
    return settings.init_std or (2.0 / (columns + dim)) ** 0.5


def init_weight(streams: LearningStreams, owner: str, columns: int, dim: int, std: float) -> Tensor:
    """Draw W's block for ``owner``'s columns: normal, float64 [columns, dim], from the party's own stream."""
    return torch.randn(columns, dim, dtype=torch.float64, generator=streams.generator(f"initial/{owner}")) * std


class InitialEmbedding(ABC):
    """One holder's side of a method that computes and learns initial embeddings h^0."""

    @abstractmethod
    def embed(self, step: int, *, learns: bool) -> Tensor:
        """Compute h^0 with the current weights, [C or N, d]; ``learns`` announces that ``learn`` follows."""

    @abstractmethod
    def learn(self, step: int, gradient: Tensor) -> None:
        """Take ∂L/∂h^0 of this holder's branch, shaped as h^0: update W, or set the gradient of ``parameters``."""

    def parameters(self) -> list[nn.Parameter]:
        """Weights that the holder's own optimiser trains; none if ``learn`` updates W itself."""
        return []

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Name → live tensor of the training state: weights or shares, and optimiser state kept here."""

    def weights(self) -> dict[str, Tensor]:
        """The part of ``tensors`` that inference needs; its shapes do not depend on the number of nodes."""
        return self.tensors()

    def close(self) -> None:  # noqa: B027  (most methods have no background work)
        """End background work."""


SCALE_REMEDY: Final = (
    "scale the features (data.feature_scaling: standard), or lower model.initial.gradient_bits or "
    "model.initial.feature_bits"
)
SUM_BITS: Final = 40  # fractional bits of what ``secure-sum`` opens: |h^0| and |g| stay below 2^21
SUM_REMEDY: Final = "scale the features (data.feature_scaling) or lower the learning rate"
_STD: Final = 8.0  # no entry of x·W, normal with std·‖x‖, is expected beyond so many standard deviations


def check_range(
    party: PartyId, matrix: Tensor, settings: InitialSettings, std: float, *, holders: int, feature_bits: int
) -> None:
    """Refuse features, Tensor[N, F], whose initial h^0 (``secure-sum``: a holder's part of it) would leave the ring.

    W is normal with deviation ``std``. The ``RangeOverflow`` says how many rows are too long.
    """
    sums = settings.method == "secure-sum"
    bits = (holders - 1).bit_length() + SUM_BITS if sums else 2 * feature_bits + settings.gradient_bits
    room = 63 - ring.GUARD_BITS - bits
    starts = _row_lengths(matrix) * (_STD * std)
    beyond = int((starts >= 2.0**room).sum())
    if not beyond:
        return
    need = f"needs |h^0| < 2^{room} with feature_bits={feature_bits} and gradient_bits={settings.gradient_bits}; "
    if sums:
        need = f"must stay below 2^{room} with model.initial.method=secure-sum; "
    remedy = "scale the features (data.feature_scaling: standard)" if sums else SCALE_REMEDY
    raise RangeOverflow(
        f"{party}'s features are too large for the ring: {'its part of ' if sums else ''}h^0 of about "
        f"{float(starts.max()):.3g}, at {beyond:,} of {len(starts):,} nodes too large, {need}{remedy}",
        key="model.initial.method" if sums else "model.initial.feature_bits",
        value=settings.method if sums else feature_bits,
        party=party,
    )


def check_together(
    settings: InitialSettings, dim: int, matrices: Mapping[PartyId, Tensor], feature_bits: int | None
) -> None:
    """Apply ``check_range`` to all holders' features, if the method is joint; ``feature_bits`` None: what they need."""
    if not (settings.is_joint and matrices):
        return
    std = init_std(settings, sum(matrix.shape[1] for matrix in matrices.values()), dim)
    if feature_bits is None and settings.method == "collaborative":
        feature_bits = max(map(ring.fractional_bits, matrices.values()))
    for party, matrix in matrices.items():
        check_range(party, matrix, settings, std, holders=len(matrices), feature_bits=feature_bits or 0)


def _row_lengths(matrix: Tensor) -> Tensor:
    """L2 norms of the rows of Tensor[N, F], dense or ``torch.sparse_csr``: Tensor[N] float64."""
    if is_sparse(matrix):
        return torch.from_numpy(sparse_norm(to_scipy(matrix).astype(np.float64), axis=1))
    dense: Tensor = torch.linalg.vector_norm(matrix, dim=1)
    return dense.double()


class Individual(InitialEmbedding):
    """h^0_i = x^i·W^i, everything local; the holders' h^0 differ.

    W^i is drawn from the holder's stream for ``stream``, with a deviation for ``columns``, by default those of x^i.
    """

    def __init__(
        self,
        settings: InitialSettings,
        matrix: Tensor,
        dim: int,
        streams: LearningStreams,
        stream: str,
        dtype: torch.dtype,
        columns: int | None = None,
    ) -> None:
        own = matrix.shape[1]
        self._operand = ring.static_operand(matrix, lambda values: values.to(dtype))
        weight = init_weight(streams, stream, own, dim, init_std(settings, columns or own, dim))
        self.weight = nn.Parameter(weight.to(dtype))

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
    can subtract its own part: see docs/explanation/threat-model.md.
    """

    def __init__(self, session: EmbeddingSession) -> None:
        settings, matrix, dim, party = session.settings, session.matrix, session.dim, session.link.party
        columns, holders = sum(session.features.values()), len(session.features)
        check_range(party, matrix, settings, init_std(settings, columns, dim), holders=holders, feature_bits=0)
        super().__init__(settings, matrix, dim, session.streams, party, session.dtype, columns)
        self._session = session

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        return self._sum(super().embed(step, learns=learns), Tag(Kind.MASKED, step), "h0")

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        super().learn(step, self._sum(gradient, Tag(Kind.MASKED_GRADIENT, step), "h0 gradient"))

    def _sum(self, own: Tensor, tag: Tag, purpose: str) -> Tensor:
        session = self._session
        return sum_among(
            session.link, session.others, session.masks, own, tag, bits=SUM_BITS, purpose=purpose, remedy=SUM_REMEDY
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
            return ring.encode(values, session.feature_bits, f"{party}'s features", SCALE_REMEDY)

        bits, holders = session.feature_bits, len(session.features)
        std = init_std(session.settings, sum(session.features.values()), session.dim)
        check_range(party, session.matrix, session.settings, std, holders=holders, feature_bits=bits)
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
        own_std = std / holders**0.5
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


OWN_NODES: Final = "own nodes"  # name of W_own's learning stream; no holder can be called that


def build_embedding(session: EmbeddingSession) -> InitialEmbedding:
    """Make this holder's side of the method that the settings name (may exchange messages)."""
    settings, party = session.settings, session.link.party
    if not settings.is_joint:
        return Individual(settings, session.matrix, session.dim, session.streams, party, session.dtype)
    return SecureSum(session) if settings.method == "secure-sum" else Collaborative(session)


class ModelSettings(Settings):
    """The split network."""

    dim: int = Field(64, ge=1, le=4096)
    """d, width of embeddings"""
    rounds: int = Field(1, ge=1, le=64)
    """R; above 1, holders see combined embeddings of earlier rounds"""
    initial: InitialSettings = InitialSettings()
    local: AnyLocalSettings = FirstSettings()
    combine: AnyCombineSettings = CombineSettings()
    server: ServerSettings = ServerSettings()
    head: HeadSettings = HeadSettings()

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.rounds > 1 and build_combine(self.combine).output_dim(self.dim, 2) != self.dim:
            raise ValueError(
                f"rounds > 1 sends the combined embedding back as the next input of width dim, and "
                f"{self.combine.strategy} makes it wider; set rounds to 1 or choose mean, regression or degree-weighted"
            )
        self.local.kind.check(self.local, self.dim)
        return self


class HolderNetwork(nn.Module):
    """What one data holder computes between h^0 and what it publishes, of ``common`` nodes, C, the first, or all."""

    def __init__(
        self,
        settings: ModelSettings,
        holders: int,
        adjacency: Adjacency,
        streams: LearningStreams,
        custom: CustomModel | None = None,
        common: int | None = None,
    ) -> None:
        super().__init__()
        self._adjacency = adjacency
        self._common = adjacency.num_nodes if common is None else common
        self._local_rate = settings.local.learning_rate
        self._initial = settings.initial
        self.local = nn.ModuleList(
            build_local(
                settings.local,
                settings.dim,
                holders,
                last_round=round_ == settings.rounds,
                streams=streams,
                round=round_,
                custom=custom,
                dtype=adjacency.dtype,
                relations=adjacency.relations,
            )
            for round_ in range(1, settings.rounds + 1)
        )
        combine = build_combine(settings.combine)
        self.contribution = combine.holder_part(settings.dim, holders, adjacency)
        weight = combine.holder_weight(holders, adjacency)
        self.weight = None if weight is None else weight[: self._common]

    def rates(self) -> dict[nn.Parameter, float]:
        """Weight → learning rate, for local models' weights if ``local.learning_rate`` is set; else empty."""
        return {} if self._local_rate is None else dict.fromkeys(self.local.parameters(), self._local_rate)

    def start(self, embedding: Tensor, generator: torch.Generator | None) -> Tensor:
        """Apply the initial activation and dropout to h^0: [N, d]."""
        return dropout(ACTIVATIONS[self._initial.activation](embedding), self._initial.dropout, generator)

    def contribute(
        self, round_: int, h: Tensor, initial: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run round ``round_``, 1 to R, over all of the holder's nodes, on its input h and on h^0, [N, d] each.

        Returns what the holder gives to COMBINE, Tensor[C, d]; and t of its other nodes, Tensor[N − C, d] or None.
        """
        local: Tensor = self.local[round_ - 1](h, initial, self._adjacency, generator)
        own = local[self._common :] if self._common < self._adjacency.num_nodes else None
        contribution: Tensor = self.contribution(local)
        return first_rows(contribution, self._common), own

    def contribute_batch(
        self, h: Tensor, around: Neighbourhood, targets: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Run a batch's only round on ``h`` of the nodes ``around`` B targets: what goes to COMBINE, Tensor[B, d]."""
        contribution: Tensor = self.contribution(self.local[0](h, h, around, generator), targets)
        return contribution

    def propagate_all(self, h: Tensor, sampler: Sampler) -> Tensor:
        """Evaluate the local model of a job in batches on all nodes, block by block: t, Tensor[N, d]."""
        return cast(LocalModel[Any], self.local[0]).in_blocks(h, sampler)


def next_input(combined: Tensor, own: Tensor | None) -> Tensor:
    """Make a holder's input of the next round: combined rows [C, d], then t of its own nodes [N − C, d]."""
    return combined if own is None else torch.cat([combined, own])


class ServerNetwork(nn.Module):
    """What the server computes between the holders' contributions and z_L."""

    def __init__(self, settings: ModelSettings, holders: int, streams: LearningStreams, dtype: torch.dtype) -> None:
        super().__init__()
        self.combine = build_combine(settings.combine)
        width = self.combine.output_dim(settings.dim, holders)
        self.deep = build_deep(width, settings.dim, settings.server, streams=streams, dtype=dtype)

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None) -> Tensor:
        """COMBINE all contributions, or their sum only if linear; ``weight_total``: sum of holders' weights, [·, 1]."""
        merged: Tensor = self.combine.merge(pieces, weight_total)
        return merged


def deep_width(settings: ModelSettings, holders: int) -> int:
    """Width of z_L, the server's output, which is the input of the label holder's head."""
    if settings.server.layers:
        return settings.dim
    return build_combine(settings.combine).output_dim(settings.dim, holders)
