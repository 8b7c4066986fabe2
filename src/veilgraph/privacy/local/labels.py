"""Randomised response for labels: a node names its true class with a known probability, else one of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy.event import LocalEvent
from veilgraph.privacy.local.chance import FEWEST_STEPS, GRID, least_cells, uniform
from veilgraph.privacy.local.features import check_whole

PIECE = 1 << 18


@dataclass(frozen=True)
class LabelResponse:
    """Keeps a label with probability e^ε/(e^ε + c − 1), else gives one of the c − 1 others, all equally likely.

    With u uniform on the integers below G = 2^53 and O an integer ≥ G/(e^ε + c − 1), each other class gets O cells and
    the true one the G − (c − 1)·O that are left. Any output is thus at most (G − (c − 1)·O)/O ≤ e^ε times as likely
    under one label as under another, exactly.

    Args:
        epsilon: ε of one label.
        classes: c ≥ 2.

    Raises:
        ConfigError: a parameter is out of range.

    Source: Kairouz, Bonawitz & Ramage 2016 (k-ary randomised response); LPGNN.
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon={self.epsilon!r} must be a finite number > 0")
        check_whole("classes", self.classes, 2)
        if self._kept - self._other < FEWEST_STEPS:
            raise ConfigError(
                f"epsilon={self.epsilon!r} is too little to tell one of {self.classes} labels from another; raise it"
            )

    @property
    def keep_probability(self) -> float:
        """Of a label's being released as it is."""
        return self._kept / GRID

    def transition(self) -> Tensor:
        """P(released label = j | true label = i) as Tensor[c, c] float64, for the forward correction of a loss."""
        matrix = torch.full((self.classes, self.classes), self._other / GRID, dtype=torch.float64)
        return matrix.fill_diagonal_(self.keep_probability)

    def expected_accuracy(self, accuracy: float) -> float:
        """Accuracy against true labels that one against perturbed ones lets expect, within [0, 1]; without bias.

        A right guess is right of the released label with probability p, a wrong one with q, of the c - 1 other classes.
        """
        kept, other = self.keep_probability, self._other / GRID
        return min(1.0, max(0.0, (accuracy - other) / (kept - other)))

    def event(self) -> LocalEvent:
        """What one release did to each node, for the accountant."""
        return LocalEvent(self.epsilon, "label")

    @torch.no_grad()
    def release(self, labels: Tensor, source: SecretSource) -> Tensor:
        """Perturbs every label, independently of all others.

        Args:
            labels: Tensor[N] int64 in [0, c); not changed. Nodes without a label are to be left out.
            source: of the randomness; ``system_secrets`` outside tests.

        Returns:
            Tensor[N] int64 in [0, c).

        Raises:
            DataError: the labels have another form or a value out of range.
        """
        self._check_labels(labels)
        seed = source(SEED_BYTES)
        released = torch.empty_like(labels)
        for start in range(0, len(labels), PIECE):
            piece = labels[start : start + PIECE]
            # Cells [k·O, (k + 1)·O) belong to the k-th of the other classes; the true one has all beyond.
            other = uniform(seed, f"labels/{start}", tuple(piece.shape)).div_(self._other, rounding_mode="floor")
            moved = other + (other >= piece)
            released[start : start + PIECE] = torch.where(other < self.classes - 1, moved, piece)
        return released

    @cached_property
    def _other(self) -> int:
        """O."""
        return least_cells(self.epsilon, others=self.classes - 1)

    @property
    def _kept(self) -> int:
        return GRID - (self.classes - 1) * self._other

    def _check_labels(self, labels: Tensor) -> None:
        if labels.dim() != 1 or labels.dtype != torch.int64:
            raise DataError(
                f"labels: of shape {tuple(labels.shape)} and {labels.dtype} must be [N] and torch.int64: one class a "
                "node"
            )
        for value in (int(extreme) for extreme in labels.aminmax()) if len(labels) else ():
            if not 0 <= value < self.classes:
                raise DataError(
                    f"labels: have the value {value}, outside [0, {self.classes}): number the classes from 0, and "
                    "leave nodes without a label out"
                )
