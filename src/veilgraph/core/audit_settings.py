"""What a job says of its audit: how much each attack may find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

AttackName = Literal[
    "link-similarity",
    "link-supervised",
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
    "uniformity",
    "epsilon",
]
"""Attacks by the names that limits, findings and the command line use; ``audit.catalogue`` says what each does."""

ATTACK_NAMES: Final[tuple[AttackName, ...]] = get_args(AttackName)
Limit = Annotated[float, Field(ge=0.5, le=1, allow_inf_nan=False)]
Limits = Mapping[AttackName, Limit]
"""Attack → the highest AUC that passes; 0.5 is chance. ``epsilon`` and ``uniformity`` have limits of their own."""
