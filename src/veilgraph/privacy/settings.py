"""What a job says of privacy: of noise on what holders publish, of private training, and of perturbed labels.

docs/privacy.md says what it means.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from veilgraph.core.settings import PartyName, Registry, Settings, named_in
from veilgraph.privacy.event import Calibration, Neighbours

if TYPE_CHECKING:
    from veilgraph.privacy.mechanism import Mechanism

MECHANISMS: Final[Registry[type[Mechanism]]] = Registry(
    "veilgraph.mechanisms",
    {
        "gaussian": "veilgraph.privacy.mechanism:Gaussian",
        "james-stein": "veilgraph.privacy.mechanism:JamesStein",
        "james-stein-plus": "veilgraph.privacy.mechanism:JamesSteinPlus",
        "laplace": "veilgraph.privacy.mechanism:Laplace",
    },
    kind="veilgraph.privacy.mechanism:Mechanism",
)
"""The mechanisms for rows by the name that a job uses."""

LEAST_RATE: Final = 0.001
"""Rates from here on are whole multiples of 2^-64 in float64, so terms are sampled with exactly that probability."""

_LEAST_DIGITS: Final = 4  # A δ that follows from N is no more than 1e-4

OWN_SHARE: Final = 0.9
"""Of μ²: one unit moves sums so much further than an own row that at an ε which protects it is own rows that tell
anything (docs/gap.md)."""

_NOISE: Final = ("noise_multiplier", "epsilon_step", "epsilon_total")


def fitting_delta(nodes: int | None = None) -> float:
    """A δ that fits N common nodes: the largest power of ten that is at most 1/(10·N), and at most 1e-4.

    ``nodes`` is N; None where it is not known: the δ of all N up to 1,000, which that of any other N is below.
    """
    digits = 0 if nodes is None else len(str(10 * nodes - 1))
    return float(f"1e-{max(_LEAST_DIGITS, digits)}")


class AggregationSettings(Settings):
    """Noise in every hop of a release, in place of noise on what came of all hops (aggregation perturbation, GAP).

    A hop is the plain sum of the neighbours' rows, each of length 1. What is released is as many noisy matrices.
    """

    hops: int = Field(1, ge=1, le=32)
    """K: sums over neighbours, each with noise of its own"""
    dim: int = Field(64, ge=1, le=4096)
    """columns of every noisy matrix, of which K + 1 are released; K with own_rows: clear"""
    sum_clip: float | None = Field(None, gt=0)
    """B: longest sum of a node's neighbours, for unit node-edges; null: √degree_bound"""
    own_rows: Literal["noised", "clear"] = "noised"
    """a node's own row: noised as the sums are; or, for unit edge, of which it says nothing, all of the holder's
    columns as they are, to the label holder alone
    """
    own_share: float | None = Field(None, ge=1e-6, le=1 - 1e-6)
    """which part of what a unit costs (of μ²) is for its own row, the rest being for sums; for units node and
    node-edges, where null is 0.9
    """

    @property
    def releases_own_rows(self) -> bool:
        """Whether own rows are one of the noisy matrices."""
        return self.own_rows == "noised"

    def check_opinions(self, where: str) -> None:
        """Refuses what sums of neighbours' classes, in place of their rows, do not have, in a kind of job (``where``).

        Raises ``ValueError`` where a row of a node would be released, or there would be other columns than classes.
        """
        default = type(self).model_fields["dim"].default
        row, width = "no row of a node is released", "sums have a column for every class"
        for name, said, refused, why in (
            ("own_rows", repr(self.own_rows), not self.releases_own_rows, row),
            ("own_share", self.own_share, self.own_share is not None, row),
            ("dim", self.dim, self.dim != default, width),
        ):
            if refused:
                raise ValueError(f"privacy.aggregation.{name}={said} in {where}: {why}; leave it out")


class JointNoiseSettings(Settings):
    """Each holder adds a share of the noise, so that the sum under masks has what one ε needs (``event.Joint``)."""

    colluding: int = Field(ge=0, le=1024)
    """t: how many of the holders that publish may work with the server, or leave their noise out, and ε of the others
    still holds; each adds noise of variance σ²C²/(P − t), of P that publish
    """


