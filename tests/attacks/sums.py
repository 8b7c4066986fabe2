"""What a server opens over several sessions of averaging, and what single holders put in."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor
from veilgraph_averaging.aggregation.rounds import HolderRound
from veilgraph_averaging.aggregation.summing import Sum, SummingServer

from veilgraph.audit.sealing import exposed_holders
from veilgraph.core.types import PartyId


@dataclass
class Seen:
    """What the server opened, and what single holders put in."""

    sums: list[Sum] = field(default_factory=list)
    values: list[tuple[PartyId, Tensor]] = field(default_factory=list)

    def exposed(self) -> set[PartyId]:
        """The holders of whom two sums differ by their exact values."""
        return self._told(self.values)

    def changed(self) -> set[PartyId]:
        """The holders of whom two sums differ by what changed of their values between two sessions."""
        pairs = [
            (holder, values - earlier)
            for place, (holder, values) in enumerate(self.values)
            for before, earlier in self.values[:place]
            if before == holder and values.shape == earlier.shape
        ]
        return self._told(pairs)

    def _told(self, candidates: list[tuple[PartyId, Tensor]]) -> set[PartyId]:
        totals = [each.total for each in self.sums]
        return exposed_holders(totals, totals, candidates)


@contextmanager
def watching(before: Seen | None = None) -> Iterator[Seen]:
    """The view of a server over all sessions within, after ``before``, and beside it what it should not learn."""
    seen, opened, masked = before or Seen(), SummingServer.add, HolderRound.mask

    def open_(self: SummingServer, *rest: Any) -> Sum:
        found = opened(self, *rest)
        seen.sums.append(Sum(found.total.clone(), found.counted))
        return found

    def mask(self: HolderRound, sealed: Tensor, encoded: Tensor) -> Tensor:
        seen.values.append((self._party, encoded.clone()))
        return masked(self, sealed, encoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummingServer, "add", open_)
        patch.setattr(HolderRound, "mask", mask)
        yield seen
