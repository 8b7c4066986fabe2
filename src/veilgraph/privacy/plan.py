"""What one holder releases, with how much noise, and what that costs: known before anything is sent.

The noise follows from the sensitivity, how far what is published moves between neighbouring data.

**Noise on what came of all hops** (``rows_changed_by_edge``, ``rows_changed_by_node``).

One unit changes so many of the clipped rows of a published matrix: with T(r) = 1 + (D−1) + … + (D−1)^r over K hops,

- one node's features at most 1 + D·T(K − 1) rows (1 if K = 0);
- one edge at most 4·T(K − 1) rows (none if K = 0), and 4·T(K) where weights depend on the source's degree;
- one node's features and all its edges: there is no such count.

Rows change to something that is not zero, so edges and nodes always cost the 2C of replacement. The counts assume that
the function from data to rows is the same in both worlds; weights that a holder trained on its own graph in the clear
carry one node's influence to all N rows.

**Noise in every hop** (``aggregation_sensitivity``). λX_0 and K sums, shortened to B, of rows of length 1 over pairs of
weight at most 1 move together by the root of

- one edge: 2K, whatever the degrees are;
- one node's features: 4λ² + 4D;
- one node with all its edges, absent: λ² + K·(D + B²); replaced: 4λ² + 4·(D + B²) + (K − 1)·(2D + 4B²);
- one node's edges where rows are public: K·(D + B²) absent and K·(2D + 4B²) replaced.

λ, how long own rows are before their noise, follows from the share of the whole that is to be theirs.

Proofs: docs/proofs.md#rows-that-one-unit-changes and docs/proofs.md#noise-in-every-hop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.privacy import accountant
from veilgraph.privacy.event import (
    AggregationEvent,
    Event,
    GeometricEvent,
    Joint,
    JointGaussianEvent,
    JointSampledEvent,
    Neighbours,
    SampledEvent,
    Unit,
    check_whole,
    reach,
    sensitivity_in_clips,
)
from veilgraph.privacy.settings import MECHANISMS, PrivacySettings, SampledSettings


def rows_changed_by_edge(degree_bound: int | None, hops: int, num_nodes: int, *, source_degrees: bool = False) -> int:
    """How many of N published rows one edge more or less can change; count 2 of the head.

    D, ``degree_bound``, bounds the propagated edges; K ``hops`` are from what is clear to the holder alone to what is
    published; ``source_degrees``: an edge's weight depends on the degree of its source too, as gcn's. Raises
    ``ConfigError`` where an argument is out of range, or a needed degree bound is missing.
    """
    check_whole("num_nodes", num_nodes, 0)
    if check_whole("hops", hops, 0) == 0:
        return 0
    further = check_whole("degree_bound", degree_bound, 1) - 1
    return min(num_nodes, 4 * sum(int(further**hop) for hop in range(hops + source_degrees)))


def rows_changed_by_node(degree_bound: int | None, hops: int, num_nodes: int) -> int:
    """How many published rows one node's features can change; count 1 of the head. As ``rows_changed_by_edge``."""
    check_whole("num_nodes", num_nodes, 0)
    bound = check_whole("degree_bound", degree_bound, 1) if check_whole("hops", hops, 0) else 1
    return min(num_nodes, reach(hops, bound))


def aggregation_sensitivity(
    unit: Unit,
    neighbours: Neighbours,
    hops: int,
    *,
    degree_bound: int | None = None,
    sum_clip: float | None = None,
    public_rows: bool = False,
    own_share: float | None = None,
) -> float:
    """How far all noisy matrices move together, √Σ Δ_k² where rows have length 1: the root of the sums of the head.

    K ≥ 1 hops, D ``degree_bound``, B ``sum_clip``; ``public_rows``: X_0 is made of nothing that ε is about;
    ``own_share``: what part of the square is the own row's; None: λ is 1. Raises ``ConfigError`` where nothing is
    proven of such a unit and relation, or a bound is missing or out of range.
    """
    check_whole("hops", hops, 1)
    is_replaced = neighbours == "replacement"
    # Δ_0² where λ is 1, and Σ Δ_k² of the hops.
    own, sums = 0.0, 2.0 * hops
    if unit == "node" and is_replaced and not public_rows:
        own, sums = 4.0, 4.0 * check_whole("degree_bound", degree_bound, 1)
    elif unit == "node-edges":
        bound = check_whole("degree_bound", degree_bound, 1)
        if sum_clip is None or not 0 < sum_clip <= bound:
            raise ConfigError(f"sum_clip={sum_clip!r} must be above 0 and at most the degree bound, {bound}")
        first, later = bound + sum_clip**2, 2 * bound + 4 * sum_clip**2
        own = 0.0 if public_rows else 4.0 if is_replaced else 1.0
        sums = hops * (later if is_replaced else first)
        if is_replaced and not public_rows:
            sums = 4 * first + (hops - 1) * later
    elif not (unit == "edge" and is_replaced):
        raise ConfigError(
            f"unit={unit!r} with neighbours={neighbours!r}: nothing is proven of noise in every hop for these; take "
            "edge or node with replacement, or node-edges"
        )
    if own_share is None or own == 0:
        return math.sqrt(own + sums)
    return math.sqrt(sums / (1 - own_share))


