"""Private training in averaging, through its publisher: one node's terms as far as its rule lets them go.

With the node all terms that it is in point one way, without it, or with another in its place, the other way, each
longer than the clip: the pair of which ``SampledEvent`` proves that no two neighbouring data sets are easier
to tell apart. The score adds up the log-likelihood ratios of all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override
from veilgraph_averaging.private.mixture import Mixture
from veilgraph_averaging.private.plan import SampledPlan
from veilgraph_averaging.private.sampled import SampledPublisher
from veilgraph_averaging.settings import averaging

from research.canaries.game import Game, Played, paying
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.event import Neighbours
from veilgraph.protocol.job_file import parse_job

_TOO_LONG = 10.0


@dataclass(frozen=True)
class Gradients(Game):
    """A node with its label and edges, in all rounds of a private training.

    Attributes:
        neighbours: zero-out or replacement.
        hops: K.
        bound: D; where there are hops.
        rate: q.
        rounds: T.
        noise: σ, in place of an ε.
    """

    neighbours: Neighbours = "zero-out"
    hops: int = 1
    bound: int = 2
    rate: float = 0.25
    rounds: int = 4
    noise: float | None = None
    gaussian: ClassVar[bool] = False
    together: ClassVar[int] = 500
    """Canaries in one training, each of them along an entry of its own; of several trainings the first is paid for."""

    @property
    def terms(self) -> tuple[int, int]:
        """Of a node that is in, and out or replaced: its own, and those of all within K edges of it."""
        near = sum(self.bound * (self.bound - 1) ** hop for hop in range(self.hops))
        return (1 + near, near) if self.neighbours == "zero-out" else (1 + 2 * near, 1 + 2 * near)

    @override
    def play(self, coins: Tensor) -> Played:
        plan = self._plan
        with paying(self.delta) as ledger:
            paid = plan.paid_by(ledger, system_secrets)
            first, *others = torch.split(coins, self.together)
            found = [self._trained(paid, plan.settings.clip, first)]
            claim = paid.spent().epsilon_total
        found += [self._trained(plan.paid_by(None, system_secrets), plan.settings.clip, each) for each in others]
        sums = torch.cat(found) / plan.settings.clip
        losses, _ = Mixture(plan.multiplier, self.rate, *self.terms).losses(sums.flatten().numpy())
        return Played(torch.from_numpy(losses).reshape(sums.shape).sum(1), claim)

    def _trained(self, door: SampledPublisher, clip: float, coins: Tensor) -> Tensor:
        """Every canary's entry of every round's sum: Tensor[m, T]."""
        whose = torch.arange(len(coins)).repeat_interleave(torch.where(coins, *self.terms)).tolist()
        terms = torch.diag(_TOO_LONG * clip * (2 * coins.to(torch.float64) - 1))
        sums = [
            door.sampled_sum(len(whose), lambda number: terms[whose[number]], len(coins), step)
            for step in range(self.rounds)
        ]
        return torch.stack(sums, 1)

    @property
    def _plan(self) -> SampledPlan:
        bound: Mapping[str, Any] = {"degree_bound": self.bound} if self.hops else {}
        noise: dict[str, Any] = {"delta": self.delta, "neighbours": self.neighbours}
        noise |= {"epsilon_total": self.epsilon} if self.noise is None else {"noise_multiplier": self.noise}
        local = {"model": "gin", "hops": self.hops, "normalize": False}
        job = averaging(
            parse_job(
                {
                    "paradigm": "averaging",
                    "data": {"dataset": "synthetic", "holders": 2, "split": [0.6, 0.2, 0.2], "stratify": False},
                    "model": {"dropout": 0.0, "local": local},
                    "averaging": {
                        "rule": {"name": "fedsgd"},
                        "local_epochs": 1,
                        "privacy": {"sampling_rate": self.rate, "batch": 8, **noise, **bound},
                    },
                    "train": {"epochs": self.rounds, "patience": None, "select_by": "last"},
                }
            )
        )
        found = job.training_plan
        assert found is not None
        return found
