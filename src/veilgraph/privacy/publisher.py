"""The one door through which anything of a holder's data leaves it: clipped, paid for in the ledger, noised, then sent.

``Publisher`` is the seam, and the open door of who releases nothing that has a price. A ``NoisedPublisher`` makes a
release in one of three ways: clipped alone (ε = ∞), with fresh noise, or once and from then on as it was kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.aggregation import NoisySums, Then
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.event import Event, Scope
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.release_cache import Release, ReleaseCache


@dataclass(frozen=True)
class Spent:
    """What a holder's releases come to: channel → how many were paid for, ε of one and of all, at the same δ."""

    releases: Mapping[str, int]
    epsilon_release: float
    epsilon_total: float


class Publisher:
    """One party's door. This one is open: what goes through it is as it was, and costs nothing.

    Every release raises ``BudgetSpent`` where the budget does not allow it; then nothing was released.

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
        """Release embeddings: Tensor[C, d], differentiable."""
        return rows

    def aggregated(self, rows: Tensor, pairs: csr_array, common: int, then: Then | None = None) -> Tensor:
        """Release sums over neighbours with noise in every hop, once; as ``aggregation.NoisySums.release``.

        It gives the first C nodes', Tensor[C, w] float64. Raises ``ConfigError`` where its noise is too little for sums
        to be exact.
        """
        raise NotImplementedError("an open door has no hops to noise")

    def summand(self, rows: Tensor, step: int, channel: Channel = "embeddings", finest: float = 0.0) -> Tensor:
        """Release rows, Tensor[C, d], to be added up under masks, with all of this holder's noise or its share.

        With a share they are sent under masks alone, and never again, on a grid of ``finest`` at least. Gives float64,
        differentiable, multiples of one public number, the same at all holders. Raises ``ConfigError`` where the job's
        releases are not added up.
        """
        raise NotImplementedError("an open door has no grid to add rows up on")

    def gradients(self, rows: Tensor, step: int, *, deep: bool = False) -> Tensor:
        """Release gradients, Tensor[C, d], of all rows alike so that zero rows do not show.

        ``deep``: of z_L, and not of a round, in which others' gradients depend on this holder's data as well.
        """
        return rows

    def pay(self, content: str) -> None:
        """Pay for what another party opens with noise in it, unless that noise, 64 hexadecimal digits, was paid for."""

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
        """Pay for so many training steps that will be made, from ``step`` on, with one entry for each channel."""

    def spent(self) -> Spent | None:
        """What all releases of the run so far, predictions included, come to; None where they have no price."""
        return None

    def account(self) -> dict[str, Any] | None:
        """``spent`` as JSON has it, with what it is about; an infinite ε is null."""
        return None

    def close(self) -> None:
        """End background work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


OPEN: Final = Publisher()


class PaidPublisher(Publisher):
    """A door whose releases, of one ``event``, the run's ledger pays for; None in a simulation, or without noise.

    ``scope`` and δ are of every ε; δ is 0 where each is pure, else that of the ledger where there is one.
    """

    def __init__(self, ledger: Ledger | None, event: Event | None, scope: Scope, delta: float = 0.0) -> None:
        self._ledger, self._event = ledger, event
        self._scope, self._delta = scope, ledger.delta if delta and ledger is not None else delta

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
        """What the releases of each channel, all that the ledger has, come to."""
        each = accountant.per_step(self._event, ledger.delta) if counts and self._event is not None else 0.0
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
        """``delta``, ``unit`` and ``neighbours`` of every ε."""
        return {"delta": self._delta, **self._scope._asdict()}


