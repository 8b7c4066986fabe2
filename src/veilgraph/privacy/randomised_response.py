"""Random choices whose probabilities are exact: biased bits on an integer grid, and labels.

A bit of probability p is drawn as u < T, with u uniform on the integers below G = 2^53 (secret bits, nothing rounded)
and T an integer near p·G. It is 1 with probability T/G *exactly*, so what is proven about the integers T holds for the
program, however floating point rounded on the way to them.

*A bit that costs ε.* Let L = ``least_cells(ε)``, an integer ≥ G/(e^ε + 1), and L ≤ T ≤ G − L for every input. Under
any two inputs the probabilities of 1, and of 0, are within the ratio (G − L)/L = G/L − 1 ≤ e^ε. Rounding L up is what
makes this hold; rounding it to nearest would exceed e^ε for about half of all ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy.event import LocalEvent, check_positive, check_whole

GRID: Final = 1 << 53  # G, cells of probability: every integer up to it is exact in float64

# Between an input's least and largest threshold: with fewer, ε is so small that the grid would distort the input.
FEWEST_STEPS: Final = 1 << 20

_DIGITS = 60
_DOWN = 1 - Decimal(10) ** -50
_LARGEST_EXPONENT = Decimal(64)  # e^64 > G: more ε than this cannot be spent on the grid


def least_cells(epsilon: float, parts: int = 1, others: int = 1) -> int:
    """Return ⌈G/(e^(ε/parts) + others)⌉, or more and never less: the cells of an output that is not the true one.

    e^(ε/parts) is computed to 60 digits and then lowered by 10^-50 of itself, more than all rounding errors here (for
    fewer than 10^8 others); so rounding the quotient up never lands below the exact one.
    """
    with localcontext(prec=_DIGITS):
        exponent = min(Decimal(epsilon) / parts, _LARGEST_EXPONENT)
        return math.ceil(GRID / (exponent.exp() * _DOWN + others))


def uniform(seed: bytes, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Independent uniform integers in [0, G), expanded from the seed; int64 tensor of ``shape``."""
    return expand(seed, purpose, shape).bitwise_and_(GRID - 1)


PIECE = 1 << 18


@dataclass(frozen=True)
class LabelResponse:
    """Randomised response: keep one of c labels with probability e^ε/(e^ε + c − 1), else any other, all alike.

    With u uniform on the integers below G = 2^53 and O an integer ≥ G/(e^ε + c − 1), each other class gets O cells and
    the true one the G − (c − 1)·O that are left. Any output is thus at most (G − (c − 1)·O)/O ≤ e^ε times as likely
    under one label as under another, exactly. Source: Kairouz, Bonawitz & Ramage 2016; LPGNN.
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_whole("classes", self.classes, 2)
        if self._kept_cells - self._other_cells < FEWEST_STEPS:
            raise ConfigError(
                f"epsilon={self.epsilon!r} is too little to tell one of {self.classes} labels from another; raise it"
            )

    @property
    def keep_probability(self) -> float:
        """Probability that a label is released as it is."""
        return self._kept_cells / GRID

    def transition(self) -> Tensor:
        """P(released label = j | true label = i) as Tensor[c, c] float64, for the forward correction of a loss."""
        matrix = torch.full((self.classes, self.classes), self._other_cells / GRID, dtype=torch.float64)
        return matrix.fill_diagonal_(self.keep_probability)

    def expected_accuracy(self, accuracy: float) -> float:
        """Estimate the accuracy against true labels from that against perturbed ones, clamped to [0, 1].

        A right guess is right of the released label with probability p, a wrong one with q, of the c - 1 other classes.
        """
        kept, other = self.keep_probability, self._other_cells / GRID
        return min(1.0, max(0.0, (accuracy - other) / (kept - other)))

    def event(self) -> LocalEvent:
        """Return the accountant's event of one release: local ε of each node's label."""
        return LocalEvent(self.epsilon, "label")

    @torch.no_grad()
    def release(self, labels: Tensor, source: SecretSource) -> Tensor:
        """Perturb every label, Tensor[N] int64 in [0, c), independently of all others; nodes without one are left out.

        ``source`` is ``system_secrets`` outside tests. Raises ``DataError`` where a label is out of range.
        """
        self._check_labels(labels)
        seed = source(SEED_BYTES)
        released = torch.empty_like(labels)
        for start in range(0, len(labels), PIECE):
            piece = labels[start : start + PIECE]
            # Cells [k·O, (k + 1)·O) belong to the k-th of the other classes; the true one has all beyond.
            other = uniform(seed, f"labels/{start}", tuple(piece.shape)).div_(self._other_cells, rounding_mode="floor")
            moved = other + (other >= piece)
            released[start : start + PIECE] = torch.where(other < self.classes - 1, moved, piece)
        return released

    @cached_property
    def _other_cells(self) -> int:
        """O, the cells of probability of each class but the true one."""
        return least_cells(self.epsilon, others=self.classes - 1)

    @property
    def _kept_cells(self) -> int:
        return GRID - (self.classes - 1) * self._other_cells

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
