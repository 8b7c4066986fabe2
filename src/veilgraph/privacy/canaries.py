"""What a run keeps of its canaries, so that all of its sessions have the same, and an audit finds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from veilgraph.core.errors import RunError


@dataclass(frozen=True)
class Canaries:
    """One holder's ``count``, for all of a run, of N ``nodes``; coins come of 32 secret bytes."""

    count: int
    nodes: int
    key: bytes = field(repr=False)


def check_nodes(drawn: int, now: int) -> None:
    """Raises ``RunError`` for canaries that were drawn for another number of common nodes."""
    if drawn != now:
        raise RunError(
            f"canaries: drawn for {drawn} common nodes, and now there are {now}; an audited run goes on with its own "
            "nodes only, so begin a new one",
            key="canaries",
            value=now,
        )
