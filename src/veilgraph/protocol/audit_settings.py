"""What a job says of its audit: how much each attack may find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from veilgraph.core.settings import Settings

LimitedAttack = Literal[
    "link-similarity",
    "link-supervised",
    "link-propagation",
    "link-influence",
    "link-combination",
    "attribute",
    "attribute-release",
    "reconstruction",
    "feature-similarity",
    "known-weights",
    "equation-solving",
    "generative-regression",
    "label-gradient",
    "label-completion",
    "label-blind",
    "membership-gradient",
    "membership-confidence",
    "membership-shadow",
    "membership-lira",
    "membership-lira-online",
]
"""Attacks on what a party is meant to have, whose figures a job may limit."""

Check = Literal["noise-level", "paid", "reach", "low-bits", "split", "row-order"]
"""Tests of what a run claims, which fail without a limit."""

AttackName = Literal[LimitedAttack, "uniformity", "epsilon", Check]
"""Attacks by the names that findings and the command line use; ``audit.catalogue`` says what each does."""

LIMITED_ATTACKS: Final[tuple[LimitedAttack, ...]] = get_args(LimitedAttack)
ATTACK_NAMES: Final[tuple[AttackName, ...]] = get_args(AttackName)
CHECKS: Final[tuple[Check, ...]] = get_args(Check)
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
Limits = Mapping[LimitedAttack, Annotated[AttackLimit, BeforeValidator(_auc_alone)]]
"""Attack → its limit; a number alone is the highest AUC that passes."""
