"""Rows of vertical jobs, through their publisher: once, in every step, and as summands with jointly made noise."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from research.canaries.game import DELTA, Game, Played, paying, towards
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.mpc.mask import PairwiseMasks, open_sum
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.event import Neighbours
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

_TOO_LONG = 10.0
"""Of a canary over the clip, so that clipping has to do its part."""
BITS = 32


def job_of(
    holders: int,
    epochs: int,
    hops: int = 2,
    initial: str = "individual",
    **privacy: Any,  # noqa: ANN401 - settings
) -> JobSettings:
    """A vertical job over so many holders, whose masks hold exact noise."""
    train = {} if privacy["schedule"] == "once" else {"select_by": "last", "patience": None}
    local = {"model": "appnp", "hops": hops, "normalize": False}
    return parse_job(
        {
            "data": {"dataset": "synthetic", "holders": holders},
            "model": {"dim": 1, "initial": {"method": initial}, "local": local, "combine": {"bits": BITS}},
            "train": {"epochs": epochs, **train},
            "privacy": {"unit": "row", **privacy},
        }
    )


def planned(job: JobSettings, party: str) -> Plan:
    """What a holder of the job will publish."""
    found = plan(job, party)
    assert found is not None
    return found


@dataclass(frozen=True)
class Rows(Game):
    """A row of everything that a holder publishes: as long as the clip, or zero, or the opposite.

    Attributes:
        mechanism: of the job.
        neighbours: zero-out or replacement.
        epochs: 0: one release; else as many training steps, and an inference.
        labelled: whether the holder has the labels, and so publishes gradients as well.
        others: how many others publish rows that hang on its data as its own do, for h^0 is computed together.
    """

    mechanism: str = "gaussian"
    neighbours: Neighbours = "zero-out"
    epochs: int = 0
    labelled: bool = False
    others: int = 0
    width: ClassVar[int] = 3

    @property
    def _plan(self) -> Plan:
        job = job_of(
            1 + (self.others or 1),
            self.epochs or 1,
            initial="collaborative" if self.others else "individual",
            schedule="every-step" if self.epochs else "once",
            mechanism=self.mechanism,
            neighbours=self.neighbours,
            epsilon_total=self.epsilon,
            delta=self.delta or DELTA,
        )
        return planned(job, "A" if self.labelled else "B")

    @override
    def play(self, coins: Tensor) -> Played:
        of = self._plan
        direction = torch.eye(self.width, dtype=torch.float64)[0] if self.mechanism == "laplace" else towards(3)
        out = 0.0 if self.neighbours == "zero-out" else -1.0
        rows = _TOO_LONG * torch.where(coins, 1.0, out).to(torch.float64)[:, None] * direction
        scores = torch.zeros(len(coins), dtype=torch.float64)
        with ExitStack() as stack:
            ledger = stack.enter_context(paying(self.delta))
            ledgers = [ledger, *[None] * self.others]
            doors = [stack.enter_context(closing(NoisedPublisher(of, each, system_secrets))) for each in ledgers]
            door = doors[0]
            for step, each in itertools.product(range(self.epochs + 1), doors):
                scores += self._score(each.embeddings(rows, step) @ direction, of.settings.clip, out)
                if self.labelled and each is door and step < self.epochs:
                    scores += self._score(door.gradients(rows, step) @ direction, of.settings.gradient_clip, out)
            return Played(scores, door.spent().epsilon_total)

    def _score(self, along: Tensor, clip: float, out: float) -> Tensor:
        """The likelihood ratio, up to a factor, of Gaussian or of Laplace noise."""
        along = along / clip
        return (along - out).abs() - (along - 1).abs() if self.mechanism == "laplace" else along


@dataclass(frozen=True)
class PureRows(Rows):
    """One release with Laplace noise, whose ε is pure."""

    delta: float = 0.0
    mechanism: str = "laplace"
    gaussian: ClassVar[bool] = False


@dataclass(frozen=True)
class JointRows(Game):
    """A row of one summand, before the server that opens the sum, and t of the P holders, who take off what they added.

    Attributes:
        holders: P.
        colluding: t.
    """

    holders: int = 4
    colluding: int = 1

    @override
    def play(self, coins: Tensor) -> Played:
        names = [chr(ord("B") + place) for place in range(self.holders)]
        noise: dict[str, Any] = {
            "epsilon_total": self.epsilon,
            "delta": self.delta,
            "joint_noise": {"colluding": self.colluding},
        }
        job = job_of(self.holders + 1, 1, schedule="once", **noise)
        of = {name: planned(job, name) for name in names}
        keys: dict[str, dict[str, bytes]] = {name: {} for name in names}
        for one, other in itertools.combinations(names, 2):
            keys[one][other] = keys[other][one] = system_secrets(SEED_BYTES)
        rows = _TOO_LONG * coins.to(torch.float64)[:, None] * towards(2)
        hidden, known, claim = [], torch.zeros_like(rows), 0.0
        for place, name in enumerate(names):
            with paying(self.delta) as ledger, closing(NoisedPublisher(of[name], ledger, system_secrets)) as door:
                released = door.summand(rows if place == 0 else torch.zeros_like(rows), 0)
                claim = door.spent().epsilon_total if place == 0 else claim
            masks = PairwiseMasks(name, keys[name], system_secrets(SEED_BYTES))
            hidden.append(masks.hide(released, BITS, "rows", 0, "", exactly=True))
            if place >= self.holders - self.colluding:
                known += released
        opened = open_sum(hidden, BITS, torch.float64, "the sum", "")
        return Played((opened - known) @ towards(2), claim)