def sensitivity_of(privacy: PrivacySettings, *, public_rows: bool = False) -> float | None:
    """That of a job; None where its noise is not in every hop."""
    if privacy.aggregation is None:
        return None
    return aggregation_sensitivity(
        privacy.unit,
        privacy.relation,
        privacy.aggregation.hops,
        degree_bound=privacy.degree_bound,
        sum_clip=privacy.sum_clip,
        public_rows=public_rows,
        own_share=privacy.own_share,
    )


def rows_moved(privacy: PrivacySettings) -> int:
    """The most rows of one noisy matrix that one unit moves, absent or, where it is replaced, replaced."""
    if privacy.unit == "edge":
        return 2
    bound = check_whole("degree_bound", privacy.degree_bound, 1)
    if privacy.unit == "node":
        return bound
    return 1 + (bound if privacy.relation == "zero-out" else 2 * bound)


if TYPE_CHECKING:
    from veilgraph.privacy.mechanism import Mechanism

Channel = Literal["embeddings", "gradients", "others", "predictions", "sums"]
"""What is published to the server; ``others``: by the other holders, whose h^0 has this holder's features in it;
``predictions``: to the label holder, by all holders of a sealed job together; ``sums``: over a learner's own edges, by
itself to itself, for all that it tells of its model.
"""


