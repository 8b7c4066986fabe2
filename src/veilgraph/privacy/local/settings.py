"""How nodes perturb their own features, and labels, before anybody sees them: local differential privacy (LPGNN)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from veilgraph.core.registry import Registry
from veilgraph.core.settings import PartyName, Settings, named_in

FEATURE_MECHANISMS: Final[Registry[Any]] = Registry(
    "veilgraph.feature_mechanisms",
    {
        "multi-bit": "veilgraph.privacy.local.multi_bit:MultiBit",
        "one-bit": "veilgraph.privacy.local.multi_bit:OneBit",
        "gaussian": "veilgraph.privacy.local.additive:AnalyticGaussian",
        "laplace": "veilgraph.privacy.local.additive:LocalLaplace",
    },
    kind="veilgraph.privacy.local.features:FeatureMechanism",
)
"""The mechanisms for a node's features by the name that a job uses."""


class FeatureReleaseSettings(Settings):
    """Every holder perturbs the features of each of its nodes a single time. ε is of one node's features there."""

    mechanism: Annotated[str, named_in(FEATURE_MECHANISMS)] = Field(
        "multi-bit",
        description="multi-bit: a few sampled features, a bit of each; one-bit: a bit of every feature; gaussian, "
        "laplace: noise on every feature, to compare with",
    )
    epsilon: float = Field(gt=0, allow_inf_nan=False, description="ε of one node's release, all its features together")
    low: float = Field(0.0, allow_inf_nan=False, description="α: the least value that a feature can have")
    high: float = Field(
        1.0,
        allow_inf_nan=False,
        description="β: the largest; both must be known without looking at the data, whose extremes are private",
    )
    sampled: int | None = Field(
        None,
        ge=1,
        description="m: features sampled by multi-bit; default: the number from 1 to d with the least variance",
    )
    delta: float | None = Field(None, gt=0, lt=1, description="δ of one release; for gaussian alone, which needs one")
    canaries: int = Field(
        0,
        ge=0,
        description="nodes of each holder whose values are made up, so that an audit can hold the release against its "
        "ε; what is learned from them is worthless",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}: features of one value need no release")
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


class LabelReleaseSettings(Settings):
    """The holder that has the labels releases each a single time, by randomised response."""

    holder: PartyName = Field(description="who has the labels; the job's label_holder, which learns, has none")
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False, description="ε of one node's label")]


class LabelPrivacySettings(Settings):
    """The label holder perturbs the labels that it trains and validates with, each a single time, before training."""

    epsilon: float = Field(
        gt=0, allow_inf_nan=False, description="ε of one node's label, by randomised response, for all jobs that use it"
    )
    canaries: int = Field(
        0,
        ge=0,
        description="training nodes whose labels are made up, so that an audit can hold the gradients against ε; what "
        "is learned from them is worthless",
    )

    @model_serializer(mode="wrap")
    def _said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without canaries where there are none, which is what a job was before there could be any."""
        said: dict[str, Any] = dump(self)
        return said if self.canaries else {k: v for k, v in said.items() if k != "canaries"}
