"""A job of paradigm node-dp (LPGNN): nodes perturb their features by themselves, for one holder that knows the graph.

Its network learns from perturbed features and labels: KProp, a GCN layer, label denoising.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field
from typing_extensions import override

from veilgraph.core.settings import Settings
from veilgraph.core.types import PartyId
from veilgraph.nn.layers import Activation, Probability
from veilgraph.privacy.plan import Plan, rows_moved, sensitivity_of
from veilgraph.privacy.publisher import Publisher
from veilgraph.privacy.settings import LabelReleaseSettings
from veilgraph.protocol.job import Duties, InputRules, JobSettings, NoiseFacts, Passes, degree_rules, job_of, require
from veilgraph.protocol.node_release import HolderLedgers, NodeRelease
from veilgraph_node_dp.feature_settings import FEATURE_MECHANISMS, FeatureReleaseSettings

TRIED: Final = (0, 2, 4, 8)
"""K of ``hops: auto``."""


class KPropSettings(Settings):
    """Two layers: KProp (LPGNN, Algorithm 2) with a linear map and an activation as UPDATE, and a GCN layer.

    ``hops: 0`` makes the first a GCN layer as well, with the usual self-loops: the network of GCN+RAW.
    """

    hops: Literal["auto"] | Annotated[int, Field(ge=0, le=128)] = "auto"
    """K: how often a node's neighbours, itself excluded, are aggregated; auto: 0, 2, 4 and 8 side by side, of which the
    validation nodes choose, and 8 with release.labels
    """
    aggregate: Literal["gcn", "mean", "sum"] = "gcn"
    """AGGREGATE without self-loops: D^-1/2·A·D^-1/2, D^-1·A or A; hops: 0 uses none"""
    dim: int = Field(64, ge=1, le=4096)
    """width of the hidden embedding"""
    activation: Activation = "relu"
    """of the hidden embedding"""
    dropout: Probability = 0.8
    """of the hidden embedding"""

    @property
    def tried(self) -> tuple[int, ...]:
        """K of the networks that are trained side by side."""
        return TRIED if self.hops == "auto" else (self.hops,)


class DenoiseSettings(Settings):
    """Training on labels that went through randomised response."""

    denoise_steps: int = Field(8, ge=0, le=128)
    """K_y: hops over which labels and predictions are aggregated before they are compared, so that the labels' noise
    cancels out; 0: the loss is corrected for the noise and nothing else
    """
    targets: Literal["soft", "hard"] = "hard"
    """what the loss compares with: the aggregated labels, or the class that has most of them"""


class PrivateLabelSettings(DenoiseSettings, LabelReleaseSettings):
    """Labels are private too, and the network learns from them as they were released."""


class NodeReleaseSettings(Settings):
    """What nodes release, each a single time."""

    features: FeatureReleaseSettings | None = None
    """how features are released; must be given"""
    labels: PrivateLabelSettings | None = None
    """null: the label holder has the labels itself"""


class NodeDpJob(JobSettings):
    """The label holder, which knows the graph, learns; every other holder's nodes release their features once."""

    paradigm: Literal["node-dp"] = "node-dp"
    release: NodeReleaseSettings = NodeReleaseSettings()
    """what nodes perturb and release"""
    model: KPropSettings = KPropSettings()
    """the network"""

    def _check_unused(self) -> None:
        super()._check_unused()
        labels, releasing = self.release.labels, self.duties.releasing
        if self.release.features is None:
            raise ValueError(
                "paradigm='node-dp' needs release.features, which says how nodes release theirs; give at least its "
                "epsilon"
            )
        why = "nodes keep their values to themselves; set release.features.low and high to their range"
        require("paradigm=node-dp", ("data.feature_scaling", self.data.feature_scaling, "none", why))
        if labels is not None:
            require(
                "release.labels",
                (
                    "release.labels.holder",
                    labels.holder,
                    list(releasing),
                    "it is to be one of the holders that release",
                ),
                ("train.class_weights", self.train.class_weights, "none", "the true labels' shares are private"),
            )

    def _check_privacy(self) -> None:
        privacy, model, usual = self.privacy, self.model, KPropSettings()
        if privacy is None:
            return
        labels = self.release.labels and self.release.labels.epsilon
        require(
            "privacy in a job of paradigm node-dp",
            ("privacy.schedule", privacy.schedule, "once", "sums over the learner's edges are noised a single time"),
            ("privacy.canaries", privacy.canaries, 0, "nothing is sent of its edges that an audit could read"),
            ("model.hops", model.hops, usual.hops, "hops over edges are privacy.aggregation.hops"),
            ("model.aggregate", model.aggregate, usual.aggregate, "neighbours are added up, and noised"),
            # What others' nodes release has its ε in release.features.
            ("privacy.unit", privacy.unit, ["edge", "node-edges"], "noise is on the learner's edges"),
            ("release.labels", labels, None, "they would be averaged over the learner's edges without noise"),
        )
        if privacy.aggregation is None:
            raise ValueError(
                "privacy.aggregation=null in a job of paradigm node-dp: its noise is in every hop; set "
                "privacy.aggregation to {}"
            )
        privacy.aggregation.check_opinions("a job of paradigm node-dp")

    @property
    def duties(self) -> Duties:
        """The nodes of all but the label holder release, and it learns; of what it sums up nothing is sent."""
        learner = (self.data.label_party,)
        return Duties(
            publishing=(),
            scoring=learner,
            releasing=tuple(name for name in self.data.names if name != self.data.label_party),
            learning=learner,
            summing=() if self.privacy is None else learner,
        )

    @property
    def network(self) -> KPropSettings:
        """The network; with private labels of 8 hops where open, as validation nodes with noisy labels choose badly."""
        is_open = self.release.labels is not None and self.model.hops == "auto"
        return self.model.model_copy(update={"hops": TRIED[-1]}) if is_open else self.model

    @property
    def passes(self) -> Passes:
        return Passes(targets=self.train.batch_size, learns_alone=True)

    @property
    def inputs(self) -> InputRules:
        duties = self.duties
        rules = degree_rules(self.privacy, duties.summing)
        return InputRules(per_node=duties.releasing, per_edge=duties.summing, degree_rules=rules)

    @property
    def noise(self) -> NoiseFacts:
        return NoiseFacts(feature_release=_release_of(self.release), label_release=self.release.labels)

    @property
    def uses_own_columns(self) -> bool:
        """Whether the learner learns from its own columns; not where its ε is about them as well."""
        return self.privacy is None or self.privacy.unit == "edge"