@dataclass(frozen=True)
class Plan:
    """One holder's releases.

    Attributes:
        settings: of the job's privacy.
        step: channel → releases of one training step.
        inference: releases of one inference, others' included.
        others: how many other holders' releases depend on this holder's data, for each of its own embeddings.
        steps: training steps of the job.
        rows: how many published rows one unit can change; with noise in every hop, of one noisy matrix.
        nodes: common to all holders; None where that is not known.
        hops: over how many hops of the holder's edges a released row depends on features; None: any number.
        own_rows: with noise in every hop, whether nodes' own rows may be released beside their neighbours' sums.
        moved: with noise in every hop, how far all matrices of a release move together, in clips; else None.
        joint: who makes the noise of sums together; None where the holder adds all of it.
        alone: of the gradients of a training step, how many are in no sum, so that their noise is the holder's own.
        spare: how many releases more another foresees in the same sums: jointly made noise is what the most need.
        is_summed: whether what is published in sums is whole numbers of one grid, and is added up as it was released.
        single: what ledgers call a release with noise in every hop.
    """

    party: PartyId
    settings: PrivacySettings
    step: Mapping[Channel, int]
    inference: int
    steps: int
    rows: int
    others: int = 0
    nodes: int | None = None
    hops: int | None = None
    moved: float | None = None
    own_rows: bool = True
    joint: Joint | None = None
    alone: int = 0
    spare: int = 0
    is_summed: bool = False
    single: Channel = "embeddings"

    @property
    def delta(self) -> float:
        """δ of every ε; where neither it nor the number of nodes is known, that of up to 1,000. 0 where ε is pure."""
        return self.settings.delta_of(self.nodes)

    @property
    def mechanism_name(self) -> str:
        """What makes the noise, as tables call it."""
        return self.settings.mechanism

    @property
    def inferences(self) -> int:
        """After training: the run's own, and later predictions that the job leaves room for."""
        return 1 + self.settings.predictions

    @property
    def per_step(self) -> int:
        """Releases of one training step over all channels."""
        return sum(self.step.values())

    @property
    def releases(self) -> int:
        """All that the job foresees."""
        return self.steps * self.per_step + self.inferences * self.inference

    @property
    def canaries(self) -> int:
        """How many rows canaries take the place of; none where nothing is released."""
        return self.settings.canaries if self.releases else 0

    @cached_property
    def multiplier(self) -> float:
        """Noise over the clip: standard deviation over C, Laplace's scale over C; 0 for none."""
        return self._multiplier_of(self.releases if self.joint is None else self.releases + self.spare)

    def _multiplier_of(self, releases: int) -> float:
        privacy = self.settings
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if self.releases == 0:
            return 0.0
        mechanism = MECHANISMS[privacy.mechanism]
        if privacy.epsilon_step is not None:
            return mechanism.for_one(privacy.epsilon_step, self.delta, self.clips, privacy.calibration)
        assert privacy.epsilon_total is not None
        return mechanism.for_total(privacy.epsilon_total, self.delta, releases, self.clips)

    def multiplier_for(self, total: float, releases: int, *, once: bool) -> float:
        """With which so many releases have a total ε; unless all are of one job (``once``), pure ε add up."""
        mechanism = MECHANISMS[self.settings.mechanism]
        if mechanism.is_gaussian or once:
            return mechanism.for_total(total, self.delta, releases, self.clips)
        return mechanism.for_one(total / releases, self.delta, self.clips, self.settings.calibration)

    @cached_property
    def _largest_multiplier(self) -> float:
        return self._multiplier_of(self.releases + self.spare)

    @property
    def clips(self) -> float:
        """Sensitivity of a release over the clip."""
        if self.moved is not None:
            return self.moved
        return sensitivity_in_clips(self.settings.relation) * MECHANISMS[self.settings.mechanism].rows_moved(self.rows)

    @property
    def matrices(self) -> int:
        """How many with noise a release is made of."""
        return len(self.longest)

    @property
    def longest(self) -> tuple[float, ...]:
        """Of a row before its noise, for each matrix that a release of embeddings is made of; infinite for any."""
        hops = self.settings.aggregation
        if hops is None:
            return (self.settings.clip,)
        own = (self.own_length,) if self.own_length else ()
        return (*own, *[self.settings.sum_clip or math.inf] * hops.hops)

    @property
    def own_length(self) -> float:
        """λ: with noise in every hop, how long own rows are before their noise; 0 where they are not released."""
        privacy, hops = self.settings, self.settings.aggregation
        if hops is None or not (self.own_rows and hops.releases_own_rows):
            return 0.0
        moved, share = sensitivity_of(privacy), privacy.own_share
        if moved is None or share is None:
            return 1.0
        return moved * math.sqrt(share) / sensitivity_in_clips(privacy.relation)

    @property
    def event(self) -> Event | None:
        """What every one of the releases does; None without noise, which is no differential privacy."""
        return self._event_by(self.joint)

    @property
    def alone_event(self) -> Event | None:
        """What a release does that is in no sum: the noise is this holder's, and it holds whoever colludes."""
        return self._event_by(None)

    def _event_by(self, joint: Joint | None) -> Event | None:
        if self.multiplier == 0:
            return None
        unit, relation = self.settings.unit, self.settings.relation
        if self.moved is not None:
            return AggregationEvent(self.multiplier * sensitivity_in_clips(relation) / self.moved, relation, unit)
        event: Event
        if joint is None:
            event = MECHANISMS[self.settings.mechanism](self.settings.clip, self.multiplier).event(relation)
        else:
            event = JointGaussianEvent(self.multiplier, relation, "row", joint.holders, joint.colluding)
        return event.of_unit(unit, self.rows) if unit in ("edge", "node") else event

    def deviation(self, channel: Channel, *, alone: bool = False) -> float:
        """Standard deviation of the noise on one entry; ``alone`` as in ``mechanism``."""
        return math.sqrt(self.mechanism(channel, alone=alone).variance) if self.multiplier else 0.0

    @property
    def epsilon_bound(self) -> float:
        """The largest total ε that training and the foreseen predictions can come to: the job's budget ends them."""
        return min(self.epsilon_total, self.settings.epsilon_total or math.inf)

    def clip(self, channel: Channel) -> float:
        """C, the longest that a row published on a channel may be."""
        return self.settings.clip if channel == "embeddings" else self.settings.gradient_clip

    def mechanism(self, channel: Channel, *, alone: bool = False) -> Mechanism:
        """Clips what is published on a channel, and adds noise: its share, or all where it is ``alone``."""
        return self._mechanism(channel, self.multiplier, alone=alone)

    def sum_cell(self, channel: Channel) -> float:
        """Of the grid of sums: of all whose rows are in them the coarsest, the same at every holder."""
        return self._mechanism(channel, self._largest_multiplier).cell

    def _mechanism(self, channel: Channel, multiplier: float, *, alone: bool = False) -> Mechanism:
        share = 1.0 if self.joint is None or alone else self.joint.share
        return MECHANISMS[self.settings.mechanism](self.clip(channel), multiplier * share)

    @property
    def epsilon_release(self) -> float:
        """ε of one release by itself, at the job's δ."""
        return self._total(min(1, self.releases))

    @property
    def epsilon_total(self) -> float:
        """ε of all that the job foresees, at the job's δ; more than its budget where that ends the training earlier."""
        return self._total(self.releases)

    def affordable_steps(self, releases: int) -> int:
        """Training steps that so many releases allow, beside the run's inference and the later predictions."""
        return max(0, releases - self.inferences * self.inference) // max(1, self.per_step)

    def _total(self, releases: int) -> float:
        if releases == 0:
            return 0.0
        return math.inf if self.event is None else accountant.total({self.event: releases}, self.delta)


