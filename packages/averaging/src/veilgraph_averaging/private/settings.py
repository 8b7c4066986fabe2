"""``averaging.privacy``: what a job says of private training."""

from __future__ import annotations

import math
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from veilgraph.core.settings import Settings
from veilgraph.privacy.event import Neighbours
from veilgraph.privacy.settings import fitting_delta

LEAST_RATE: Final = 0.001
"""Rates from here on are whole multiples of 2^-64 in float64, so terms are sampled with exactly that probability."""


class SharedNoiseSettings(Settings):
    """Each holder adds a share of the noise: the sum that is opened has what one ε needs (``event.Joint``)."""

    colluding: int = Field(ge=1, le=1024)
    """t: how many holders may work together and with the server, or leave their noise out, and ε of the others still
    holds; each adds noise of variance σ²C²/(averaging.threshold − t). Every holder hears the weights and knows its own
    noise, so one that is curious by itself is the first
    """


class SampledSettings(Settings):
    """Every holder gives a noisy sum of clipped gradients of sampled training nodes, and no other number of its data.

    The noise is ``noise_multiplier``, or follows from ``epsilon_total``.
    """

    epsilon_total: float | None = Field(None, gt=0)
    """ε of all rounds together, from which σ follows"""
    noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)
    """σ: standard deviation of the noise over clip; one of the two is given"""
    delta: float | None = Field(None, gt=0, lt=1)
    """δ of that ε; a holder with 1/δ nodes or more refuses; null: the largest power of ten that is at most 1/(10·N), of
    N = batch/sampling_rate training nodes, and at most 1e-4
    """
    unit: Literal["node-edges"] = "node-edges"
    """what ε is about: a node's features, label and all its edges, and whether it is trained on"""
    neighbours: Neighbours = "zero-out"
    """the node is there or not, or replaced by any other"""
    degree_bound: int | None = Field(None, ge=1, le=10_000)
    """D: the most neighbours of any node, a rule that a holder's edges keep; it refuses where they do not; not with
    model.local.hops 0
    """
    clip: float = Field(1.0, ge=1e-6, le=1e6)
    """C: the longest gradient (ℓ2) of one training node"""
    sampling_rate: float = Field(1.0, ge=LEAST_RATE, le=1)
    """q: with which a training node is drawn, each by itself, in a round; 1: all are, which takes the least noise"""
    batch: float = Field(gt=0)
    """what a sum is divided by: about q times the training nodes of a holder, by public knowledge"""
    canaries: int = Field(0, ge=0)
    """nodes of each holder that trains whose values, edges and labels are made up, so that an audit can hold the run
    against its ledger; what is learned from them is worthless
    """
    joint_noise: SharedNoiseSettings | None = None
    """noise made together under the masks of a sum: ε then rests on other holders' noise as well; null: each holder
    adds all that its ε needs
    """

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