class NoisedPublisher(PaidPublisher):
    """One holder's door of rows: canaries among them, clipped, paid for, noised.

    While the parties use one release, the noise of the next one is drawn. ``cache`` is of what it releases once. Raises
    ``ConfigError`` where canaries are missing, or jointly made noise is to be kept, which no other sum may have in it.
    """

    is_open = False

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger | None,
        source: SecretSource,
        canaries: Canaries | None = None,
        cache: ReleaseCache | None = None,
    ) -> None:
        if canaries is None and plan.canaries and plan.settings.canaries_in == "rows":
            raise ConfigError(
                f"privacy.canaries={plan.canaries} are for a federated run, which keeps them for its audit: "
                "here they would not be kept; leave them out"
            )
        if plan.joint is not None and cache is not None and cache.is_kept:
            raise ConfigError(
                "privacy.joint_noise: a row with a share of a sum's noise is protected inside that sum alone, and the "
                "same bytes in another would come off by a subtraction; keep nothing of it"
            )
        super().__init__(ledger, plan.event, Scope(plan.settings.unit, plan.settings.relation), plan.delta)
        self.plan, self._source, self._canaries = plan, source, canaries
        self._cache = cache or ReleaseCache(ledger)
        self.clean = torch.empty(0)
        self._alone_event = plan.alone_event
        self.is_summed = plan.is_summed and self._event is not None
        self._is_joint = self.is_summed and plan.joint is not None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._coming: dict[tuple[Mechanism, tuple[int, ...]], Future[Tensor]] = {}

    @override
    def close(self) -> None:
        self._background.shutdown(cancel_futures=True)

    @override
    def embeddings(self, rows: Tensor, step: int) -> Tensor:
        """The gradient is that of the clipped rows: noise is a constant, and James-Stein's shrinking is passed over."""
        self._check_by_itself("rows")
        rows = self._with_canaries(rows, "embeddings", step)
        if self._event is None:
            return self._clipped(rows, "embeddings")
        self.pay_for_others(step)
        return self._in_place_of(rows, self._release(rows.detach(), "embeddings", step).to(rows.dtype), "embeddings")

    @override
    def summand(self, rows: Tensor, step: int, channel: Channel = "embeddings", finest: float = 0.0) -> Tensor:
        if not self.is_summed:
            raise ConfigError(
                "privacy: the job's releases are not added up as they are; release embeddings, or gradients"
            )
        rows = self._with_canaries(rows, channel, step)
        self.pay_for_others(step)
        released = self._release(rows.detach(), channel, step)
        cell = self.plan.sum_cell(channel) if self._is_joint else max(self.plan.sum_cell(channel), finest)
        if cell > self.plan.mechanism(channel).cell:
            released.div_(cell).floor_().mul_(cell)  # to the nearest, every other one would be even
        return self._in_place_of(rows, released, channel)

    @override
    def gradients(self, rows: Tensor, step: int, *, deep: bool = False) -> Tensor:
        rows = self._with_canaries(rows, "gradients", step)
        if self._event is None:
            return self._clipped(rows, "gradients")
        if not deep:
            self._check_by_itself("gradients of a round")
            self.pay_for_others(step)
        return self._release(rows, "gradients", step, alone=deep).to(rows.dtype)

    @override
    def aggregated(self, rows: Tensor, pairs: csr_array, common: int, then: Then | None = None) -> Tensor:
        privacy = self.plan.settings
        if privacy.aggregation is None:
            raise ConfigError("privacy.aggregation: the job has none, and its noise is on the result of all hops")
        mechanism = None if self._event is None else self.plan.mechanism("embeddings")
        sums = NoisySums(pairs, privacy.aggregation.hops, mechanism, privacy.sum_clip, self.plan.own_length)

        def noised(_: Tensor) -> Tensor:
            return sums.release(rows, self._source, then)[:common].clone()

        if self._event is None:
            released = noised(rows)
        else:
            near = torch.from_numpy(pairs @ rows.numpy())  # edges tell as well whether data have changed
            of = Release(self.plan.single, self._event, repr(mechanism))
            released = self._cache.release(of, torch.cat([rows, near], dim=1)[:common], noised)
        if self.watched is not None:
            self.clean = sums.clean(rows, released)[self.watched]
        return released

    def _check_by_itself(self, what: str) -> None:
        """A share of the noise protects nothing outside of the sum whose other shares are added to it."""
        if self._is_joint:
            raise ConfigError(
                f"privacy.joint_noise: {what} have a share of the noise alone, and go nowhere but under masks; release "
                "them as a summand"
            )

    def _with_canaries(self, rows: Tensor, channel: Channel, step: int) -> Tensor:
        """Rows with the canaries among them; the embeddings that an audit watches are noted."""
        privacy = self.plan.settings
        if self._canaries is not None:
            rows = self._canaries.plant(rows, self.plan.clip(channel), step, privacy.order, privacy.relation)
        if self.watched is not None and channel == "embeddings":
            self.clean = self._clipped(rows.detach()[self.watched], channel)
        return rows

    def _clipped(self, rows: Tensor, channel: Channel) -> Tensor:
        return clip_rows(rows, self.plan.clip(channel), self.plan.settings.order)

    def _release(self, rows: Tensor, channel: Channel, step: int, *, alone: bool = False) -> Tensor:
        """Rows with noise: once, and then as they were kept; or paid for, and with noise of their own."""
        mechanism, shape = self.plan.mechanism(channel, alone=alone), tuple(rows.shape)
        if self._cache.is_kept and self._event is not None:
            return self._cache.release(
                Release(channel, self._event, repr(mechanism)), rows, lambda new: mechanism.release(new, self._source)
            )
        self._spend(self._alone_event if alone else self._event, channel, step)
        coming = self._coming.pop((mechanism, shape), None) or self.draw_release(mechanism, shape)
        released = mechanism.apply(rows, coming.result())
        if not self.plan.settings.once:
            self._coming[mechanism, shape] = self.draw_release(mechanism, shape)
        return released

    def _in_place_of(self, rows: Tensor, released: Tensor, channel: Channel) -> Tensor:
        """Released values to the bit, with the gradient of the clipped rows."""
        if not rows.requires_grad:
            return released
        clipped = self._clipped(rows, channel)
        return released + (clipped - clipped.detach())

    def draw_release(self, mechanism: Mechanism, shape: tuple[int, ...]) -> Future[Tensor]:
        """Draw a release's noise in the background, before its values are known."""
        return self._background.submit(mechanism.draw, shape, self._source)

    def pay_for_others(self, step: int) -> None:
        """For what the other holders release beside it; nothing where that does not depend on this holder's data."""
        if self.plan.others:
            self._spend(self._event, "others", step, self.plan.others)

    @override
    def pay(self, content: str) -> None:
        if self._ledger is not None and not self._ledger.is_free("predictions", content):
            self._spend(self._event, "predictions", 0, content=content)

    def _spend(self, event: Event | None, channel: Channel, step: int, count: int = 1, *, content: str = "") -> None:
        """Without an event (ε = ∞) there is nothing that a ledger could hold."""
        if self._ledger is not None and event is not None:
            self._ledger.spend(event, channel, step, count, content=content)

    @override
    def expect(self, steps: int, step: int) -> None:
        if self._ledger is None or self._event is None or self._alone_event is None:
            return
        for channel, each in self.plan.step.items():
            alone = self.plan.alone if channel == "gradients" else 0
            for event, count in (Counter({self._event: each - alone}) + Counter({self._alone_event: alone})).items():
                self._ledger.reserve(event, channel, step, count * steps)

    @override
    def cell(self, channel: Channel) -> float:
        return 0.0 if self._event is None else self.plan.mechanism(channel).cell

    @override
    def refusal(self) -> str:
        room, needed, party = self._room(), self.plan.inference, self.plan.party
        if room is None or room >= needed:
            return ""
        way_out = (
            "allow a larger privacy.epsilon_total in a new run, or leave room for predictions with privacy.predictions"
        )
        ledger, event = self._ledger, self._event
        if ledger is not None and event is not None and ledger.is_lifetime_spent(event, needed):
            way_out = (
                f"allow a larger limits.max_epsilon at {party}, where it is of all that was ever released "
                "(veilgraph budget JOB --party), or have a new run add more noise"
            )
        return f"{room} more releases fit the budget of {party} and an inference needs {needed}; {way_out}"

    @override
    def affordable_steps(self) -> int | None:
        room = self._room()
        return None if room is None else self.plan.affordable_steps(room)

    @override
    def affordable_releases(self) -> int | None:
        if self._ledger is None or self._event is None:
            return None
        of = Release(self.plan.single, self._event, repr(self.plan.mechanism("embeddings")))
        room = None if self._cache.is_free(of) else self._cache.room(of)
        return None if room is None else room // max(1, self.plan.inference)

    def _room(self) -> int | None:
        return None if self._ledger is None or self._event is None else self._ledger.room(self._event)

    @override
    def spent(self) -> Spent:
        if self.plan.releases == 0:
            return Spent({}, 0.0, 0.0)
        return Spent({}, math.inf, math.inf) if self._event is None else super().spent()


def clip_rows(rows: Tensor, clip: float, order: int) -> Tensor:
    """Rows, Tensor[N, d], of at most that length: min(1, C/‖x‖)·x (VFGNN, Algorithm 1, line 1); short ones stay."""
    lengths: Tensor = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
    return rows * (clip / lengths.clamp_min(clip))