@dataclass(frozen=True)
class CountPlan(Plan):
    """Releases of counts, of which a unit moves one by 1 at most, with two-sided geometric noise: ε is pure.

    ``multiplier`` is 1/ε of a release, as it is of Laplace noise.
    """

    @property
    @override
    def delta(self) -> float:
        return 0.0

    @property
    @override
    def mechanism_name(self) -> str:
        return "geometric"

    @property
    @override
    def clips(self) -> float:
        return 1.0

    @property
    @override
    def longest(self) -> tuple[float, ...]:
        return (math.inf,)

    @override
    def _multiplier_of(self, releases: int) -> float:
        privacy = self.settings
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if privacy.epsilon_step is not None:
            return 1 / privacy.epsilon_step
        assert privacy.epsilon_total is not None
        return releases / privacy.epsilon_total

    @override
    def multiplier_for(self, total: float, releases: int, *, once: bool) -> float:
        return releases / total

    @property
    @override
    def event(self) -> GeometricEvent | None:
        return None if self.multiplier == 0 else GeometricEvent(self.epsilon, self.settings.relation, "edge")

    @property
    def epsilon(self) -> float:
        """ε of one release, which the noise is drawn for; infinite: there is none."""
        if self.settings.noise_multiplier is None:  # and not 1/(1/ε), which may be another number
            return self.settings.epsilon_step or (self.settings.epsilon_total or 0.0) / max(1, self.releases)
        return 1 / self.multiplier if self.multiplier else math.inf

    @override
    def deviation(self, channel: Channel, *, alone: bool = False) -> float:
        from veilgraph.privacy.geometric import variance  # noqa: PLC0415 - loads torch, which settings do without

        return math.sqrt(variance(self.epsilon))

    @override
    def _total(self, releases: int) -> float:
        return releases * self.epsilon if releases else 0.0


@dataclass(frozen=True)
class SampledPlan:
    """What a holder of private training releases in each of ``steps`` rounds; a term depends on edges over K ``hops``.

    ``joint`` says who makes the noise of a sum together; None: each holder adds all of it.
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
        step = self.multiplier, given.sampling_rate, self.terms, given.neighbours
        if joint is None:
            return SampledEvent(*step)
        return JointSampledEvent(*step, holders=joint.holders, colluding=joint.colluding)

    @property
    def added(self) -> float:
        """What a holder adds, over the clip: σ, or its share of it."""
        return self.multiplier * (1.0 if self.joint is None else self.joint.share)

    @property
    def cell(self) -> float:
        """Of the grid on which sums are, the same at all holders."""
        from veilgraph.privacy.mechanism import Gaussian  # noqa: PLC0415 - loads torch, which settings do without

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


sampled_plan = lru_cache(maxsize=16)(SampledPlan)  # the plan of a job, made once


@lru_cache(maxsize=64)
def _least(epsilon: float, delta: float, steps: int, rate: float, terms: int, neighbours: Neighbours) -> float:
    """Rounded up to six digits, so that machines whose last bits differ agree."""
    found = accountant.least_multiplier(
        lambda multiplier: SampledEvent(multiplier, rate, terms, neighbours), epsilon, delta, steps, 4.0
    )
    return float(f"{found * (1 + 1e-5):.6g}")
