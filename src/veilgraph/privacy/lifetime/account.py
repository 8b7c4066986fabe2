"""A lifetime ledger as one job at one party uses it: the nodes that pay, and the job."""

from __future__ import annotations

from dataclasses import dataclass

from veilgraph.privacy.event import Event
from veilgraph.privacy.lifetime.costs import Keys
from veilgraph.privacy.lifetime.ledger import Lifetime


@dataclass(frozen=True)
class Account:
    """What a job pays from.

    Attributes:
        lifetime: the party's.
        keys: of all nodes in the party's data; everybody where nobody tells them apart.
        delta: δ of the job, for the record; None where every ε is pure.
        run: SHA-256 of the job's settings.
        job: its name.
    """

    lifetime: Lifetime
    keys: Keys
    delta: float | None
    run: str
    job: str

    def charge(
        self, event: Event, channel: str, count: int = 1, *, keys: Keys | None = None, content: str = ""
    ) -> None:
        """See ``Lifetime.charge``; all nodes pay where ``keys`` names no others."""
        whose = self.keys if keys is None else keys
        self.lifetime.charge(
            event, channel, count, whose, delta=self.delta, run=self.run, job=self.job, content=content
        )

    def has_paid(self, channel: str, content: str) -> bool:
        """Whether all nodes have paid for that very release."""
        return self.lifetime.has_paid(channel, content, self.keys)

    def has_room(self, event: Event, count: int) -> bool:
        """Whether the budget allows so many more releases of all nodes, composed as one training's rounds are."""
        return self.lifetime.has_room(event, count, self.keys)

    def room(self, event: Event) -> int | None:
        """How many more releases of all nodes the budget allows; None without a budget."""
        return self.lifetime.room(event, self.keys)
