"""What a holder of private training releases, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, Neighbours, check_positive
from veilgraph.privacy.plan import TrainingPlan
from veilgraph.privacy.publisher import OPEN, HolderLedgers, Publisher
from veilgraph_averaging.private.event import Joint, JointSampledEvent, SampledEvent, reach
from veilgraph_averaging.private.settings import SampledSettings

if TYPE_CHECKING:
    from veilgraph.graph.party import PartyGraph
    from veilgraph.privacy.ledger import Ledger
    from veilgraph.privacy.lifetime_ledger import Account
    from veilgraph_averaging.private.canaries import TrainedCanaries
    from veilgraph_averaging.private.sampled import SampledPublisher


@dataclass(frozen=True)
class SampledPlan(TrainingPlan):
    """What a holder of private training releases in each of ``steps`` rounds; a term depends on edges over K ``hops``.

    ``joint`` says who makes the noise of a sum together; None: each holder adds all of it.
    """

    setting: ClassVar[str] = "averaging.privacy"
    settings: SampledSettings
    hops: int
    joint: Joint | None = None

    @property
    @override
    def canaries(self) -> int:
        return self.settings.canaries

    @property
    @override
    def delta(self) -> float:
        return self.settings.delta_of_batch

    @property
    def terms(self) -> int:
        """N: the most terms that one node can be in."""
        return reach(self.hops, self.settings.degree_bound or 1)

    @cached_property
    def multiplier(self) -> float:
        """σ: standard deviation of a sum's noise over the clip, as set or from ``epsilon_total``."""
        given = self.settings
        if given.noise_multiplier is not None:
            return given.noise_multiplier
        assert given.epsilon_total is not None
        return _solve(given.epsilon_total, self.delta, self.steps, given.sampling_rate, self.terms, given.neighbours)

    @property
    @override
    def event(self) -> SampledEvent:
        given, joint = self.settings, self.joint
        step = self.multiplier, given.sampling_rate, self.terms, given.neighbours
        if joint is None:
            return SampledEvent(*step)
        return JointSampledEvent(*step, holders=joint.holders, colluding=joint.colluding)

    @override
    def canaries_in(self, graph: PartyGraph, key: bytes, public: str) -> TrainedCanaries:
        from veilgraph_averaging.private.canaries import TrainedCanaries  # noqa: PLC0415 - loads torch

        bound = (self.settings.degree_bound or 0) if self.hops else 0  # without edges no canary has neighbours
        return TrainedCanaries.of(graph, key, public, self.canaries, bound, self.settings.neighbours)

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        if holder.graph.labels is None:
            return OPEN
        ledger = holder.ledger(self.delta, self.settings.epsilon_total, lasting=False)
        return self.paid_by(ledger, system_secrets, holder.account(self.delta))

    def paid_by(self, ledger: Ledger | None, source: SecretSource, account: Account | None = None) -> SampledPublisher:
        """Make the publisher that releases these rounds; arguments as ``SampledPublisher``."""
        from veilgraph_averaging.private.sampled import SampledPublisher, SampledSum  # noqa: PLC0415 - loads torch

        noisy = SampledSum(self.settings.clip, self.added, self.settings.sampling_rate)
        return SampledPublisher(noisy, self.event, self.delta, self.steps, ledger, source, account)

    @property
    def added(self) -> float:
        """Standard deviation of the noise that one holder adds, over the clip: σ, or with joint noise its share."""
        return self.multiplier * (1.0 if self.joint is None else self.joint.share)

    @property
    def cell(self) -> float:
        """Width of the grid on which sums lie, the same at all holders."""
        from veilgraph.privacy.mechanism import Gaussian  # noqa: PLC0415 - loads torch, which settings do without

        return Gaussian(self.settings.clip, self.added).cell

    @property
    def against(self) -> str:
        """Whom the ε holds against, in words."""
        if self.joint is None:
            return "the server and all other holders"
        most = self.joint.colluding
        return f"the server and {'one other holder' if most == 1 else f'any {most} other holders'}"

    @cached_property
    def epsilon_release(self) -> float:
        """ε of one round by itself."""
        return accountant.per_step(self.event, self.delta)

    @cached_property
    def epsilon_total(self) -> float:
        """ε of all rounds together."""
        return accountant.total({self.event: self.steps}, self.delta)


sampled_plan = lru_cache(maxsize=16)(SampledPlan)  # the plan of a job, made once


@lru_cache(maxsize=64)
def _solve(epsilon: float, delta: float, steps: int, rate: float, terms: int, neighbours: Neighbours) -> float:
    """Find the least σ for a total ε, rounded up to six digits, so that machines whose last bits differ agree."""
    found = least_multiplier(
        lambda multiplier: SampledEvent(multiplier, rate, terms, neighbours), epsilon, delta, steps, 4.0
    )
    return float(f"{found * (1 + 1e-5):.6g}")


_MUCH: Final = 1e300  # in place of an infinite ε, which no root finder takes
_TOLERANCE: Final = 1e-4  # of a multiplier, relative
_LARGEST_MULTIPLIER: Final = 1e100


def least_multiplier(
    event_of: Callable[[float], Event], epsilon_total: float, delta: float, releases: int, guess: float = 1.0
) -> float:
    """Find a noise multiplier, at most 1e-4 above the least, with which all ``releases`` cost ``epsilon_total``.

    ``event_of``: multiplier → event, whose cost falls with it. ``guess`` is where to begin, best too high. Raises
    ``ConfigError`` where no noise is enough.
    """
    check_positive("epsilon", epsilon_total)
    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import, and few processes solve)

    def excess(multiplier: float) -> float:
        return min(accountant.total({event_of(multiplier): releases}, delta), _MUCH) - epsilon_total

    enough = guess
    while excess(enough) > 0:
        if enough > _LARGEST_MULTIPLIER:
            raise ConfigError(f"epsilon={epsilon_total!r}: no noise makes {releases} releases cost as little; raise it")
        enough *= 2
    too_little = enough / 2
    while excess(too_little) <= 0:
        if too_little < accountant.SMALLEST_MULTIPLIER:
            return too_little
        enough, too_little = too_little, too_little / 2
    found = float(brentq(excess, too_little, enough, rtol=_TOLERANCE))
    while excess(found) > 0:
        found *= 1 + _TOLERANCE
    return found
