"""The publisher: what a holder lets out is clipped, paid for in the ledger, noised, and then sent (DESIGN's one door).

In a run that is to be audited, canaries take the place of some rows before all of that.

Without noise (ε = ∞) rows are clipped alone, and nothing is paid.
"""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.aggregation import NoisySums, Then
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime.sent import SentRows
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.publisher import Publisher, Spent, account_of
from veilgraph.privacy.single import SentRelease, is_sent_again, release_rows, room_for


class NoisedPublisher(Publisher):
    """One holder's. While the parties use one release, the noise of the next one is drawn.

    Args:
        plan: of the holder in its job.
        ledger: of the holder; None where nothing is kept, as in a plaintext simulation.
        source: of the noise.
        canaries: of the holder, where its job has any.
        kept: what the holder has released in the run, where the job releases once.
        sent: in its place, what it ever released, where its data have a ledger for life.

    Raises:
        ConfigError: the job has canaries and none are given, or noise that is made jointly and something is kept, which
            no other sum may have in it.
    """

    is_open = False

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger | None,
        source: SecretSource,
        canaries: Canaries | None = None,
        kept: SentRelease | None = None,
        sent: SentRows | None = None,
    ) -> None:
        if canaries is None and plan.canaries and plan.settings.canaries_in == "rows":
            raise ConfigError(
                f"privacy.canaries={plan.canaries} are for a federated run, which keeps them for its audit: "
                "here they would not be kept; leave them out"
            )
        if plan.joint is not None and (kept is not None or sent is not None):
            raise ConfigError(
                "privacy.joint_noise: a row with a share of a sum's noise is protected inside that sum alone, and the "
                "same bytes in another would come off by a subtraction; keep nothing of it",
                key="privacy.joint_noise",
            )
        self.plan = plan
        self._canaries, self._kept, self._sent = canaries, kept, sent
        self.clean = torch.empty(0)
        self._ledger, self._source = ledger, source
        self._event, self._alone_event = plan.event, plan.alone_event
        self.is_summed = plan.is_summed and self._event is not None
        self._is_joint = self.is_summed and plan.joint is not None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="noise")
        self._coming: dict[tuple[Mechanism, tuple[int, ...]], Future[Tensor]] = {}

    @override
    def close(self) -> None:
        self._background.shutdown(cancel_futures=True)

    @override
    def embeddings(self, rows: Tensor, step: int) -> Tensor:
        """See ``Publisher.embeddings``.

        The gradient of what was released is the gradient of the clipped rows: noise is a constant, and James-Stein's
        shrinking is passed over.
        """
        if self._is_joint:
            raise ConfigError(
                "privacy.joint_noise: rows have a share of the noise alone, and go nowhere but under masks; release "
                "them as a summand",
                key="privacy.joint_noise",
            )
        clip, rows = self.plan.settings.clip, self._before_noise(rows, step)
        if self._event is None:
            return clip_rows(rows, clip, self._order)
        self.pay_for_others(step)
        return self._in_place_of(rows, self._release(rows.detach(), "embeddings", step).to(rows.dtype), clip)

    @override
    def summand(self, rows: Tensor, step: int, channel: Channel = "embeddings", finest: float = 0.0) -> Tensor:
        if not self.is_summed:
            raise ConfigError(
                "privacy: the job's releases are not added up as they are; release embeddings, or gradients",
                key="privacy",
            )
        if channel == "embeddings":
            clip, rows = self.plan.settings.clip, self._before_noise(rows, step)
        else:
            clip = self.plan.settings.gradient_clip
            rows = self._planted(rows, clip, step)
        self.pay_for_others(step)
        released = self._release(rows.detach(), channel, step)
        cell = self.plan.sum_cell(channel) if self._is_joint else max(self.plan.sum_cell(channel), finest)
        if cell > self.plan.mechanism(channel).cell:
            released.div_(cell).floor_().mul_(cell)  # to the nearest, every other one would be even
        return self._in_place_of(rows, released, clip)

    def _in_place_of(self, rows: Tensor, released: Tensor, clip: float) -> Tensor:
        return cast(Tensor, _Released.apply(rows, released, clip, self._order))  # type: ignore[no-untyped-call]

    def _before_noise(self, rows: Tensor, step: int) -> Tensor:
        """Embeddings with the canaries among them; those that an audit watches are noted."""
        clip = self.plan.settings.clip
        rows = self._planted(rows, clip, step)
        if self.watched is not None:
            self.clean = clip_rows(rows.detach()[self.watched], clip, self._order)
        return rows

    @override
    def aggregated(self, rows: Tensor, pairs: csr_array, common: int, then: Then | None = None) -> Tensor:
        privacy = self.plan.settings
        if privacy.aggregation is None:
            raise ConfigError("privacy.aggregation: the job has none, and its noise is on the result of all hops")
        mechanism = None if self._event is None else self.plan.mechanism("embeddings")
        hops = privacy.aggregation
        sums = NoisySums(pairs, hops.hops, mechanism, privacy.sum_clip, self.plan.own_length)

        def noised(_: Tensor) -> Tensor:
            return sums.release(rows, self._source, then)[:common].clone()

        if self._event is None:
            released = noised(rows)
        else:
            near = torch.from_numpy(pairs @ rows.numpy())  # edges tell as well whether data have changed
            about = self.plan.single, torch.cat([rows, near], dim=1)[:common], self._event, repr(mechanism)
            released = release_rows(self._sent, self._kept, self._ledger, *about, noised)
        if self.watched is not None:
            self.clean = sums.clean(rows, released)[self.watched]
        return released

    @override
    def pay(self, content: str) -> None:
        if self._ledger is None or self._event is None:
            return
        if not self._ledger.is_free("predictions", content):
            self._ledger.spend(self._event, "predictions", 0, content=content)

    @override
    def gradients(self, rows: Tensor, step: int, *, deep: bool = False) -> Tensor:
        clip = self.plan.settings.gradient_clip
        rows = self._planted(rows, clip, step)
        if self._event is None:
            return clip_rows(rows, clip, self._order)
        if not deep:
            if self._is_joint:
                raise ConfigError(
                    "privacy.joint_noise: gradients of a round have a share of the noise alone, and go nowhere but "
                    "under masks; release them as a summand",
                    key="privacy.joint_noise",
                )
            self.pay_for_others(step)
        return self._release(rows, "gradients", step, alone=deep).to(rows.dtype)

    @override
    def cell(self, channel: Channel) -> float:
        return 0.0 if self._event is None else self.plan.mechanism(channel).cell

    @property
    @override
    def budget(self) -> float:
        """The largest total ε: the job's, or the party's own if that is less."""
        return math.inf if self._ledger is None or self._ledger.budget is None else self._ledger.budget

    @property
    def delta(self) -> float:
        """δ of every ε."""
        return self.plan.delta if self._ledger is None else self._ledger.delta

    @override
    def refusal(self) -> str:
        room = self._room()
        if room is None or room >= self.plan.inference:
            return ""
        way_out = (
            "allow a larger privacy.epsilon_total in a new run, or leave room for predictions with privacy.predictions"
        )
        ledger, event = self._ledger, self._event
        if ledger is not None and event is not None and ledger.is_lifetime_spent(event, self.plan.inference):
            way_out = (
                f"allow a larger limits.max_epsilon at {self.plan.party}, where it is of all that was ever released "
                "(veilgraph budget JOB --party), or have a new run add more noise"
            )
        party, needed = self.plan.party, self.plan.inference
        return f"{room} more releases fit the budget of {party} and an inference needs {needed}; {way_out}"

    @override
    def affordable_steps(self) -> int | None:
        room = self._room()
        return None if room is None else self.plan.affordable_steps(room)

    @override
    def affordable_releases(self) -> int | None:
        if self._ledger is None or self._event is None:
            return None
        about = self.plan.single, self._event, repr(self.plan.mechanism("embeddings"))
        if is_sent_again(self._sent, self._kept, self._ledger, *about):
            return None
        room = room_for(self._sent, self._ledger, *about)
        return None if room is None else room // max(1, self.plan.inference)

    def _room(self) -> int | None:
        return None if self._ledger is None or self._event is None else self._ledger.room(self._event)

    @override
    def spent(self) -> Spent:
        counts = Counter[str]()
        if self.plan.releases == 0:
            return Spent(counts, 0.0, 0.0)
        if self._event is None or self._ledger is None:
            return Spent(counts, math.inf, math.inf)
        for channel in self._ledger.summary():
            counts[channel.channel] += channel.releases
        total = max(self._ledger.totals().values(), default=0.0)
        return Spent(counts, accountant.per_step(self._event, self._ledger.delta) if counts else 0.0, total)

    @override
    def account(self) -> dict[str, Any]:
        privacy = self.plan.settings
        return account_of(self.spent(), self.budget, delta=self.delta, unit=privacy.unit, neighbours=privacy.relation)

    @override
    def expect(self, steps: int, step: int) -> None:
        if self._ledger is None or self._event is None or self._alone_event is None:
            return
        for channel, each in self.plan.step.items():
            alone = self.plan.alone if channel == "gradients" else 0
            for event, count in (Counter({self._event: each - alone}) + Counter({self._alone_event: alone})).items():
                self._ledger.reserve(event, channel, step, count * steps)

    @property
    def _order(self) -> int:
        return self.plan.settings.order

    def _planted(self, rows: Tensor, clip: float, step: int) -> Tensor:
        if self._canaries is None:
            return rows
        return self._canaries.plant(rows, clip, step, self._order, self.plan.settings.relation)

    def pay_for_others(self, step: int) -> None:
        """For what the other holders release beside it; nothing where that does not depend on this holder's data."""
        if self.plan.others and self._ledger is not None and self._event is not None:
            self._ledger.spend(self._event, "others", step, self.plan.others)

    def _release(self, rows: Tensor, channel: Channel, step: int, *, alone: bool = False) -> Tensor:
        mechanism, shape = self.plan.mechanism(channel, alone=alone), tuple(rows.shape)
        if (self._sent is not None or self._kept is not None) and self._event is not None:
            anew = lambda new: mechanism.apply(new, mechanism.draw(tuple(new.shape), self._source))  # noqa: E731
            about = channel, rows, self._event, repr(mechanism)
            return release_rows(self._sent, self._kept, self._ledger, *about, anew)
        event = self._alone_event if alone else self._event
        if self._ledger is not None and event is not None:
            self._ledger.spend(event, channel, step)
        coming = self._coming.pop((mechanism, shape), None) or self.draw_release(mechanism, shape)
        released = mechanism.apply(rows, coming.result())
        if not self.plan.settings.once:
            self._coming[mechanism, shape] = self.draw_release(mechanism, shape)
        return released

    def draw_release(self, mechanism: Mechanism, shape: tuple[int, ...]) -> Future[Tensor]:
        """Draws a release's noise in the background, before its values are known."""
        return self._background.submit(mechanism.draw, shape, self._source)


