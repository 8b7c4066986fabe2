"""What a job says of its audit: how much each attack may find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from veilgraph.core.registry import Registry
from veilgraph.core.settings import Settings, named_in

ATTACKS: Final[Registry[Any]] = Registry(
    "veilgraph.attacks",
    {
        "link-similarity": "veilgraph.audit.mounts.edges:SIMILARITY",
        "link-supervised": "veilgraph.audit.mounts.edges:SUPERVISED",
        "link-propagation": "veilgraph.audit.mounts.edges:PROPAGATED",
        "link-influence": "veilgraph.audit.mounts.edges:INFLUENCED",
        "link-combination": "veilgraph.audit.mounts.combinations:COMBINED",
        "attribute": "veilgraph.audit.mounts.features:ATTRIBUTE",
        "attribute-release": "veilgraph.audit.mounts.features:FROM_RELEASE",
        "reconstruction": "veilgraph.audit.mounts.features:RECONSTRUCTION",
        "feature-similarity": "veilgraph.audit.mounts.features:SIMILARITY",
        "known-weights": "veilgraph.audit.mounts.weights:RECOVERED",
        "equation-solving": "veilgraph.audit.mounts.outputs:SOLVED",
        "generative-regression": "veilgraph.audit.mounts.outputs:GENERATED",
        "label-gradient": "veilgraph.audit.mounts.labels:FROM_GRADIENTS",
        "label-completion": "veilgraph.audit.mounts.labels:COMPLETED",
        "label-blind": "veilgraph.audit.mounts.labels:BLIND",
        "membership-gradient": "veilgraph.audit.mounts.members:FROM_GRADIENTS",
        "membership-confidence": "veilgraph.audit.mounts.members:FROM_CONFIDENCE",
        "membership-shadow": "veilgraph.audit.mounts.members:FROM_SHADOWS",
        "membership-lira": "veilgraph.audit.mounts.members:FROM_LIKELIHOODS",
        "membership-lira-online": "veilgraph.audit.mounts.members:FROM_BOTH_LIKELIHOODS",
    },
    kind="veilgraph.audit.attack:Attack",
)
"""Attacks on what a party is meant to have, whose figures a job may limit, by the names that findings and the command
line use. ``uniformity`` is of what must say nothing, ``epsilon`` of canaries, and ``CHECKS`` are of what a run claims.
"""

AttackName = Annotated[str, named_in(ATTACKS)]

Check = Literal["noise-level", "sampling-rate", "paid", "reach", "low-bits", "split", "row-order", "orders", "one-byte"]
"""Tests of what a run claims, which fail without a limit."""

CHECKS: Final[tuple[Check, ...]] = get_args(Check)
UNLIMITED: Final = ("uniformity", "epsilon", *CHECKS)
"""The names of all that is not of ``ATTACKS``."""
LimitedFigure = Literal["auc", "tpr_at_1_percent", "tpr_at_0_1_percent"]
Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class AttackLimit(Settings):
    """How much one attack may find. The upper end of a figure's 95 % interval is held to it."""

    auc: Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)] | None = Field(None, description="0.5 is chance")
    tpr_at_1_percent: Rate | None = Field(None, description="share that is found at 1 % false alarms; 0.01 is chance")
    tpr_at_0_1_percent: Rate | None = Field(None, description="the same at 0.1 %")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.figures():
            raise ValueError("a limit is of auc, tpr_at_1_percent or tpr_at_0_1_percent; give one, or no limit")
        return self

    def figures(self) -> dict[LimitedFigure, float]:
        """Figure → the highest that passes, of those that are limited."""
        found = {name: getattr(self, name) for name in LIMITED_FIGURES}
        return {name: highest for name, highest in found.items() if highest is not None}


def _auc_alone(value: object) -> object:
    return {"auc": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value


LIMITED_FIGURES: Final[tuple[LimitedFigure, ...]] = get_args(LimitedFigure)
Limits = Mapping[
    AttackName, Annotated[AttackLimit, BeforeValidator(_auc_alone, json_schema_input_type=AttackLimit | float)]
]
"""Attack → its limit; a number alone is the highest AUC that passes."""
