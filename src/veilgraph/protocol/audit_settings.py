"""What a job says of its audit: how much each attack may find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from veilgraph.core.settings import Registry, Settings, named_in

ATTACKS: Final[Registry[Any]] = Registry(
    "veilgraph.attacks",
    {
        "link-similarity": "veilgraph.audit.edges:similarity",
        "link-supervised": "veilgraph.audit.edges:supervised",
        "link-propagation": "veilgraph.audit.edges:propagated",
        "link-influence": "veilgraph.audit.edges:influenced",
        "link-combination": "veilgraph.audit.edges:combined",
        "attribute": "veilgraph.audit.features:attribute",
        "attribute-release": "veilgraph.audit.features:from_release",
        "reconstruction": "veilgraph.audit.reconstruction:reconstruction",
        "feature-similarity": "veilgraph.audit.reconstruction:similarity",
        "known-weights": "veilgraph.audit.reconstruction:recovered",
        "equation-solving": "veilgraph.audit.features:solved",
        "generative-regression": "veilgraph.audit.features:generated",
        "label-gradient": "veilgraph.audit.labels:from_gradients",
        "label-completion": "veilgraph.audit.labels:completed",
        "label-blind": "veilgraph.audit.labels:blind",
        "membership-gradient": "veilgraph.audit.members:from_gradients",
        "membership-confidence": "veilgraph.audit.members:from_confidence",
        "membership-shadow": "veilgraph.audit.members:from_shadows",
        "membership-lira": "veilgraph.audit.members:from_likelihoods",
        "membership-lira-online": "veilgraph.audit.members:from_both_likelihoods",
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
