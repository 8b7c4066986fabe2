"""How nodes release their features: what a job says of it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from veilgraph.core.settings import Registry, Settings, named_in

FEATURE_MECHANISMS: Final[Registry[Any]] = Registry(
    "veilgraph.feature_mechanisms",
    {
        "multi-bit": "veilgraph_node_dp.mechanisms:MultiBit",
        "one-bit": "veilgraph_node_dp.mechanisms:OneBit",
        "gaussian": "veilgraph_node_dp.mechanisms:AnalyticGaussian",
        "laplace": "veilgraph_node_dp.mechanisms:LocalLaplace",
    },
    kind="veilgraph_node_dp.mechanisms:FeatureMechanism",
)
"""The mechanisms for a node's features by the name that a job uses."""


class FeatureReleaseSettings(Settings):
    """Every holder perturbs the features of each of its nodes a single time. ε is of one node's features there."""

    mechanism: Annotated[str, named_in(FEATURE_MECHANISMS)] = "multi-bit"
    """multi-bit: a bit each of a few sampled features; one-bit: of every feature; gaussian, laplace: noise on all, for
    comparison
    """
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """ε of a node's release, all features together"""
    low: float = Field(0.0, allow_inf_nan=False)
    """α, the least possible value of a feature"""
    high: float = Field(1.0, allow_inf_nan=False)
    """β, the largest; both public, since the data's extremes are private"""
    sampled: int | None = Field(None, ge=1)
    """m, features that multi-bit samples; null: least variance"""
    delta: float | None = Field(None, gt=0, lt=1)
    """δ of a release, for gaussian only"""
    canaries: int = Field(0, ge=0)
    """made-up nodes of each holder, to audit ε; what is learned is worthless then"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}, as one value needs no release; mend one")
        mechanism = FEATURE_MECHANISMS[self.mechanism]
        if self.sampled is not None and not mechanism.has_sampled:
            names = ", ".join(name for name, each in FEATURE_MECHANISMS.items() if each.has_sampled)
            raise ValueError(f"sampled={self.sampled} is for mechanism {names}; leave it out")
        if (self.delta is None) == mechanism.has_delta:
            needs = f"{self.mechanism} {'needs a δ' if mechanism.has_delta else 'has none'}"
            raise ValueError(
                f"delta={self.delta} with mechanism={self.mechanism!r}: {needs}; give one, or leave it out"
            )
        return self
