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

import torch
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import Link, PartyId
from veilgraph.mpc import ring
from veilgraph.mpc.dealer import BLOCK_BYTES
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.nn.settings import InitialSettings


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
