"""A job of paradigm node-dp (LPGNN): nodes perturb their features by themselves, for one holder that knows the graph.

Its network learns from perturbed features and labels: KProp, a GCN layer, label denoising.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from veilgraph.core.settings import Settings
from veilgraph.core.types import PartyId
from veilgraph.nn.layers import Activation, Probability
from veilgraph.privacy import accountant
from veilgraph.privacy.event import AggregationEvent, Neighbours, sensitivity_in_clips
from veilgraph.privacy.plan import NodeRelease, Plan
from veilgraph.privacy.publisher import HolderLedgers, Publisher
from veilgraph.privacy.settings import DeltaSettings, LabelReleaseSettings
from veilgraph.protocol.facets import Duties, InputRules, NoiseFacts, Passes
from veilgraph.protocol.job import JobSettings, job_of, require
from veilgraph_node_dp.feature_settings import FEATURE_MECHANISMS, FeatureReleaseSettings

if TYPE_CHECKING:
    from torch import Tensor

    from veilgraph.graph.party import PartyGraph
    from veilgraph.privacy.ledger import Ledger
    from veilgraph.privacy.release_cache import ReleaseCache
    from veilgraph_node_dp.canaries import NodeCanaries
    from veilgraph_node_dp.publisher import SumPublisher

TRIED: Final = (0, 2, 4, 8)
"""K of ``hops: auto``."""


class KPropSettings(Settings):
    """Two layers: KProp (LPGNN, Algorithm 2) with a linear map and an activation as UPDATE, and a GCN layer.

    ``hops: 0`` makes the first a GCN layer as well, with the usual self-loops: the network of GCN+RAW.
    """

    hops: Literal["auto"] | Annotated[int, Field(ge=0, le=128)] = "auto"
    """K, aggregations over neighbours without the node itself; auto: the best of 0, 2, 4 and 8 on validation nodes, or
    8 with release.labels
    """
    aggregate: Literal["gcn", "mean", "sum"] = "gcn"
    """AGGREGATE without self-loops: D^-1/2·A·D^-1/2, D^-1·A or A"""
    dim: int = Field(64, ge=1, le=4096)
    """width of hidden embeddings"""
    activation: Activation = "relu"
    """of hidden embeddings"""
    dropout: Probability = 0.8
    """of hidden embeddings"""

    @property
    def tried(self) -> tuple[int, ...]:
        """The numbers of hops K, each of a network that is trained; validation nodes choose one."""
        return TRIED if self.hops == "auto" else (self.hops,)


class DenoiseSettings(Settings):
    """Training on labels that went through randomised response."""

    denoise_steps: int = Field(8, ge=0, le=128)
    """K_y, hops that aggregate labels and predictions before the loss, to cancel label noise; 0: only the loss is
    corrected
    """
    targets: Literal["soft", "hard"] = "hard"
    """of the loss: aggregated labels, or their most frequent class"""


class PrivateLabelSettings(DenoiseSettings, LabelReleaseSettings):
    """Labels are private too, and the network learns from them as they were released."""


class NodeReleaseSettings(Settings):
    """What nodes release, each a single time."""

    features: FeatureReleaseSettings | None = None
    """how features are released; needed"""
    labels: PrivateLabelSettings | None = None
    """null: the label holder has the labels"""


class SumPrivacySettings(DeltaSettings):
    """Noise on what the learner computes over its edges: sums of what it takes a node's neighbours for, hop by hop."""

    unit: Literal["edge", "node-edges"]
    """what ε protects: all that is recorded between two nodes, or a node's features and all its edges"""
    neighbours: Neighbours | None = None
    """default: replacement for edges, zero-out for node-edges"""
    degree_bound: int | None = Field(None, ge=1)
    """D: the most neighbours of a node, a rule that the learner's edges keep, or it refuses; with unit node-edges"""
    hops: int = Field(1, ge=1, le=32)
    """K: sums over neighbours, each with noise of its own"""
    sum_clip: float | None = Field(None, gt=0)
    """B: longest sum of a node's neighbours, with unit node-edges; null: √degree_bound"""
    predictions: int = Field(0, ge=0, le=10_000_000)
    """later predictions of changed edges that epsilon_total leaves room for, each of them a release"""

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        if self.unit == "edge":
            for name in ("degree_bound", "sum_clip"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"{name}={value:g} with unit='edge': one edge moves two rows of a hop, however many there are; "
                        "leave it out"
                    )
            if self.neighbours == "zero-out":
                raise ValueError(
                    "unit='edge' changes rows to others than zero; set neighbours to replacement, or leave it out"
                )
            return self
        if self.degree_bound is None:
            raise ValueError("unit='node-edges' needs degree_bound: without a bound one node can reach every row")
        if self.sum_clip is not None and self.sum_clip > self.degree_bound:
            raise ValueError(
                f"sum_clip={self.sum_clip:g} with degree_bound={self.degree_bound}: no sum of so few rows of length 1 "
                "is longer than that; lower it, or leave it out"
            )
        return self

    @property
    @override
    def relation(self) -> Neighbours:
        return self.neighbours or ("zero-out" if self.unit == "node-edges" else "replacement")

    @property
    def longest(self) -> float | None:
        """B: length to which sums are clipped; None: they are not."""
        return None if self.degree_bound is None else self.sum_clip or math.sqrt(self.degree_bound)

    @property
    def sensitivity(self) -> float:
        """ℓ2 sensitivity of all hops' sums together, with public rows of length 1: see ``release_plan``."""
        bound, longest = self.degree_bound, self.longest
        if bound is None or longest is None:
            return math.sqrt(2 * self.hops)
        square = bound + longest**2 if self.relation == "zero-out" else 2 * bound + 4 * longest**2
        return math.sqrt(self.hops * square)


