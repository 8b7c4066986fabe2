"""Which role a party plays in a job, and what it keeps beside its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veilgraph.protocol.role import Role


def _nothing() -> None:
    """Nothing is kept."""


@dataclass(frozen=True)
class Cast:
    """A party's part.

    Attributes:
        role: not yet set up.
        begins_anew: whether it works with perturbed features that were released in this session, so that no checkpoint
            is of them.
        keep: called once the role is set up: keeps a release that was made, before anything is computed from it.
    """

    role: Role
    begins_anew: bool = False
    keep: Callable[[], None] = _nothing
