"""What a job says of privacy: of noise on sums over edges, of private training, and of perturbed labels.

docs/explanation/privacy.md says what it means.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field
from typing_extensions import override

from veilgraph.core.settings import PartyName, Settings
from veilgraph.privacy.event import Neighbours

_LEAST_DIGITS: Final = 4  # A δ that follows from N is no more than 1e-4


def fitting_delta(nodes: int | None = None) -> float:
    """A δ that fits N common nodes: the largest power of ten that is at most 1/(10·N), and at most 1e-4.

    ``nodes`` is N; None where it is not known: the δ of all N up to 1,000, which that of any other N is below.
    """
    digits = 0 if nodes is None else len(str(10 * nodes - 1))
    return float(f"1e-{max(_LEAST_DIGITS, digits)}")


class PrivacySettings(Settings):
    """Noise on what is computed over edges; a paradigm that has such noise adds what it needs."""

    unit: Literal["edge", "node-edges", "training-record", "node"]
    """what ε protects: all that a holder records between two nodes; a node's features and all its edges; a training
    node's features; or a node's features
    """
    epsilon_total: float = Field(gt=0, allow_inf_nan=False)
    """ε of a holder's releases in the job"""

    @property
    def relation(self) -> Neighbours:
        """The neighbouring relation of ε."""
        return "replacement"

    @property
    def stated_delta(self) -> float | None:
        """δ that the job says; None where ε is pure, or δ follows from the number of nodes."""
        return None

    def delta_of(self, nodes: int | None) -> float:
        """δ for so many common nodes; 0 where ε is pure."""
        return 0.0


class DeltaSettings(PrivacySettings):
    """Noise whose ε are not pure, and hold at a δ."""

    delta: float | None = Field(None, gt=0, lt=1)
    """δ of every ε; null: the largest power of ten that is at most 1/(10·N), of N common nodes, and at most 1e-4"""

    @property
    @override
    def stated_delta(self) -> float | None:
        return self.delta

    @override
    def delta_of(self, nodes: int | None) -> float:
        return fitting_delta(nodes) if self.delta is None else self.delta


class LabelReleaseSettings(Settings):
    """The holder that has the labels releases each a single time, by randomised response."""

    holder: PartyName
    """has the labels; the job's label_holder has none"""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """ε of a node's label"""


class LabelPrivacySettings(Settings):
    """The label holder perturbs the labels that it trains and validates with, each a single time, before training."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """ε of a node's label over all jobs that use it, by randomised response"""
    canaries: int = Field(0, ge=0)
    """training nodes with made-up labels, to audit ε; what is learned is worthless then"""
