"""Where whatever of a holder's data has a price leaves it: paid for in the ledger, noised, and only then sent.

``Publisher`` is the seam, and that of who releases nothing that has a price.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event
from veilgraph.privacy.ledger import Ledger

if TYPE_CHECKING:
    from veilgraph.graph.party import PartyGraph
    from veilgraph.privacy.lifetime_ledger import Account
    from veilgraph.privacy.release_cache import ReleaseCache

PREDICTIONS: Final = "predictions"
"""Channel of the ledger: what is opened with noise of all holders' edges."""


@dataclass(frozen=True)
class Spent:
    """What a holder's releases cost: channel → how many were paid for, ε of one and of all, at the same δ."""

    releases: Mapping[str, int]
    epsilon_release: float
    epsilon_total: float


class Publisher:
    """One party's publisher; this one releases nothing that has a price.

    Every release raises ``BudgetSpent`` where the budget does not allow it; then nothing was released.

    Attributes:
        watched: Tensor[w] int64, the nodes whose releases an audit watches; None for none, which is the default.
        clean: Tensor[2, W], the newest sum of gradients without noise, without those of watched nodes and with them:
            for an audit, and to nobody else.
    """

    watched: Tensor | None = None
    clean: Tensor

    def pay(self, content: str) -> None:
        """Pay for what another party opens with noise, unless ``content``, its name of 64 hex digits, was paid for."""

    @property
    def budget(self) -> float:
        """The largest total ε; infinite for none."""
        return math.inf

    def refusal(self) -> str:
        """Why the budget does not allow an inference; empty where it does."""
        return ""

    def affordable_steps(self) -> int | None:
        """Training steps that the budget still allows, beside inferences; None without a budget."""
        return None

    def affordable_releases(self) -> int | None:
        """Inferences that the budget still allows; None without a budget, or where what was paid for is sent again."""
        return None

    def expect(self, steps: int, step: int) -> None:
        """Pay for so many coming training steps, from ``step`` on, with one entry for each channel."""

    def spent(self) -> Spent | None:
        """Return the cost of all releases of the run so far, predictions included; None where they have no price."""
        return None

    def account(self) -> dict[str, Any] | None:
        """Return ``spent`` for JSON, with δ, unit, neighbours and budget; an infinite ε is null."""
        return None


OPEN: Final = Publisher()


class PaidPublisher(Publisher):
    """A publisher whose releases, of one ``event``, the run's ledger pays for; None in a simulation.

    δ is of every ε: 0 where each is pure, else that of the ledger where there is one.
    """

    def __init__(self, ledger: Ledger | None, event: Event, delta: float = 0.0) -> None:
        self._ledger, self._event = ledger, event
        self._delta = ledger.delta if delta and ledger is not None else delta

    @property
    @override
    def budget(self) -> float:
        """The largest total ε: the job's, or the party's own if that is less."""
        return math.inf if self._ledger is None or self._ledger.budget is None else self._ledger.budget

    @override
    def spent(self) -> Spent:
        if self._ledger is None:
            return Spent({}, math.inf, math.inf)
        counts = Counter[str]()
        for each in self._ledger.summary():
            counts[each.channel] += each.releases
        return self.spent_on(counts, self._ledger)

    def spent_on(self, counts: Mapping[str, int], ledger: Ledger) -> Spent:
        """Return the cost of releases, channel → how many, which are all that the ledger has."""
        each = accountant.per_step(self._event, ledger.delta) if counts else 0.0
        return Spent(counts, each, max(ledger.totals().values(), default=0.0))

    @override
    def account(self) -> dict[str, Any]:
        spent = self.spent()
        figures = {
            "releases": dict(spent.releases),
            "epsilon_release": spent.epsilon_release,
            "epsilon_total": spent.epsilon_total,
            **self.about(),
            "budget": self.budget,
        }
        return {name: None if figure == math.inf else figure for name, figure in figures.items()}

    def about(self) -> dict[str, Any]:
        """Return ``delta``, ``unit`` and ``neighbours`` of every ε."""
        return {"delta": self._delta, **self._event.scope._asdict()}


class CountPublisher(PaidPublisher):
    """The publisher of counts or sums with noise that is drawn once, and shared by all of a run's predictions.

    ``needed`` releases of one ``event`` are in a prediction: 0 at a holder of which nothing is counted. ``delta`` is of
    every ε, 0 where it is pure.
    """

    def __init__(self, party: PartyId, event: Event, needed: int, ledger: Ledger | None, delta: float = 0.0) -> None:
        super().__init__(ledger, event, delta)
        self._party, self._needed = party, needed

    @override
    def pay(self, content: str) -> None:
        if self._ledger is not None and not self._ledger.is_free(PREDICTIONS, content):
            self._ledger.spend(self._event, PREDICTIONS, 0, content=content)

    @override
    def refusal(self) -> str:
        ledger, event = self._ledger, self._event
        room = None if ledger is None else ledger.room(event)
        if ledger is None or room is None or room >= self._needed:
            return ""
        way_out = "allow a larger privacy.epsilon_total in a new run"
        if ledger.is_lifetime_spent(event, self._needed):
            way_out = (
                f"allow a larger limits.max_epsilon at {self._party}, where it is of all that was ever released "
                "(veilgraph budget JOB --party), or have a new run add more noise"
            )
        return f"{room} more releases fit the budget of {self._party} and an inference needs {self._needed}; {way_out}"

    @override
    def spent(self) -> Spent:
        return super().spent() if self._needed else Spent({}, 0.0, 0.0)


class HolderLedgers(ABC):
    """A holder's graph, and the ledgers that its publisher pays from."""

    graph: PartyGraph

    @abstractmethod
    def ledger(
        self, delta: float | None, budget: float | None = None, *, follows: bool = False, lasting: bool = True
    ) -> Ledger:
        """Open the ledger of a run; ``delta`` is None where every ε is pure, ``budget`` the largest total ε.

        ``follows``: δ follows from the number of common nodes, and stays what it was when the ledger was begun.
        ``lasting``: what it pays for is paid in the ledger for life, the ``account``, first.
        """

    @abstractmethod
    def account(self, delta: float | None) -> Account | None:
        """Return the account in the ledger for life, ``delta`` being for its record; None where there is none."""

    @abstractmethod
    def caches(self, ledger: Ledger, labelled: Tensor | None) -> tuple[ReleaseCache, ReleaseCache]:
        """Return the caches of all common nodes' features, and of the labels of nodes ``labelled``, Tensor[n] int64."""

    @abstractmethod
    def ordered(self, ledger: Ledger, *follows: object) -> tuple[Tensor | None, ReleaseCache]:
        """Return the nodes' order, Tensor[C] int64 (None: their own), and the cache of what all release together.

        Both are the same in every job; ``follows`` are settings that the order depends on.
        """