class NodeDpJob(JobSettings):
    """The label holder, which knows the graph, learns; every other holder's nodes release their features once."""

    paradigm: Literal["node-dp"] = "node-dp"
    release: NodeReleaseSettings = NodeReleaseSettings()
    """what nodes perturb and release"""
    model: KPropSettings = KPropSettings()
    """the network"""
    privacy: SumPrivacySettings | None = None
    """null: no noise on the learner's edges"""

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
            ("model.hops", model.hops, usual.hops, "hops over edges are privacy.hops"),
            ("model.aggregate", model.aggregate, usual.aggregate, "neighbours are added up, and noised"),
            ("release.labels", labels, None, "they would be averaged over the learner's edges without noise"),
        )

    @property
    def duties(self) -> Duties:
        """The label holder learns, and sends nothing of its sums; all other holders' nodes release."""
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
        """The network's settings; private labels turn ``hops: auto`` into 8, as noisy labels choose badly."""
        is_open = self.release.labels is not None and self.model.hops == "auto"
        return self.model.model_copy(update={"hops": TRIED[-1]}) if is_open else self.model

    @property
    def passes(self) -> Passes:
        return Passes(targets=self.train.batch_size, learns_alone=True)

    @property
    def inputs(self) -> InputRules:
        duties = self.duties
        bound = None if self.privacy is None else self.privacy.degree_bound
        rules = {} if bound is None else dict.fromkeys(duties.summing, ("privacy.degree_bound", bound))
        return InputRules(per_node=duties.releasing, per_edge=duties.summing, degree_rules=rules)

    @property
    def noise(self) -> NoiseFacts:
        return NoiseFacts(feature_release=_as_node_release(self.release), label_release=self.release.labels)

    @property
    def uses_own_columns(self) -> bool:
        """Whether the learner also trains on its own columns; not if its ε covers them."""
        return self.privacy is None or self.privacy.unit == "edge"


@dataclass(frozen=True)
class _NodeRelease(NodeRelease):
    """What a job's ``release`` says."""

    settings: FeatureReleaseSettings
    labels: PrivateLabelSettings | None

    @override
    def canaries_in(self, graph: PartyGraph, key: bytes, public: str) -> NodeCanaries:
        from veilgraph_node_dp.canaries import NodeCanaries  # noqa: PLC0415 - loads torch

        labelled = None if self.labels is None else self.labels.holder
        return NodeCanaries.of(graph.common, key, public, self, labelled)

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        from veilgraph_node_dp.publisher import publisher_of  # noqa: PLC0415 - loads torch

        return publisher_of(self.settings, self.labels, holder)


