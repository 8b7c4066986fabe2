"""The door by which nodes' perturbed values leave a holder: paid for in the ledger, perturbed, and then given out."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, LocalEvent
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime.sent import SentRows
from veilgraph.privacy.local.features import FeatureMechanism, packed
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.publisher import Publisher, Spent, account_of
from veilgraph.privacy.single import SentRelease, is_sent_again, release_rows, room_for

FEATURES: Final = "features"
LABELS: Final = "labels"
"""Channels of the ledger."""
_ROUNDING: Final = 1 + 1e-12
"""A budget of exactly so many releases has room for them."""


class LocalPublisher(Publisher):
    """One holder's. A release is of all its nodes at once, each by itself: its ε is every node's, not their sum.

    Args:
        mechanism: for this holder's columns.
        response: for its labels; None where these are not released.
        ledger: of the holder, open; None in a plaintext simulation.
        source: of the randomness.
        kept: what the holder has released in the run; None where nothing is kept by run.
        sent: of a holder with a ledger for life, features node by node, in all its jobs; None without one.
        sent_labels: likewise of its labels.
    """

    def __init__(
        self,
        mechanism: FeatureMechanism,
        response: LabelResponse | None,
        ledger: Ledger | None,
        source: SecretSource,
        kept: SentRelease | None = None,
        sent: SentRows | None = None,
        sent_labels: SentRows | None = None,
    ) -> None:
        self.mechanism, self.response = mechanism, response
        self._ledger, self._source, self._kept = ledger, source, kept
        self._sent, self._sent_labels = sent, sent_labels
        self._event = mechanism.event()

    def features(self, x: Tensor) -> Tensor:
        """Releases the nodes' features.

        Args:
            x: Tensor[N, d].

        Returns:
            As ``packed`` has it.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
            DataError: a value to be perturbed lies outside the declared range; nothing was released or paid for.
        """
        perturbed = lambda rows: packed(self.mechanism.release(rows, self._source))  # noqa: E731
        if not self.is_free:
            self.mechanism.check(x)
        about = repr(self.mechanism)
        return release_rows(self._sent, self._kept, self._ledger, FEATURES, x, self._event, about, perturbed)

    def labels(self, labels: Tensor) -> Tensor:
        """Releases labels.

        Args:
            labels: Tensor[n] int64, of nodes that have one.

        Returns:
            Tensor[n] int64.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
            ConfigError: this holder releases none.
        """
        response = self.response
        if response is None:
            raise ConfigError("release.labels: this holder is not the one that releases labels; name it")
        perturbed = lambda rows: response.release(rows, self._source)  # noqa: E731
        about = response.event(), repr(response)
        return release_rows(self._sent_labels, self._kept, self._ledger, LABELS, labels, *about, perturbed)

    @property
    def is_free(self) -> bool:
        """Whether all that it would release is paid for, and sent again as it was."""
        return all(is_sent_again(sent, self._kept, self._ledger, *about) for sent, about in self._channels)

    def room(self) -> int | None:
        """How many more releases the budget allows, counted no further than 2^32; None without a budget.

        None as well where all that was paid for is sent again. It bounds what features and labels cost a node together,
        and the ledger, which has the last word, either.
        """
        ledger = self._ledger
        if ledger is None or ledger.budget is None or self.is_free:
            return None
        each = sum(accountant.per_step(event, ledger.delta) for _, (_, event, _) in self._channels)
        left = ledger.budget - self.spent().epsilon_total
        rooms = [room_for(sent, ledger, *about) for sent, about in self._channels]
        return max(0, min(math.floor(left / each * _ROUNDING), *(room for room in rooms if room is not None)))

    @property
    def _channels(self) -> list[tuple[SentRows | None, tuple[str, Event, str]]]:
        features, response = (self._sent, (FEATURES, self._event, repr(self.mechanism))), self.response
        if response is None:
            return [features]
        return [features, (self._sent_labels, (LABELS, response.event(), repr(response)))]

    @property
    def delta(self) -> float:
        """δ of every ε; 0 where they are pure."""
        return 0.0 if self._ledger is None or isinstance(self._event, LocalEvent) else self._ledger.delta

    @property
    @override
    def budget(self) -> float:
        """The largest total ε of one node's features that the party accepts."""
        return math.inf if self._ledger is None or self._ledger.budget is None else self._ledger.budget

    @override
    def spent(self) -> Spent:
        """What all releases of the run so far come to for each node, its features and its label together."""
        if self._ledger is None:
            return Spent(Counter(), math.inf, math.inf)
        channels = self._ledger.summary()
        counts = Counter({channel.channel: channel.releases for channel in channels})
        release = sum(channel.per_release for channel in channels)
        return Spent(counts, release, sum(self._ledger.totals().values()))

    @override
    def account(self) -> dict[str, Any]:
        event = self._event
        return account_of(self.spent(), self.budget, delta=self.delta, unit=event.unit, neighbours=event.neighbours)
