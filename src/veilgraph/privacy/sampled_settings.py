"""DP-SGD of nodes: what a job of paradigm averaging says under ``averaging.privacy``, and what it comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from veilgraph.core.settings import Settings
from veilgraph.privacy import accountant
from veilgraph.privacy.calibrate import least_multiplier
from veilgraph.privacy.joint import Joint
from veilgraph.privacy.sampled_event import JointSampledEvent, SampledEvent, reach
from veilgraph.privacy.settings import fitting_delta
from veilgraph.privacy.units import Neighbours

LEAST_RATE: Final = 0.001
"""Rates from here on are whole multiples of 2^-64 in float64, so terms are sampled with exactly that probability."""
_FIRST_GUESS: Final = 4.0


class SharedNoiseSettings(Settings):
    """Each holder adds a share of the noise: the sum that is opened has what one ε needs (``privacy.joint``)."""

    colluding: int = Field(
        ge=1,
        le=1024,
        description="t: how many holders may work together and with the server, or leave their noise out, and ε of the "
        "others still holds; each adds noise of variance σ²C²/(averaging.threshold − t). Every holder hears the "
        "weights and knows its own noise, so one that is curious by itself is the first",
    )


class SampledSettings(Settings):
    """Every holder gives a noisy sum of clipped gradients of sampled training nodes, and no other number of its data.

    The noise is ``noise_multiplier``, or follows from ``epsilon_total``.
    """

    epsilon_total: float | None = Field(None, gt=0, description="ε of all rounds together, from which σ follows")
    noise_multiplier: float | None = Field(
        None, ge=1e-3, le=1e6, description="σ: standard deviation of the noise over clip; one of the two is given"
    )
    delta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="δ of that ε; a holder with 1/δ nodes or more refuses; null: the largest power of ten that is at "
        "most 1/(10·N), of N = batch/sampling_rate training nodes, and at most 1e-4",
    )
    unit: Literal["node-edges"] = Field(
        "node-edges",
        description="what ε is about: a node's features, label and all its edges, and whether it is trained on",
    )
    neighbours: Neighbours = Field("zero-out", description="the node is there or not, or replaced by any other")
    degree_bound: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="D: the most neighbours of any node, a rule that a holder's edges keep; it refuses where they do "
        "not; not with model.local.hops 0",
    )
    clip: float = Field(1.0, ge=1e-6, le=1e6, description="C: the longest gradient (ℓ2) of one training node")
    sampling_rate: float = Field(
        1.0,
        ge=LEAST_RATE,
        le=1,
        description="q: with which a training node is drawn, each by itself, in a round; 1: all are, which takes the "
        "least noise",
    )
    batch: float = Field(
        gt=0,
        description="what a sum is divided by: about q times the training nodes of a holder, by public knowledge",
    )
    canaries: int = Field(
        0,
        ge=0,
        description="nodes of each holder that trains whose values, edges and labels are made up, so that an audit can "
        "hold the run against its ledger; what is learned from them is worthless",
    )
    joint_noise: SharedNoiseSettings | None = Field(
        None,
        description="noise made together under the masks of a sum: ε then rests on other holders' noise as well; null: "
        "each holder adds all that its ε needs",
    )

    @model_serializer(mode="wrap")
    def _said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is new and not given: so a job is, wherever jobs are told apart, what it was."""
        said: dict[str, Any] = dump(self)
        unsaid = [name for name in ("joint_noise", "canaries") if not getattr(self, name)]
        return {name: value for name, value in said.items() if name not in unsaid}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.epsilon_total is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon_total={self.epsilon_total} with noise_multiplier={self.noise_multiplier}: one gives the "
                "other; give exactly one of them"
            )
        return self

    @property
    def delta_of_batch(self) -> float:
        """``delta``, or where it is null the one that fits N = ``batch``/``sampling_rate``.

        N is public: the number of a holder's nodes is not stated, for an ε of a node may be about whether it is there.
        """
        return fitting_delta(math.ceil(self.batch / self.sampling_rate)) if self.delta is None else self.delta


@dataclass(frozen=True)
class SampledPlan:
    """What a holder releases, with how much noise, and what that costs: known before anything is sent.

    Attributes:
        settings: of the job.
        hops: K, over which a term depends on the edges.
        steps: rounds, each of which releases once.
        joint: who makes the noise of a sum together; None where each holder adds all of it.
    """

    settings: SampledSettings
    hops: int
    steps: int
    joint: Joint | None = None

    @property
    def delta(self) -> float:
        """δ of every ε."""
        return self.settings.delta_of_batch

    @property
    def terms(self) -> int:
        """N: how many terms at most a node is in."""
        return reach(self.hops, self.settings.degree_bound or 1)

    @cached_property
    def multiplier(self) -> float:
        """σ, over the clip."""
        given = self.settings
        if given.noise_multiplier is not None:
            return given.noise_multiplier
        assert given.epsilon_total is not None
        return _least(given.epsilon_total, self.delta, self.steps, given.sampling_rate, self.terms, given.neighbours)

    @cached_property
    def event(self) -> SampledEvent:
        """What every round does."""
        given, joint = self.settings, self.joint
        if joint is None:
            return SampledEvent(self.multiplier, given.sampling_rate, self.terms, given.neighbours)
        return JointSampledEvent(
            self.multiplier,
            given.sampling_rate,
            self.terms,
            given.neighbours,
            holders=joint.holders,
            colluding=joint.colluding,
        )

    @property
    def added(self) -> float:
        """What a holder adds, over the clip: σ, or its share of it."""
        return self.multiplier * (1.0 if self.joint is None else self.joint.share)

    @property
    def cell(self) -> float:
        """Of the grid on which sums are, the same at all holders."""
        from veilgraph.privacy.gaussian import Gaussian  # noqa: PLC0415 - loads torch, which settings do without

        return Gaussian(self.settings.clip, self.added).cell

    @property
    def against(self) -> str:
        """Whom an ε holds against."""
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


@lru_cache(maxsize=16)
def sampled_plan(settings: SampledSettings, hops: int, steps: int, joint: Joint | None = None) -> SampledPlan:
    """The plan of a job, made once."""
    return SampledPlan(settings, hops, steps, joint)


@lru_cache(maxsize=64)
def _least(epsilon: float, delta: float, steps: int, rate: float, terms: int, neighbours: Neighbours) -> float:
    """Rounded up to six digits, so that machines whose last bits differ agree."""
    found = least_multiplier(
        lambda multiplier: SampledEvent(multiplier, rate, terms, neighbours), epsilon, delta, steps, _FIRST_GUESS
    )
    return float(f"{found * (1 + 1e-5):.6g}")
