"""A job of paradigm node-dp (LPGNN): nodes perturb their features by themselves, for one holder that knows the graph.

Its network learns from perturbed features and labels: KProp, a GCN layer, label denoising.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from veilgraph.core.settings import Settings
from veilgraph.core.types import PartyId
from veilgraph.nn.activation import Activation
from veilgraph.nn.dropout import Probability
from veilgraph.privacy.local.settings import FeatureReleaseSettings, LabelReleaseSettings
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.protocol.job import JobSettings, job_of


class KPropSettings(Settings):
    """Two layers: KProp (LPGNN, Algorithm 2) with a linear map and an activation as UPDATE, and a GCN layer.

    ``hops: 0`` makes the first a GCN layer as well, with the usual self-loops: the network of GCN+RAW.
    """

    hops: int = Field(8, ge=0, le=128, description="K: how often a node's neighbours, itself excluded, are aggregated")
    aggregate: Literal["gcn", "mean", "sum"] = Field(
        "gcn", description="AGGREGATE without self-loops: D^-1/2·A·D^-1/2, D^-1·A or A; hops: 0 uses none"
    )
    dim: int = Field(64, ge=1, le=4096, description="width of the hidden embedding")
    activation: Activation = Field("relu", description="of the hidden embedding")
    dropout: Probability = Field(0.8, description="of the hidden embedding")


class DenoiseSettings(Settings):
    """Training on labels that went through randomised response."""

    denoise_steps: int = Field(
        8,
        ge=0,
        le=128,
        description="K_y: hops over which labels and predictions are aggregated before they are compared, so that the "
        "labels' noise cancels out; 0: the loss is corrected for the noise and nothing else",
    )
    targets: Literal["soft", "hard"] = Field(
        "hard", description="what the loss compares with: the aggregated labels, or the class that has most of them"
    )


class PrivateLabelSettings(DenoiseSettings, LabelReleaseSettings):
    """Labels are private too, and the network learns from them as they were released."""


class NodeReleaseSettings(Settings):
    """What nodes release, each a single time."""

    features: FeatureReleaseSettings | None = Field(None, description="how features are released; must be given")
    labels: PrivateLabelSettings | None = Field(None, description="null: the label holder has the labels itself")


class NodeDpJob(JobSettings):
    """The label holder, which knows the graph, learns; every other holder's nodes release their features once."""

    paradigm: Literal["node-dp"] = "node-dp"
    release: NodeReleaseSettings = Field(NodeReleaseSettings(), description="what nodes perturb and release")
    model: KPropSettings = Field(KPropSettings(), description="the network")

    def _check_unused(self) -> None:
        super()._check_unused()
        self._check_local()

    def _check_privacy(self) -> None:
        if self.privacy is not None:
            _check_private(self, self.privacy)

    def _check_local(self) -> None:
        labels = self.release.labels
        if self.release.features is None:
            raise ValueError(
                "paradigm='node-dp' needs release.features, which says how nodes release theirs; give at least its "
                "epsilon"
            )
        if self.data.feature_scaling != "none":
            raise ValueError(
                f"data.feature_scaling={self.data.feature_scaling!r} computes with values that nodes keep to "
                "themselves; set it to none, and release.features.low and high to the range of the values as they are"
            )
        if labels is None:
            return
        if labels.holder not in self.releasing:
            raise ValueError(
                f"release.labels.holder={labels.holder!r} is not one of the holders that release, "
                f"{', '.join(self.releasing)}; name one of them"
            )
        if self.train.class_weights != "none":
            raise ValueError(
                "train.class_weights=balanced needs the true labels' shares, and with release.labels they are private; "
                "set it to none"
            )

    @property
    def learns_alone(self) -> bool:
        return True

    @property
    def releasing(self) -> tuple[PartyId, ...]:
        """All but the one that learns."""
        return tuple(name for name in self.data.names if name != self.data.label_party)

    @property
    def learning(self) -> tuple[PartyId, ...]:
        """The label holder alone."""
        return (self.data.label_party,)

    @property
    def publishing(self) -> tuple[PartyId, ...]:
        """Nobody: of what the learner sums up nothing is sent."""
        return ()

    @property
    def summing(self) -> tuple[PartyId, ...]:
        return () if self.privacy is None else self.learning

    @property
    def per_edge(self) -> tuple[PartyId, ...]:
        return self.summing

    @property
    def uses_own_columns(self) -> bool:
        """Whether the learner learns from its own columns; not where its ε is about them as well."""
        return self.privacy is None or self.privacy.unit == "edge"

    @property
    def feature_release(self) -> FeatureReleaseSettings | None:
        return self.release.features

    @property
    def release_setting(self) -> str:
        return "release.features"

    @property
    def label_release(self) -> PrivateLabelSettings | None:
        return self.release.labels


def node_dp(job: JobSettings) -> NodeDpJob:
    """A job as what it is; raises ``ConfigError`` where it is of another paradigm."""
    return job_of(NodeDpJob, job)


def _check_private(job: NodeDpJob, privacy: PrivacySettings) -> None:
    """Refuses what such a job has no noise for, or would not use.

    Raises:
        ValueError: it names the setting, its value, the rule and the way out.
    """
    model = type(job.model).model_fields
    rules = (
        ("privacy.schedule", privacy.schedule, "once", "sums over the learner's edges are noised a single time"),
        ("privacy.canaries", privacy.canaries, 0, "nothing is sent of the learner's edges that an audit could read"),
        ("model.hops", job.model.hops, model["hops"].default, "hops over edges are privacy.aggregation.hops"),
        ("model.aggregate", job.model.aggregate, model["aggregate"].default, "neighbours are added up, and noised"),
    )
    for name, value, needed, why in rules:
        if value != needed:
            raise ValueError(f"{name}={value!r} with privacy in a job of paradigm node-dp: {why}; leave it out")
    if privacy.unit not in ("edge", "node-edges"):
        raise ValueError(
            f"privacy.unit={privacy.unit!r} in a job of paradigm node-dp, where noise is on the learner's edges: "
            "choose edge or node-edges (what others' nodes release has its ε in release.features)"
        )
    if job.release.labels is not None:
        raise ValueError(
            "release.labels with privacy in a job of paradigm node-dp: labels that were perturbed are averaged over "
            "the learner's edges, which would have no noise; leave one of both out"
        )
    if privacy.aggregation is None:
        raise ValueError(
            "privacy.aggregation=null in a job of paradigm node-dp: its noise is in every hop; set privacy.aggregation "
            "to {}"
        )
    privacy.aggregation.check_opinions("a job of paradigm node-dp")