@dataclass(frozen=True)
class _NodeRelease(NodeRelease):
    """What a job's ``release`` says."""

    settings: FeatureReleaseSettings
    labels: PrivateLabelSettings | None

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        from veilgraph_node_dp.publisher import publisher_of  # noqa: PLC0415 - loads torch

        return publisher_of(self.settings, self.labels, holder)


def _release_of(release: NodeReleaseSettings) -> NodeRelease | None:
    features = release.features
    if features is None:
        return None
    return _NodeRelease(
        setting="release.features",
        is_gaussian=FEATURE_MECHANISMS[features.mechanism].is_gaussian,
        settings=features,
        labels=release.labels,
        **features.model_dump(exclude={"sampled"}),
    )


def node_dp(job: JobSettings) -> NodeDpJob:
    """A job as what it is; raises ``ConfigError`` where it is of another paradigm."""
    return job_of(NodeDpJob, job)


def release_plan(job: NodeDpJob, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What the learner is given of its own edges, noisy sums made once; None without noise on these, and at others.

    Without ``privacy`` the learner computes over its edges as they are, and its model, predictions and embeddings may
    tell of them. With it nothing is computed over an edge but, for k = 1 … K,

        Y_k = A·X_{k−1} + noise,   A of ``privacy.aggregation.pair_matrix``, rows of X_{k−1} of length 1,

    where X_{k−1} is what the learner takes each node for: its label where it learns from that, else the probabilities
    that a network gives it, which was trained on what nodes released, on the learner's own columns and labels, and on
    Y_1, …, Y_{k−1}. All else that the learner computes follows from these and from nothing of an edge (Sajadmanesh &
    Gatica-Perez, "ProGAP: Progressive graph neural networks with differential privacy guarantees", WSDM 2024, whose
    rows are encodings).

    *Sensitivity.* X_0 is made of no edge, and X_k of X_0's data and of earlier releases, so all rows are the same in
    both worlds: ``hop_sensitivity`` with public rows. *One edge*: √(2K), whatever the degrees are. *One node's edges*:
    √(K·(D + B²)) absent and √(K·(2D + 4B²)) replaced. The unit ``node-edges`` is about a node's columns at the learner
    as well, so these are then not used at all. Labels are the same in both worlds: no ε here is about them.
    """
    privacy = job.privacy
    if privacy is None or privacy.aggregation is None or party not in job.duties.summing:
        return None
    rows, moved = rows_moved(privacy), sensitivity_of(privacy, public_rows=True)
    return Plan(
        party,
        privacy,
        MappingProxyType({}),
        1,
        0,
        rows,
        nodes=nodes,
        hops=privacy.aggregation.hops,
        moved=moved,
        own_rows=False,
        single="sums",
    )
