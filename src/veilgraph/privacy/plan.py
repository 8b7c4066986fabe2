"""What one holder will publish in a job, with how much noise, and what that costs: known before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal

from veilgraph.core.config import JobSettings
from veilgraph.core.privacy_settings import PrivacySettings
from veilgraph.core.types import PartyId
from veilgraph.privacy import accountant, calibrate
from veilgraph.privacy.event import Event, sensitivity_in_clips
from veilgraph.privacy.mechanism import MECHANISMS, Mechanism
from veilgraph.privacy.sensitivity import for_unit, rows_changed_by_edge, rows_changed_by_node

Channel = Literal["embeddings", "gradients", "others"]
"""What is published to the server; ``others``: by the other holders, whose h^0 has this holder's features in it."""

_ANY_NUMBER: Final = 1 << 62
"""Of nodes: a plan does not depend on how many there are."""


@dataclass(frozen=True)
class Plan:
    """One holder's releases.

    Attributes:
        party: the holder.
        settings: of the job's privacy.
        step: channel → releases of one training step.
        inference: releases of one inference, others' included.
        others: how many other holders' releases depend on this holder's data, for each of its own embeddings.
        steps: training steps of the job.
        rows: how many published rows one unit can change.
        nodes: common to all holders; None where that is not known.
    """

    party: PartyId
    settings: PrivacySettings
    step: Mapping[Channel, int]
    inference: int
    steps: int
    rows: int
    others: int = 0
    nodes: int | None = None

    @property
    def delta(self) -> float:
        """δ of every ε; where neither it nor the number of nodes is known, that of up to 1,000."""
        return self.settings.delta_of(self.nodes)

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
        privacy = self.settings
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        if self.releases == 0:
            return 0.0
        if privacy.mechanism == "laplace":
            clips = sensitivity_in_clips(privacy.relation) * self.rows
            if privacy.epsilon_step is not None:
                return clips / privacy.epsilon_step
            return clips * calibrate.laplace_scale_for_total(self._budget, self.delta, self.releases)
        clips = sensitivity_in_clips(privacy.relation) * math.sqrt(self.rows)
        if privacy.epsilon_step is None:
            one = calibrate.multiplier_for_total(self._budget, self.delta, self.releases, "zero-out")
        elif privacy.calibration == "classical":
            one = calibrate.classical_multiplier(privacy.epsilon_step, self.delta, as_in_the_paper=True)
        else:
            one = calibrate.analytic_multiplier(privacy.epsilon_step, self.delta)
        return clips * one

    @property
    def _budget(self) -> float:
        return math.inf if self.settings.epsilon_total is None else self.settings.epsilon_total

    @property
    def event(self) -> Event | None:
        """What every one of the releases does; None without noise, which is no differential privacy."""
        if self.multiplier == 0:
            return None
        event = self.mechanism("embeddings").event(self.settings.relation)
        return event if self.settings.unit == "row" else for_unit(event, self.settings.unit, self.rows)

    @property
    def epsilon_bound(self) -> float:
        """The largest total ε that training and the foreseen predictions can come to: the job's budget ends them."""
        return min(self.epsilon_total, self._budget)

    def mechanism(self, channel: Channel) -> Mechanism:
        """Clips and noises what is published on a channel."""
        clip = self.settings.clip if channel == "embeddings" else self.settings.gradient_clip
        return MECHANISMS[self.settings.mechanism](clip, self.multiplier)

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


def plan(job: JobSettings, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What a holder will publish; None in a job without differential privacy, and at the server, which has no data.

    Every training step publishes, the embeddings of each round and the gradients of each but the last; the label holder
    those of z_L as well. Where h^0 is computed together, every holder's embeddings, and gradients of rounds, depend on
    all holders' features: those of the others count as releases of this holder's data (their noise is as much, and
    drawn by themselves). What others make of z_L does not: it was released. With ``once`` every holder but the label
    holder releases for inference alone: training needs no more.

    Args:
        job: validated.
        party: a holder, or the server.
        nodes: common to all holders, where that is known: no more rows than that can change, and a δ that the job
            leaves open follows from it.
    """
    privacy, rounds = job.privacy, job.model.rounds
    if privacy is None or party not in job.data.names:
        return None
    labelled = party == job.data.label_party
    if privacy.once:
        step, inference, steps, others = dict[Channel, int](), int(not labelled), 0, 0
    else:
        step = {"embeddings": rounds, "gradients": rounds - 1 + int(labelled)}
        if others := len(job.data.names) - 1 if job.model.initial.is_joint else 0:
            step["others"] = others * (2 * rounds - 1)
        inference, steps = rounds * (1 + others), job.train.epochs
    rows = _rows(privacy, job.model.local.hops, _ANY_NUMBER if nodes is None else nodes)
    return Plan(party, privacy, MappingProxyType(step), inference, steps, rows, others, nodes)


def _rows(privacy: PrivacySettings, hops: int, nodes: int) -> int:
    if privacy.unit == "row":
        return 1
    count = rows_changed_by_edge if privacy.unit == "edge" else rows_changed_by_node
    return max(1, count(privacy.degree_bound, hops, nodes))
