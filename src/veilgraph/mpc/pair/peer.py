"""The other one of two parties, with messages in the order of the protocol."""

from __future__ import annotations

from itertools import count
from typing import Final, TypeAlias

import torch
from torch import Tensor

from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import Shape, receive_as

Exchanges: TypeAlias = list[tuple[int, int]]
"""Bytes on the wire of each exchange, in order, headers included: the leader's message, and the other party's."""

KIND: Final = Kind.CORRELATION


class Peer:
    """One end of a pair: what it tells the other one comes there in the same order; ``leads``: it is the first."""

    def __init__(self, link: Link, other: PartyId, *, leads: bool) -> None:
        self._link, self.other, self.leads = link, other, leads
        self._told, self._heard = count(), count()

    def tell(self, message: Tensor) -> None:
        """Send a tensor."""
        self._link.send(self.other, Tag(KIND, next(self._told)), message)

    def hear(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Receive the next tensor; ``ProtocolError``: it is of another shape or dtype."""
        return receive_as(self._link, self.other, Tag(KIND, next(self._heard)), shape, dtype)
