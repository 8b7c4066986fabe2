"""The noisy sum of sampled, clipped terms: one step of DP-SGD (Abadi et al. 2016, algorithm 1, lines 3 to 7).

Every term is drawn by itself with probability q by secret bits (Poisson sampling), its gradient shortened to C and
rounded towards zero to the noise's grid, as rows of ``mechanism`` are; sums of multiples of the grid are exact, so two
sums that differ in some terms differ by exactly these. The noise is a multiple of the grid as well.

A gradient that is not finite, or has an entry that no square of fits a number, counts as zeros: weights are the
server's, who could choose them so that the gradients of some nodes alone overflow, and an error would say whose.

``SampledPublisher`` pays for every round before it is drawn, summed and noised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime_ledger import Account
from veilgraph.privacy.mechanism import Gaussian, clip_to_grid
from veilgraph.privacy.publisher import PaidPublisher


@dataclass(frozen=True, eq=False)
class Places:
    """A sparse gradient: distinct indices of entries, ``places`` Tensor[n] int64, and their ``values`` Tensor[n]."""

    places: Tensor
    values: Tensor


Terms = Callable[[int], Tensor | Places]  # number of a term → its gradient, Tensor[W]

_LARGEST_WHOLE: Final = 2.0**52
_LARGEST_ENTRY: Final = 1e150
_PURPOSE: Final = "sampled terms"


@dataclass(frozen=True)
class SampledSum:
    """Draws terms with probability q (``rate``), clips them to C in ℓ2, adds them up, and adds noise of σC."""

    clip: float
    noise_multiplier: float
    rate: float

    def drawn(self, count: int, source: SecretSource) -> list[int]:
        """Draw which of ``count`` terms are in a sum, each independently with probability q up to 2^-64."""
        words = expand(source(SEED_BYTES), _PURPOSE, (count,))
        below = int(self.rate * 2.0**64)
        if below >= 1 << 64:
            return list(range(count))
        return torch.nonzero(words < below - (1 << 63)).flatten().tolist()

    def noise(self, size: int, source: SecretSource) -> Tensor:
        """Draw the Gaussian noise of one step: Tensor[W] float64, W = ``size``."""
        return Gaussian(self.clip, self.noise_multiplier).draw((1, size), source)[0]

    def added(
        self, count: int, terms: Terms, size: int, source: SecretSource, watched: Collection[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Draw from ``count`` terms, clip them to the noise's grid, and add them up, without noise.

        ``terms``: number → gradient, Tensor[W]; one that is not finite counts as zeros. Returns the sums, [2, W]
        float64, of terms that are not in ``watched`` and that are; and Tensor[N] uint8, whether each term was drawn.
        Raises ``ConfigError`` where so little noise makes sums on its grid inexact.
        """
        cell = Gaussian(self.clip, self.noise_multiplier).cell
        if count * self.clip / cell > _LARGEST_WHOLE:
            raise ConfigError(
                f"noise_multiplier={self.noise_multiplier:g}: too little for sums of {count} terms to be exact; take "
                "more noise",
                value=self.noise_multiplier,
            )
        total, alike = torch.zeros(2, size, dtype=torch.float64), dict[tuple[int, bool], list[Places]]()
        drawn = torch.zeros(count, dtype=torch.uint8)
        for number in self.drawn(count, source):
            drawn[number] += 1
            term, apart = terms(number), number in watched
            values = term.values if isinstance(term, Places) else term
            if not bool((values.abs() <= _LARGEST_ENTRY).all()):
                continue
            if isinstance(term, Places):
                alike.setdefault((len(term.values), apart), []).append(term)
            else:
                total[int(apart)] += clip_to_grid(term.reshape(1, -1), self.clip, 2, cell)[0]
        for (_, apart), group in alike.items():  # as many at a time as have as many entries
            clipped = clip_to_grid(torch.stack([each.values for each in group]), self.clip, 2, cell)
            total[int(apart)].index_add_(0, torch.cat([each.places for each in group]), clipped.flatten())
        return total, drawn


CHANNEL: Final = "sampled gradients"


class SampledPublisher(PaidPublisher):
    """One holder's publisher of private training: ``steps`` noisy sums, each an ``event``.

    The party's ledger for life, the ``account``, pays before the first round of a session for all that the run has
    left: after a crash it counts too much. The run's ledger, None in a simulation, counts rounds, and lets no more be
    made than were planned.
    """

    # Tensor[N] uint8, which of the terms that could be drawn are in the newest sum: for an audit, and nobody else.
    drawn: Tensor

    def __init__(
        self,
        noisy: SampledSum,
        event: Event,
        delta: float,
        steps: int,
        ledger: Ledger | None,
        source: SecretSource,
        account: Account | None = None,
    ) -> None:
        super().__init__(ledger, event, delta)
        self._sum, self._steps, self._source, self._account = noisy, steps, source, account

    def sampled_sum(self, count: int, terms: Terms, size: int, step: int, watched: Collection[int] = ()) -> Tensor:
        """Pay for and release the noisy sum of round ``step``: Tensor[W] float64; joint noise: with one share only.

        Sets ``clean``, the sums before noise, [2, W], without the ``watched`` terms and of all, and ``drawn``.
        Arguments as of ``SampledSum.added``. Raises ``BudgetSpent``: no rounds are left, or a limit has no room.
        """
        if self._ledger is not None:
            self.expect(1, step)
            self._ledger.spend(self._event, CHANNEL, step)
        (others, canaries), self.drawn = self._sum.added(count, terms, size, self._source, watched)
        self.clean = torch.stack([others, others + canaries])
        return self.clean[1] + self._sum.noise(size, self._source)

    @override
    def expect(self, steps: int, step: int) -> None:
        missing = 0 if self._ledger is None else steps - self._ledger.reserved(self._event, CHANNEL)
        if self._ledger is None or missing <= 0:
            return
        if missing > (left := self._rounds_left()):
            raise BudgetSpent(
                f"{CHANNEL}: {self._steps} rounds were planned (train.epochs) and {self._rounds_paid()} are paid for; "
                f"{missing} more would cost more than the job says, and were not made; begin a new run",
                key="train.epochs",
                value=self._steps,
            )
        if self._account is not None:
            self._account.charge(self._event, CHANNEL, left)
            self._account = None
        self._ledger.reserve(self._event, CHANNEL, step, missing)

    def _rounds_paid(self) -> int:
        return 0 if self._ledger is None else self._ledger.releases(CHANNEL)

    def _rounds_left(self) -> int:
        return max(0, self._steps - self._rounds_paid())

    @override
    def refusal(self) -> str:
        """Return why the lifetime ledger has no room for the rounds left, or empty; warm up the accountant's cache."""
        left = self._rounds_left()
        accountant.total({self._event: self._rounds_paid() + 1}, self._delta)
        if self._account is None or left == 0 or self._account.has_room(self._event, left):
            return ""
        return (
            f"limits.max_epsilon has no room for {left} rounds of training, beside all that was ever released; allow "
            "more there (veilgraph budget JOB --party), or have a new run add more noise or make fewer (train.epochs)"
        )

    @override
    def affordable_steps(self) -> int | None:
        return None if self._ledger is None else self._rounds_left()