def _as_node_release(release: NodeReleaseSettings) -> NodeRelease | None:
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
    """Return ``job`` as a ``NodeDpJob``; ``ConfigError`` if it is of another paradigm."""
    return job_of(NodeDpJob, job)


@dataclass(frozen=True)
class SumPlan(Plan):
    """Noisy sums over a learner's edges, of all hops together a release; ``release_plan`` says what these are."""

    settings: SumPrivacySettings
    mechanism: ClassVar[str] = "gaussian"

    @property
    @override
    def words(self) -> str:
        return f"one release, with noise in each of its hops ({self.settings.hops})"

    @cached_property
    def multiplier(self) -> float:
        """σ of the noise on every entry, where rows have length 1."""
        alone = accountant.analytic_multiplier(self.settings.epsilon_total, self.delta)
        return self.settings.sensitivity * alone * math.sqrt(max(1, self.releases))

    @property
    @override
    def event(self) -> AggregationEvent:
        relation = self.settings.relation
        noise = self.multiplier * sensitivity_in_clips(relation) / self.settings.sensitivity
        return AggregationEvent(noise, relation, self.settings.unit)

    @property
    @override
    def deviation(self) -> float:
        return self.multiplier

    @override
    def publisher(self, holder: HolderLedgers) -> Publisher:
        settings = self.settings
        ledger = holder.ledger(self.delta, settings.epsilon_total, follows=settings.delta is None)
        bounds = settings.unit, settings.degree_bound, settings.hops, settings.longest
        return self.paid_by(ledger, *holder.ordered(ledger, holder.graph.num_classes, *bounds))

    def paid_by(self, ledger: Ledger | None, order: Tensor | None, cache: ReleaseCache) -> SumPublisher:
        """Make the publisher of these sums; arguments as ``SumPublisher``."""
        from veilgraph.privacy.mechanism import Gaussian  # noqa: PLC0415 - loads torch
        from veilgraph_node_dp.publisher import SumPublisher  # noqa: PLC0415 - as above
        from veilgraph_node_dp.sums import NoisySums  # noqa: PLC0415 - as above

        noisy = NoisySums(self.settings.hops, Gaussian(1.0, self.multiplier), self.settings.longest)
        return SumPublisher(noisy, self.event, self.delta, ledger, order, cache)


def release_plan(job: NodeDpJob, party: PartyId, nodes: int | None = None) -> SumPlan | None:
    """What the learner is given of its own edges, noisy sums made once; None without noise on these, and at others.

    Without ``privacy`` the learner computes over its edges as they are, and its model, predictions and embeddings may
    tell of them. With it nothing is computed over an edge but, for k = 1 … K,

        Y_k = A·X_{k−1} + noise,   A of ``sums.pair_matrix``, rows of X_{k−1} of length 1,

    where X_{k−1} is what the learner takes each node for: its label where it learns from that, else the probabilities
    that a network gives it, which was trained on what nodes released, on the learner's own columns and labels, and on
    Y_1, …, Y_{k−1}. All else that the learner computes follows from these and from nothing of an edge (Sajadmanesh &
    Gatica-Perez, "ProGAP: Progressive graph neural networks with differential privacy guarantees", WSDM 2024, whose
    rows are encodings).

    *Sensitivity.* X_0 is made of no edge, and X_k of X_0's data and of earlier releases, so all rows are the same in
    both worlds. K sums, shortened to B, over pairs of weight at most 1 move together by the root of, *one edge*: 2K,
    whatever the degrees are; *one node's edges*: K·(D + B²) absent and K·(2D + 4B²) replaced. The unit ``node-edges``
    is about a node's columns at the learner as well, so these are then not used at all. Labels are the same in both
    worlds: no ε here is about them. Proofs: docs/explanation/proofs.md#noise-in-every-hop.
    """
    privacy = job.privacy
    if privacy is None or party not in job.duties.summing:
        return None
    return SumPlan(party, privacy, 1 + privacy.predictions, nodes)
