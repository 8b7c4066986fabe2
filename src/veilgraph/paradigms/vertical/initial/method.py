"""What every method of the initial embeddings is: one holder's side, and its plaintext twin.

``embed`` gives h^0 of the current weights, ``learn`` takes ∂L/∂h^0 of the holder's own branch. Weights that a plain
optimiser may train are ``parameters``; ``collaborative`` trains its secret-shared W by itself.

A joint method knows the C common nodes. A holder's own nodes get x·W_own, which never leaves it; with ``individual``
the one W serves all N rows. ``perturbed`` is the same over features that all holders released: what a holder is given
as its matrix has them already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import Link, PartyId
from veilgraph.mpc import ring
from veilgraph.mpc.dealer import BLOCK_BYTES
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.nn.activation import Activation
from veilgraph.nn.dropout import Probability
from veilgraph.privacy.local.settings import FeatureReleaseSettings


class InitialSettings(Settings):
    """Initial embeddings h^0 (docs/protocol.md)."""

    method: Literal["collaborative", "individual", "secure-sum", "perturbed"] = Field(
        "collaborative", description="how h^0 follows from all holders' features, or from each one's own"
    )
    release: FeatureReleaseSettings | None = Field(
        None, description="perturbed only, which needs one: how every holder's nodes release their features"
    )
    learning_rate: float = Field(0.1, gt=0, description="SGD on the secret-shared W; collaborative only")
    momentum: float = Field(0.9, ge=0, lt=1, description="collaborative only")
    weight_decay: float = Field(
        0.0, ge=0, le=0.5, description="W ← (1 − learning_rate·weight_decay)·W each step; collaborative only"
    )
    init_std: float | None = Field(None, gt=0, description="of W's normal initialisation; default √(2/(F + d))")
    activation: Activation = Field("none", description="at each holder, on h^0")
    dropout: Probability = Field(0.0, description="at each holder, on h^0")
    feature_bits: int | None = Field(
        None,
        ge=0,
        le=24,
        description="fractional bits of x in the ring; default: as many as x needs, at most 12; with privacy 12",
    )
    gradient_bits: int = Field(28, ge=8, le=40, description="fractional bits of the scaled gradient in the ring")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.release is None) == (self.method == "perturbed"):
            raise ValueError(
                "method='perturbed' needs a release, which says how nodes perturb their features; give at least its "
                "epsilon"
                if self.release is None
                else f"release is for method='perturbed', not {self.method!r}; leave it out"
            )
        if self.learning_rate * self.weight_decay >= 1:
            raise ValueError(
                f"learning_rate·weight_decay = {self.learning_rate * self.weight_decay:g} must stay below 1: each step "
                "multiplies W by one minus it; lower one of them"
            )
        return self

    @property
    def is_joint(self) -> bool:
        """Whether the holders compute one h^0 together; else each computes its own, of what it has."""
        return self.method in ("collaborative", "secure-sum")


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
