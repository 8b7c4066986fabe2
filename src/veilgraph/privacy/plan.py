"""What one holder releases, with how much noise, and what that costs: known before anything is sent."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.privacy import accountant
from veilgraph.privacy.event import EitherEvent, Event, GaussianEvent, GeometricEvent
from veilgraph.privacy.settings import PrivacySettings

if TYPE_CHECKING:
    from veilgraph.graph.party import PartyGraph
    from veilgraph.privacy.canaries import DrawnCanaries
    from veilgraph.privacy.publisher import HolderLedgers, Publisher


@dataclass(frozen=True)
class Plan(ABC):
    """One holder's releases of what is computed over its edges.

    Attributes:
        settings: of the job's privacy.
        releases: all that the job foresees; 0 at a holder that releases nothing.
        nodes: common to all holders; None where that is not known.
        mechanism: what makes the noise, as tables call it.
    """

    party: PartyId
    settings: PrivacySettings
    releases: int
    nodes: int | None = None
    mechanism: ClassVar[str]

    @property
    @abstractmethod
    def words(self) -> str:
        """The noise of a release, and what a unit moves in it, in words."""

    @property
    def inference(self) -> int:
        """Number of releases in one prediction."""
        return min(1, self.releases)

    @property
    def delta(self) -> float:
        """δ of every ε; where neither it nor the number of nodes is known, that of up to 1,000. 0 where ε is pure."""
        return self.settings.delta_of(self.nodes)

    @property
    @abstractmethod
    def event(self) -> Event:
        """The accountant's event of every release."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the noise on one entry."""

    @abstractmethod
    def publisher(self, holder: HolderLedgers) -> Publisher:
        """Return the publisher of a holder that releases."""

    def total(self, releases: int) -> float:
        """ε of so many releases together, at the job's δ."""
        return accountant.total({self.event: releases}, self.delta) if releases else 0.0

    def within(self, total: float, releases: int) -> Self:
        """Return a plan of so many releases, with the noise by which they have the total ε ``total``."""
        return replace(self, settings=self.settings.model_copy(update={"epsilon_total": total}), releases=releases)

    @property
    def epsilon_release(self) -> float:
        """ε of one release by itself, at the job's δ."""
        return self.total(min(1, self.releases))

    @property
    def epsilon_total(self) -> float:
        """ε of all that the job foresees, at the job's δ."""
        return self.total(self.releases)


@dataclass(frozen=True)
class NodeRelease(ABC):
    """Features that every node of a holder perturbs by itself, a single time, under local differential privacy.

    ``Guarantee.protection`` shows what it costs.

    Attributes:
        setting: where a job says it.
        mechanism: its name.
        epsilon: of one node's features together.
        delta: None where ε is pure.
        low: the least value that a feature can have, by the job.
        high: the largest.
        canaries: nodes of each holder whose values are made up for an audit.
        is_gaussian: whether its noise is.
    """

    setting: str
    mechanism: str
    epsilon: float
    delta: float | None
    low: float
    high: float
    canaries: int
    is_gaussian: bool

    @abstractmethod
    def canaries_in(self, graph: PartyGraph, key: bytes, public: str) -> DrawnCanaries:
        """Return the canaries in a holder's graph, of its secret ``key`` and the job's hash ``public``."""

    @abstractmethod
    def publisher(self, holder: HolderLedgers) -> Publisher:
        """Return the publisher of a holder whose nodes release."""


@dataclass(frozen=True)
class CountPlan(Plan):
    """Releases of counts, of which a unit moves one by 1 at most, with two-sided geometric noise: ε is pure."""

    mechanism: ClassVar[str] = "geometric"

    @property
    @override
    def words(self) -> str:
        return "two-sided geometric noise, one count, in which a unit moves one entry by 1"

    @property
    def epsilon(self) -> float:
        """ε of one release, which the noise is drawn for."""
        return self.settings.epsilon_total / max(1, self.releases)

    @property
    @override
    def event(self) -> GeometricEvent:
        return GeometricEvent(self.epsilon)

    @property
    @override
    def deviation(self) -> float:
        from veilgraph.privacy.geometric import variance  # noqa: PLC0415 - loads torch, which settings do without

        return math.sqrt(variance(self.epsilon))

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        from veilgraph.privacy.publisher import CountPublisher  # noqa: PLC0415 - as above

        ledger = holder.ledger(None, self.settings.epsilon_total) if self.releases else None
        return CountPublisher(self.party, self.event, self.inference, ledger)

    @override
    def total(self, releases: int) -> float:
        return releases * self.epsilon if releases else 0.0