def clip_rows(rows: Tensor, clip: float, order: int) -> Tensor:
    """Rows of at most that length: min(1, C/‖x‖)·x (VFGNN, Algorithm 1, line 1); shorter ones bit for bit as they were.

    Args:
        rows: Tensor[N, d]; gradients flow.
        clip: C.
        order: of the norm, 1 or 2.
    """
    lengths: Tensor = torch.linalg.vector_norm(rows, order, dim=1, keepdim=True)
    return rows * (clip / lengths.clamp_min(clip))


class _Released(torch.autograd.Function):
    """Released values in place of the rows, with the gradient of the clipped rows, as of ``clip_rows``."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, released: Tensor, clip: float, order: int) -> Tensor:  # noqa: ANN401 - torch's
        ctx.save_for_backward(rows)
        ctx.clip, ctx.order = clip, order
        return released

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401 - torch's
        (rows,) = ctx.saved_tensors
        gradient = gradients[0].to(rows.dtype)
        lengths = torch.linalg.vector_norm(rows, ctx.order, dim=1, keepdim=True)
        bounded = lengths.clamp_min(ctx.clip)
        factors = ctx.clip / bounded
        # Of a row that is too long: f·(g - ∂‖x‖·(x·g)/‖x‖), f = C/‖x‖; ∂‖x‖ is x/‖x‖, in ℓ1 the sign of x.
        along = torch.linalg.vecdot(rows, gradient).unsqueeze(1) * (factors / bounded * (lengths > ctx.clip))
        slope, step = (rows, along / bounded) if ctx.order == 2 else (rows.sign(), along)
        return torch.addcmul(gradient * factors, slope, step, value=-1), None, None, None
