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


_DELTA: Final = 1e-6  # where N is not stated: a holder of a million nodes refuses it


class SharedNoiseSettings(Settings):
    """Each holder adds a share of the noise: the sum that is opened has what one ε needs (``event.Joint``)."""

    colluding: int = Field(ge=1, le=1024)
    """t: holders that may collude, with the server too, or leave out noise, without weakening the others' ε; each adds
    noise of variance σ²C²/(averaging.threshold − t). A curious holder, knowing its own noise, is the first
    """


class SampledSettings(Settings):
    """Every holder gives a noisy sum of clipped gradients of sampled training nodes, and no other number of its data.

    The noise is ``noise_multiplier``, or follows from ``epsilon_total``.
    """

    epsilon_total: float | None = Field(None, gt=0)
    """ε of all rounds; determines σ"""
    noise_multiplier: float | None = Field(None, ge=1e-3, le=1e6)
    """σ, the noise's standard deviation over clip; give one of the two"""
    delta: float | None = Field(None, gt=0, lt=1)
    """δ; a holder with 1/δ nodes or more refuses. null: the largest power of ten up to 1/(10·N) and 1e-4, N =
    batch/sampling_rate; without batch 1e-6
    """
    unit: Literal["node-edges"] = "node-edges"
    """what ε protects: a node's features, label, edges and membership"""
    neighbours: Neighbours = "zero-out"
    """the node is there or not, or another one"""
    degree_bound: int | None = Field(None, ge=1, le=10_000)
    """D, most neighbours of a node; a holder with more refuses. Not with model.local.hops 0"""
    clip: float = Field(1.0, ge=1e-6, le=1e6)
    """C, longest gradient (ℓ2) of a training node"""
    sampling_rate: float = Field(1.0, ge=LEAST_RATE, le=1)
    """q, chance of each training node in a round; 1 needs the least noise"""
    batch: float | None = Field(None, gt=0)
    """divisor of sums: about q times a holder's training nodes, by public knowledge. null: none, for one round of class
    sums, which are scaled at home
    """
    canaries: int = Field(0, ge=0)
    """made-up nodes of each training holder, to audit the ledger; the model is worthless then"""
    joint_noise: SharedNoiseSettings | None = None
    """noise made jointly under a sum's masks; ε depends on other holders' noise too. null: each adds all its own"""

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
        if self.delta is not None:
            return self.delta
        return _DELTA if self.batch is None else fitting_delta(math.ceil(self.batch / self.sampling_rate))

    @property
    def divisor(self) -> float:
        """What sums are divided by: ``batch``; without one the clip, so that sums of many rows stay small numbers."""
        return self.clip if self.batch is None else self.batch