@dataclass(frozen=True)
class RecordPlan(Plan):
    """Sums over training nodes with Gaussian noise: ``veilgraph.paradigms.sealed.records.rows`` says which."""

    mechanism: ClassVar[str] = "gaussian"
    share: ClassVar[float] = 0.2
    """What the sum over all nodes costs of 1/σ²."""

    @property
    @override
    def words(self) -> str:
        return "one sum over all training nodes, which nobody sees, and one over all nodes, which stays at its holder"

    @property
    def multiplier(self) -> float:
        """σ of one Gaussian release of sensitivity 1 that tells as much as both sums together."""
        alone = accountant.analytic_multiplier(self.settings.epsilon_total, self.delta)
        return alone * math.sqrt(max(1, self.releases))

    @property
    @override
    def event(self) -> Event:
        return GaussianEvent(self.multiplier, self.settings.relation, self.settings.unit)

    @property
    @override
    def deviation(self) -> float:
        return self.multiplier

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        from veilgraph.privacy.publisher import CountPublisher  # noqa: PLC0415 - loads torch

        follows = self.settings.stated_delta is None
        ledger = holder.ledger(self.delta, self.settings.epsilon_total, follows=follows) if self.releases else None
        return CountPublisher(self.party, self.event, self.inference, ledger, self.delta)


@dataclass(frozen=True)
class NodePlan(RecordPlan):
    """Sums as ``RecordPlan``, and one bit of every node that is in none, by randomised response.

    A record is in the sum over all nodes, and either in the other sum or in a bit: each way ε is that of the job.
    """

    mechanism: ClassVar[str] = "gaussian, randomised response"
    share: ClassVar[float] = 0.01
    """What the sum over all nodes costs of 1/σ²."""

    @property
    @override
    def words(self) -> str:
        return f"{super().words}; of a node that is not trained on, one bit"

    @property
    @override
    def multiplier(self) -> float:
        return accountant.analytic_multiplier(*self._of_each)

    @property
    def flip_epsilon(self) -> float:
        """ε of a bit: what the sum over all nodes leaves of the job's."""
        whole, delta = self._of_each
        return (whole - accountant.gaussian_epsilon(1 / self._beside, delta)) * (1 - 1e-12)

    @property
    def _of_each(self) -> tuple[float, float]:
        """ε and δ of one release: of several both add up."""
        releases = max(1, self.releases)
        return self.settings.epsilon_total / releases, self.delta / releases

    @property
    def _beside(self) -> float:
        return self.multiplier / math.sqrt(self.share)

    @property
    @override
    def event(self) -> EitherEvent:
        settings = self.settings
        return EitherEvent(self.multiplier, self.flip_epsilon, self._beside, settings.relation, settings.unit)


@dataclass(frozen=True)
class TrainingPlan(ABC):
    """What a holder of private training releases in each of ``steps`` rounds.

    Attributes:
        setting: where a job says it.
        canaries: nodes of each holder that are made up for an audit.
    """

    setting: ClassVar[str]

    steps: int

    @property
    @abstractmethod
    def canaries(self) -> int: ...  # noqa: D102 - an attribute

    @property
    @abstractmethod
    def delta(self) -> float:
        """δ of every ε."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """The accountant's event of every round."""

    @abstractmethod
    def canaries_in(self, graph: PartyGraph, key: bytes, public: str) -> DrawnCanaries:
        """Return the canaries in a holder's graph, of its ``key`` and the job's hash; ``ConfigError``: too many."""

    @abstractmethod
    def publisher(self, holder: HolderLedgers) -> Publisher:
        """Return the publisher of a holder that trains."""
