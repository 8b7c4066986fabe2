"""One message between two parties, as a record of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from veilgraph.core.types import PartyId, Tag


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What ``sender`` gave ``receiver`` under ``tag``.

    The two names do not travel: a connection belongs to one pair of parties, so neither end can claim another name.
    """

    sender: PartyId
    receiver: PartyId
    tag: Tag
    tensor: Tensor
