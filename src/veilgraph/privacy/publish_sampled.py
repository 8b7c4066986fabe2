"""The publisher of a holder whose training is private: every round is paid for, and then drawn, summed and noised."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import BudgetSpent
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.publisher import Publisher, Spent, account_of
from veilgraph.privacy.sampled_settings import SampledPlan
from veilgraph.privacy.sampled_sum import SampledSum, Terms

CHANNEL: Final = "sampled gradients"


class SampledPublisher(Publisher):
    """One holder's.

    The party's ledger for life pays before the first round of a session for all that the run has left: after a crash
    it counts too much. The run's ledger counts rounds, and lets no more be made than were planned.

    Args:
        plan: of the job.
        ledger: of the run; None where nothing is kept, as in a plaintext simulation.
        source: of draws and noise.
        account: with the ledger for life, where the party has one.
    """

    is_open = False
    drawn: Tensor
    """Tensor[N] uint8, which of the terms that could be drawn are in the newest sum: for an audit, and nobody else."""

    def __init__(
        self,
        plan: SampledPlan,
        ledger: Ledger | None,
        source: SecretSource,
        account: Account | None = None,
    ) -> None:
        self.plan = plan
        self._ledger, self._source, self._account = ledger, source, account
        settings = plan.settings
        self._sum = SampledSum(settings.clip, plan.added, settings.sampling_rate)

    def sampled_sum(self, count: int, terms: Terms, size: int, step: int, watched: Collection[int] = ()) -> Tensor:
        """Releases a noisy sum; with a share of the noise alone where that is made jointly, for under masks.

        ``clean`` is then what was added up before the noise, Tensor[2, W]: without the watched terms, and all.

        Args:
            count: of terms that may be drawn.
            terms: gradient of each, Tensor[W].
            size: W.
            step: of the training.
            watched: numbers of terms that ``clean`` tells apart.

        Returns:
            Tensor[W] float64.

        Raises:
            BudgetSpent: no more rounds were planned, or a limit does not allow it; nothing was released.
        """
        if self._ledger is not None:
            self._reserve(1, step)
            self._ledger.spend(self.plan.event, CHANNEL, step)
        added = self._sum.added(count, terms, size, self._source, watched)
        others, canaries = added.sums
        self.clean, self.drawn = torch.stack([others, others + canaries]), added.drawn
        return self.clean[1] + self._sum.noise(size, self._source)

    @override
    def expect(self, steps: int, step: int) -> None:
        if self._ledger is not None:
            self._reserve(steps, step)

    def _reserve(self, steps: int, step: int) -> None:
        """Pays for so many rounds, as far as they are not paid for already."""
        assert self._ledger is not None
        missing = steps - self._ledger.reserved(self.plan.event, CHANNEL)
        if missing <= 0:
            return
        if missing > (left := self._left()):
            raise BudgetSpent(
                f"{CHANNEL}: {self.plan.steps} rounds were planned (train.epochs) and {self._paid()} are paid for; "
                f"{missing} more would cost more than the job says, and were not made; begin a new run",
                key="train.epochs",
                value=self.plan.steps,
            )
        if self._account is not None:
            self._account.charge(self.plan.event, CHANNEL, left)
            self._account = None
        self._ledger.reserve(self.plan.event, CHANNEL, step, missing)

    def _paid(self) -> int:
        return 0 if self._ledger is None else self._ledger.releases(CHANNEL)

    def _left(self) -> int:
        return max(0, self.plan.steps - self._paid())

    @property
    @override
    def budget(self) -> float:
        return math.inf if self._ledger is None or self._ledger.budget is None else self._ledger.budget

    @override
    def refusal(self) -> str:
        """Account for what is left, before the others wait: in training the server waits for ``patience_s`` alone."""
        left = self._left()
        accountant.total({self.plan.event: self._paid() + 1}, self.plan.delta)
        if self._account is None or left == 0 or self._account.has_room(self.plan.event, left):
            return ""
        return (
            f"limits.max_epsilon has no room for {left} rounds of training, beside all that was ever released; allow "
            "more there (veilgraph budget JOB --party), or have a new run add more noise or make fewer (train.epochs)"
        )

    @override
    def affordable_steps(self) -> int | None:
        return None if self._ledger is None else self._left()

    @override
    def spent(self) -> Spent:
        releases = self._paid()
        if self._ledger is None:
            return Spent({}, math.inf, math.inf)
        if not releases:
            return Spent({}, 0.0, 0.0)
        total = accountant.total({self.plan.event: releases}, self._ledger.delta)
        return Spent({CHANNEL: releases}, self.plan.epsilon_release, total)

    @override
    def account(self) -> dict[str, Any]:
        given = self.plan.settings
        return account_of(
            self.spent(), self.budget, delta=self.plan.delta, unit=given.unit, neighbours=given.neighbours
        )
