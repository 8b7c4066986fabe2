"""Machines of a session: a holder's, and the dealer's; parts of a program run side by side on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from typing_extensions import override

from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.mpc.sealed.correlations import Holder, LinkedDealer, Operation, Result
from veilgraph.mpc.sealed.lanes import Ends
from veilgraph.mpc.sealed.machine import Machine

Value = TypeVar("Value")


class HolderMachine(Machine):
    """The machine of a holder that computes, in a session of ``holders``, in the job's order; ``dealer`` deals.

    ``secrets`` gives the seed of a stream that a dealer among the holders does not know.
    """

    def __init__(
        self,
        link: Link,
        holders: Sequence[PartyId],
        dealer: PartyId = SERVER,
        secrets: SecretSource = system_secrets,
    ) -> None:
        super().__init__(holders, link.party, dealer)
        shares_stream = dealer in self.holders
        self._ends = Ends(Holder(link, self.computing, dealer, secrets, shares_stream=shares_stream))

    @override
    def run(self, operation: Operation[Result]) -> Result:
        return operation.hold(self._ends.here)

    @override
    def abreast(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        return self._ends.abreast(parts)


class DealerMachine(Machine):
    """The dealer's machine: it knows all masks and no message between holders; ``secrets`` gives seeds and noise.

    It is the machine of one of ``holders``, who has data as well, or of another party.
    """

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        super().__init__(holders, link.party, link.party)
        self._ends, self.noise = Ends(LinkedDealer(link, self.computing, secrets)), secrets

    @property
    def dealing(self) -> LinkedDealer:
        """The end of the part of the program that this thread runs."""
        return self._ends.here

    @override
    def run(self, operation: Operation[Result]) -> Result:
        """Deal for an operation, and then take as many turns as the holders do, so that all deal in one order."""
        dealing = self.dealing
        end = dealing.turns + len(operation.rounds(self.computing))
        found = operation.deal(dealing)
        while dealing.turns < end:
            dealing.take_turn()
        return found

    @override
    def abreast(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        return self._ends.abreast(parts)