class PrivacySettings(Settings):
    """Every holder clips the rows that it publishes, adds noise, and keeps a ledger of what that costs.

    The noise is given as ``noise_multiplier`` or ``epsilon_step``, or follows from ``epsilon_total`` alone. With
    ``epsilon_total`` beside one of the others, training stops before the release that would exceed it.
    """

    schedule: Literal["every-step", "once"] = "once"
    """fixed propagation, one release, and the label holder trains on it alone; or publish in every step (VFGNN), whose
    ε is about one published row and protects neither a person nor an edge
    """
    mechanism: Annotated[str, named_in(MECHANISMS)] = "gaussian"
    """what makes the noise on rows; counts of a sealed job always have two-sided geometric noise"""
    clip: float = Field(1.0, gt=0)
    """C: largest norm of a row of embeddings (ℓ2; ℓ1 for laplace)"""
    gradient_clip: float = Field(0.01, gt=0)
    """the same for gradients; with a mean loss about 1 / training nodes; every-step only"""
    noise_multiplier: float | None = Field(None, ge=0)
    """σ: noise over C; 0: clipping alone, which protects nothing (ε = ∞)"""
    epsilon_step: float | None = Field(None, gt=0)
    """ε of one release, from which the noise is computed"""
    epsilon_total: float | None = Field(None, gt=0)
    """ε of everything that a holder publishes: its budget"""
    delta: float | None = Field(None, gt=0, lt=1)
    """δ of every ε of the job; null: the largest power of ten that is at most 1/(10·N), of N common nodes, and at most
    1e-4; 0 in a sealed job
    """
    calibration: Calibration = "analytic"
    """of epsilon_step: exact, or the textbook's formula as the paper uses it"""
    neighbours: Neighbours | None = None
    """default: zero-out for rows, as in the paper, and for node-edges; replacement for edges and nodes"""
    unit: Literal["row", "edge", "node", "node-edges"]
    """what ε protects, which every job names: one published row, which is neither a person nor an edge; one edge; one
    node's features (the latter: once only); one node's features and all its edges (with aggregation only)
    """
    degree_bound: int | None = Field(None, ge=1)
    """D: most neighbours of a node that are propagated; further edges are left out, and with unit node-edges refused"""
    aggregation: AggregationSettings | None = None
    """noise in every hop of the release, once only; null: on the result of all hops"""
    joint_noise: JointNoiseSettings | None = None
    """noise made together under masks, gaussian only: ε then rests on other holders' noise as well; null: each holder
    adds all that its ε needs
    """
    predictions: int = Field(0, ge=0, le=10_000_000)
    """later predictions that epsilon_total leaves room for, each of them a release"""
    canaries: int = Field(0, ge=0)
    """canaries of each holder that releases, so that an audit can hold the run against its ledger; what is predicted
    for their nodes is worthless
    """
    canaries_in: Literal["rows", "data"] = "rows"
    """rows: in place of released rows, which tests the door; data: units in the holder's data, before anything is
    computed, which tests all of the pipeline
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [name for name in _NOISE if getattr(self, name) is not None]
        if not given:
            raise ValueError(f"nothing says how much noise to add; give one of {', '.join(_NOISE)}")
        if {"noise_multiplier", "epsilon_step"} <= set(given):
            raise ValueError("noise_multiplier and epsilon_step both say how much noise to add; leave one out")
        if self.calibration == "classical" and (
            self.epsilon_step is None or not MECHANISMS[self.mechanism].is_gaussian
        ):
            raise ValueError(
                "calibration='classical' turns epsilon_step into Gaussian noise; give one, or leave it out"
            )
        if self.noise_multiplier == 0 and self.epsilon_total is not None:
            raise ValueError("noise_multiplier=0 has no finite ε and epsilon_total wants one; leave one of them out")
        if self.once and self.gradient_clip != type(self).model_fields["gradient_clip"].default:
            raise ValueError(
                f"gradient_clip={self.gradient_clip} is for schedule every-step: with once no gradient is published; "
                "leave it out"
            )
        if self.canaries_in == "data" and not self.canaries:
            raise ValueError("canaries_in=data says where canaries are, and canaries=0: give how many, or leave it out")
        if self.aggregation is not None:
            self._check_aggregation(self.aggregation)
        elif self.unit == "node-edges":
            raise ValueError(
                "unit='node-edges' needs aggregation: without noise in every hop no count of rows holds, for one "
                "node's edges may displace others' anywhere; give aggregation, or choose unit node or edge"
            )
        if self.joint_noise is not None:
            self._check_joint_noise()
        self._check_unit()
        return self

    def _check_joint_noise(self) -> None:
        if self.mechanism != "gaussian":
            raise ValueError(
                f"mechanism={self.mechanism!r} with joint_noise: shares of other noise, or shrunk rows, are not its "
                "sum; set mechanism to gaussian, or leave it out"
            )
        if self.aggregation is not None:
            raise ValueError(
                f"aggregation.hops={self.aggregation.hops} with joint_noise: a hop computes with the holder's own "
                "noisy rows, which have a share of the noise alone; leave one of them out"
            )
        if self.noise_multiplier == 0:
            raise ValueError("noise_multiplier=0 with joint_noise: there is no noise to share; leave one of them out")

    def _check_aggregation(self, aggregation: AggregationSettings) -> None:
        rules = (
            ("schedule", self.schedule, "once", "rows that were trained depend on all data"),
            ("mechanism", self.mechanism, "gaussian", "noise of all hops is added up as Gaussian noise is"),
            ("clip", self.clip, 1.0, "every row has length 1 before a hop"),
        )
        for name, value, needed, why in rules:
            if value != needed:
                raise ValueError(f"{name}={value!r} with aggregation: {why}; set {name} to {needed}, or leave it out")
        if self.unit == "row":
            raise ValueError(
                "unit='row' with aggregation: a row of one hop is in rows of the next; choose unit edge, node or "
                "node-edges"
            )
        if self.unit == "edge" and self.degree_bound is not None:
            raise ValueError(
                f"degree_bound={self.degree_bound} with aggregation and unit='edge': one edge moves two rows of a hop "
                "however many there are, and a bound would let it displace others; leave it out"
            )
        if aggregation.own_rows == "clear" and self.unit != "edge":
            raise ValueError(
                f"aggregation.own_rows='clear' with unit={self.unit!r}: a node's own row is made of its features, and "
                "that ε is about these; leave it out, or choose unit edge"
            )
        if aggregation.own_share is not None and self.unit == "edge":
            raise ValueError(
                f"aggregation.own_share={aggregation.own_share:g} with unit='edge': a node's own row says nothing of "
                "an edge, and is no part of what that costs; leave it out, or choose unit node or node-edges"
            )
        if aggregation.sum_clip is None:
            return
        if self.unit != "node-edges":
            raise ValueError(
                f"aggregation.sum_clip={aggregation.sum_clip:g} is for unit node-edges, and this is {self.unit!r}: "
                "leave it out"
            )
        if self.degree_bound is not None and aggregation.sum_clip > self.degree_bound:
            raise ValueError(
                f"aggregation.sum_clip={aggregation.sum_clip:g} with degree_bound={self.degree_bound}: no sum of so "
                "few rows of length 1 is longer than that; lower it, or leave it out"
            )

    def _check_unit(self) -> None:
        if self.unit == "row":
            if self.degree_bound is not None:
                raise ValueError("degree_bound is for unit edge or node: rows need none; leave it out")
            return
        if self.canaries and self.canaries_in == "rows":
            raise ValueError(
                f"canaries={self.canaries} with unit={self.unit!r}: a canary is a row in place of another, and tells "
                f"nothing of one {self.unit}; set canaries_in to data"
            )
        if self.schedule != "once":
            raise ValueError(
                f"unit={self.unit!r} with schedule every-step: weights trained on the data carry one {self.unit} to "
                "every row, so nothing less than all rows would be counted; choose schedule once, or unit row"
            )
        if self.neighbours == "zero-out" and self.unit != "node-edges":
            raise ValueError(
                f"unit={self.unit!r} changes rows to others than zero; set neighbours to replacement, or leave it out"
            )
        if self.degree_bound is None and not (self.unit == "edge" and self.aggregation is not None):
            what = "node" if self.unit == "node-edges" else self.unit
            raise ValueError(f"unit={self.unit!r} needs degree_bound: without a bound one {what} can reach every row")

    @property
    def relation(self) -> Neighbours:
        """``neighbours`` with its default filled in."""
        return self.neighbours or ("zero-out" if self.unit in ("row", "node-edges") else "replacement")

    @property
    def sum_clip(self) -> float | None:
        """B, the longest that a sum of neighbours' rows may be; None where any may."""
        if self.aggregation is None or self.unit != "node-edges" or self.degree_bound is None:
            return None
        return self.aggregation.sum_clip or math.sqrt(self.degree_bound)

    @property
    def own_share(self) -> float | None:
        """What part of μ² a node's own row has; None where an own row costs nothing, or is in no release."""
        if self.aggregation is None or self.unit not in ("node", "node-edges"):
            return None
        return OWN_SHARE if self.aggregation.own_share is None else self.aggregation.own_share

    def delta_of(self, nodes: int | None) -> float:
        """``delta``, or where it is null the one that fits so many common nodes."""
        return fitting_delta(nodes) if self.delta is None else self.delta

    @property
    def order(self) -> int:
        """Of the norm that rows are clipped in: ℓ1 or ℓ2."""
        return MECHANISMS[self.mechanism].order

    @property
    def once(self) -> bool:
        """Whether a holder releases a single time."""
        return self.schedule == "once"


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


class LabelReleaseSettings(Settings):
    """The holder that has the labels releases each a single time, by randomised response."""

    holder: PartyName
    """who has the labels; the job's label_holder, which learns, has none"""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """ε of one node's label"""


class LabelPrivacySettings(Settings):
    """The label holder perturbs the labels that it trains and validates with, each a single time, before training."""

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    """ε of one node's label, by randomised response, for all jobs that use it"""
    canaries: int = Field(0, ge=0)
    """training nodes whose labels are made up, so that an audit can hold the gradients against ε; what is learned from
    them is worthless
    """
