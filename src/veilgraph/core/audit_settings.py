"""What a job says of its audit: how much each attack may find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

LimitedAttack = Literal[
    "link-similarity",
    "link-supervised",
    "link-propagation",
    "attribute",
    "attribute-release",
    "reconstruction",
    "feature-similarity",
    "label-gradient",
    "label-completion",
    "membership-gradient",
    "membership-confidence",
    "membership-shadow",
    "membership-lira",
]
"""Attacks on what a party is meant to have, whose AUC a job may limit."""

AttackName = Literal[LimitedAttack, "uniformity", "epsilon"]
"""Attacks by the names that findings and the command line use; ``audit.catalogue`` says what each does."""

LIMITED_ATTACKS: Final[tuple[LimitedAttack, ...]] = get_args(LimitedAttack)
ATTACK_NAMES: Final[tuple[AttackName, ...]] = get_args(AttackName)
Limit = Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)]
Limits = Mapping[LimitedAttack, Limit]
"""Attack → the highest AUC that passes; 0.5 is chance."""
