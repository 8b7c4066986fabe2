"""The machine that runs a program on shapes alone, and counts what it would send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import NOBODY, Kind, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair.peer import Exchanges
from veilgraph.mpc.sealed.correlations import Dealer, LinkedDealer, Operation, Own, Pace, Result, size_of
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.machine import Machine, Value
from veilgraph.mpc.sealed.wire import Ring, Summands, Wire


@dataclass
class _Cost:
    """Cost of a part of a program: rounds between holders, and party → bytes that it sends, headers included."""

    rounds: int = 0
    sent: Counter[PartyId] = field(default_factory=Counter)


class CountingMachine(Machine):
    """Runs a program on shapes alone, and counts every message that it would send, to the byte.

    ``costs`` is place in the program → cost; ``widest`` entries of the largest opened tensor; ``dealt`` holder →
    messages.
    """

    def __init__(self, holders: Sequence[PartyId], dealer: PartyId) -> None:
        super().__init__(holders, dealer, dealer)
        self.costs: dict[str, _Cost] = {}
        self.widest = 0
        self.dealt = Counter(dict.fromkeys(self.computing, 1))
        self._paces = {holder: Pace() for holder in self.computing}
        self._dealer = _CountingDealer(dealer, self.computing, self._deal)
        self.at("")
        if dealer != NOBODY:
            self._sent(dealer, SEED_BYTES, len(self.computing))
        if dealer in (*self.holders, NOBODY):
            self._sent(self.computing[0], SEED_BYTES)

    @override
    def at(self, place: str) -> None:
        self._here = self.costs.setdefault(place, _Cost())

    @override
    def run(self, operation: Operation[Result]) -> Result:
        """Count an operation's messages, and run the dealer's part on shapes alone."""
        for messages in operation.rounds(self.computing):
            self._here.rounds += 1
            for senders, receivers, size in messages:
                for sender in senders:
                    self._sent(sender, size, sum(receiver != sender for receiver in receivers))
        return operation.deal(self._dealer)

    @override
    def abreast(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        """Run parts one after the other, and count the rounds of the one that has most."""
        found, begun, longest = list[Value](), self._rounds(), Counter[str]()
        for part in parts:
            found.append(part())
            spent = self._rounds() - begun
            longest = max(longest, spent, key=Counter.total)
            self._set_rounds(begun)
        self._set_rounds(begun + longest)
        return found

    def _rounds(self) -> Counter[str]:
        return Counter({place: cost.rounds for place, cost in self.costs.items()})

    def _set_rounds(self, rounds: Counter[str]) -> None:
        for place, cost in self.costs.items():
            cost.rounds = rounds[place]

    def count_exchanges(self, exchanges: Exchanges) -> None:
        """Count what two holders exchange: bytes of the first's message and of the second's, headers included."""
        for sizes in exchanges:
            self._here.rounds += 1
            for sender, size in zip(self.computing, sizes, strict=True):
                self._here.sent[sender] += size

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        self.widest = max(self.widest, prod(summands.shape))
        return super().open(summands, shift, ring, bits=bits)

    def _sent(self, sender: PartyId, size: int, messages: int = 1) -> None:
        """Count ``messages`` messages of ``size`` bytes each, and their headers, as sent by ``sender``."""
        self._here.sent[sender] += messages * (HEADER_BYTES + size)

    def _deal(self, holder: PartyId, size: int) -> None:
        """Count a message of ``size`` bytes from the dealer to ``holder``, and the acknowledgements due after it."""
        self.dealt[holder] += 1
        self._sent(self.party, size)
        self._sent(holder, 1, len(self._paces[holder].count(size)))


class _CountingDealer(Dealer):
    """Tells how many bytes it would send a holder; nothing that it draws has any content."""

    device = "meta"

    def __init__(self, party: PartyId, holders: Sequence[PartyId], sends: Callable[[PartyId, int], None]) -> None:
        super().__init__(party, holders)
        self._sends = sends

    @override
    def draw(self, holder: PartyId, forms: Sequence[Form]) -> list[Tensor]:
        return [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in forms]

    @override
    def made(self, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> list[Tensor]:
        return self.draw(NOBODY, forms)

    @override
    def deal(self, holder: PartyId, forms: Sequence[Form], make: Callable[[], list[Tensor]]) -> None:
        self._sends(holder, size_of(forms))

    @override
    def own(self, make: Callable[[LinkedDealer], Own]) -> Own | None:
        return None

    @override
    def tell(self, kind: Kind, holders: Sequence[PartyId], shape: tuple[int, ...], values: Tensor | None) -> None:
        for holder in holders:
            self._sends(holder, size_of([(shape, torch.int64)]))
