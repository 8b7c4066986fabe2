"""The seam of publishers: the one door through which anything of a holder's data leaves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from torch import Tensor

from veilgraph.privacy.plan import Channel

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from veilgraph.privacy.aggregation import Then


@dataclass(frozen=True)
class Spent:
    """What a holder's releases come to.

    Attributes:
        releases: channel → how many were paid for.
        epsilon_release: ε of one of them by itself.
        epsilon_total: ε of all of them together, at the same δ.
    """

    releases: Mapping[str, int]
    epsilon_release: float
    epsilon_total: float


class Publisher:
    """One party's door. This one is open: what goes through it is as it was, and costs nothing.

    Attributes:
        is_open: whether embeddings go through as they are.
        is_summed: whether they go through as ``summand``, to be added up as they are.
        watched: Tensor[w] int64, rows of which ``clean`` has what they were; None for none, which is the default.
        order: Tensor[N] int64, the holder's nodes in the order in which a single release is made; None: as they are.
        clean: Tensor[w, d], of the newest embeddings, clipped and without noise; or Tensor[2, W], the newest sum of
            gradients without noise, without those of watched rows and with them: for an audit, and to nobody else.
    """

    is_open: bool = True
    is_summed: bool = False
    watched: Tensor | None = None
    clean: Tensor
    order: Tensor | None = None

    def embeddings(self, rows: Tensor, step: int) -> Tensor:
        """Releases embeddings: Tensor[C, d], differentiable.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
        """
        return rows

    def aggregated(self, rows: Tensor, pairs: csr_array, common: int, then: Then | None = None) -> Tensor:
        """Releases sums over neighbours with noise in every hop, once.

        Args:
            rows: Tensor[N, d], each made of one node's features.
            pairs: of ``aggregation.pair_matrix``, [N, N].
            common: C, how many of the nodes, the first, the others know.
            then: makes rows of later hops, as of ``aggregation.NoisySums.release``.

        Returns:
            Tensor[C, (K + 1)·d] float64; Tensor[C, K·d] where the plan releases no rows of nodes themselves.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
            ConfigError: its noise is too little for sums to be exact.
        """
        raise NotImplementedError("an open door has no hops to noise")

    def summand(self, rows: Tensor, step: int, channel: Channel = "embeddings", finest: float = 0.0) -> Tensor:
        """Releases rows to be added up under masks, with all of this holder's noise or its share of the sum's.

        With a share they are sent under masks alone, and never again.

        Args:
            rows: Tensor[C, d].
            step: of the job.
            channel: what they are, embeddings or gradients.
            finest: grid that is held by what carries them; a share on a finer one is left as it is.

        Returns:
            Tensor[C, d] float64, differentiable, multiples of one public number, the same at all holders.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
            ConfigError: the job's releases are not added up.
        """
        raise NotImplementedError("an open door has no grid to add rows up on")

    def gradients(self, rows: Tensor, step: int, *, deep: bool = False) -> Tensor:
        """Releases gradients, of all rows alike so that zero rows do not show: Tensor[C, d], of the same dtype.

        Args:
            rows: to be released.
            step: of the training.
            deep: of z_L, and not of a round, in which others' gradients depend on this holder's data as well.

        Raises:
            BudgetSpent: the budget does not allow it; nothing was released.
        """
        return rows

    def pay(self, content: str) -> None:
        """Pays for what another party is going to open with noise in it, unless that very noise was paid for.

        Args:
            content: 64 hexadecimal digits, of that noise and no other.

        Raises:
            BudgetSpent: the budget does not allow it; nothing may be opened.
        """

    def cell(self, channel: Channel) -> float:
        """Of the grid that releases on a channel lie on; 0 without noise."""
        return 0.0

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
        """Pays for the training steps that are about to come, with one entry for each channel.

        Args:
            steps: how many, no more than will be made.
            step: number of the first of them.
        """

    def spent(self) -> Spent | None:
        """What all releases of the run so far, predictions included, come to; None where they have no price."""
        return None

    def account(self) -> dict[str, Any] | None:
        """``spent`` as JSON has it, with what it is about; an infinite ε is null."""
        return None

    def close(self) -> None:
        """Ends background work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OPEN: Final = Publisher()


def account_of(spent: Spent, budget: float, **about: object) -> dict[str, Any]:
    """What ``Publisher.account`` gives."""
    return {
        "releases": dict(spent.releases),
        "epsilon_release": _finite(spent.epsilon_release),
        "epsilon_total": _finite(spent.epsilon_total),
        **about,
        "budget": _finite(budget),
    }


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
