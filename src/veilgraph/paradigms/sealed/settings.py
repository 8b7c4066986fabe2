"""A sealed job: holders of the same nodes train one network of which nothing is opened but predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from veilgraph.core.settings import Settings, read_by
from veilgraph.core.text import listed
from veilgraph.core.types import NOBODY, SERVER, PartyId
from veilgraph.graph.settings import OF_WORDS
from veilgraph.mpc.pair import COMPILER, WITHOUT_COMPILER
from veilgraph.privacy.event import Neighbours
from veilgraph.privacy.settings import DeltaSettings, PrivacySettings
from veilgraph.protocol.facets import Duties, InputRules, NoiseFacts, Outcome, Passes
from veilgraph.protocol.job import JobSettings, TrainSettings, job_of
from veilgraph.protocol.preset import Choice, JobContent

_OF_NO_OTHERS_EDGES: Final = ("own", "boosting")
"""Blocks that are made of columns alone, and of the label holder's own edges."""
USUAL_DEGREE: Final = 1 << 14  # with four times as many edges at a node, opened numbers may be half as large
LARGEST_DEGREE: Final = 1 << 18
LARGEST_WEIGHTED: Final = 1 << 16  # times numbers opened there, 2^12, it is 2^28, which with 34 bits fits the ring
_OWN_ROW: Final = "ε is of one record, which no other row may scale"
_FEWEST_TO_TRUST: Final = 3
_PAIR: Final = 2  # of holders to whom nobody deals
"""Holders of a job of which one deals: the bits that two others send each other are masked against each of them."""
_MOST_DELTA_OF_BITS: Final = 1e-5  # a tenth of the usual limits.max_delta, as the ledger for life counts
_LEAST_OF_BITS: Final = 0.5
_MOST_HALVINGS: Final = 8  # A learning rate is a whole number divided by at most 2^8


class SealedModelSettings(Settings):
    """Rows that are made once, of holders' columns and hops over their hidden edges, and a network on them.

    Hops are normalised by degrees that nobody learns.
    """

    network: Literal["linear", "mlp"] | None = None
    """mlp: a hidden layer beside the linear one; null: tries both where steps are judged"""
    hidden: int = Field(16, ge=1, le=4096)
    """width of the hidden layer"""
    blocks: (
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^(own|neighbours|quantiles|unit|boosting|(pooled|each|unit|unit\.each)\.([1-9]|[1-5][0-9]|6[0-4]))$"
                ),
            ],
            ...,
        ]
        | None
    ) = Field(None, min_length=1, max_length=16)
    """what rows contain. own: holders' columns; neighbours: their means, deviations and degrees over own edges;
    quantiles: which exceed their quantiles; unit: columns from 0 to 1, rows of length 1; boosting: scores of trees that
    the label holder boosts on its own data; pooled.K, each.K: columns and scores after K hops over all edges, or each
    holder's; unit.K, unit.each.K: unit likewise; null: tries several
    """
    directed: bool = False
    """edges run from source to target; false: both ways, as is checked"""
    edge_weights: bool = False
    """use edge weights, which stay hidden; false: refuse them"""
    max_degree: int | None = Field(None, ge=4, le=LARGEST_DEGREE)
    """bound of degrees over all holders, shared among them; null: each reveals its own, rounded up to 2^k − 1"""
    edge_slots: int | None = Field(None, ge=1)
    """edges that every holder seems to have; null: its own number, rounded up by up to a quarter"""

    @model_validator(mode="after")
    def _check_blocks(self) -> Self:
        if self.blocks is not None and len(set(self.blocks)) < len(self.blocks):
            raise ValueError(f"blocks={list(self.blocks)}: each may be listed once; leave the repeated one out")
        return self


class SealedTrainSettings(TrainSettings):
    """Training: SGD with momentum, an epoch being one step over all training rows, or over ``batch_size`` of them."""

    epochs: int = Field(250, ge=1)
    """steps, those of all trials together"""
    learning_rate: float | None = Field(None, ge=2**-8, le=2**16)  # type: ignore[assignment]
    """rounded to a whole number over at most 2^8; null: what suits a trial"""
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float | None = Field(None, ge=0, le=1)  # type: ignore[assignment]
    """of L2; null: what suits a trial"""
    patience: None = None
    select_by: Literal["last", "accuracy", "auc"] = "accuracy"
    """accuracy: of several trials the step is taken that has most validation nodes right; auc: that ranks most of up to
    64 × 2,048 pairs of them rightly; the label holder learns that number at every evaluation and nothing else, and the
    others whether it was the best so far; last: one trial, whose last step is taken, and nobody learns how any did
    """
    evaluate_every: int = Field(10, ge=1)
    """steps between evaluations"""
    batch_size: int | None = Field(None, ge=1)
    """training rows of a step, in a secret order; null: all, up to 16384"""
    refresh_every: None = None


def exact_rates(rates: Sequence[float]) -> tuple[tuple[int, ...], int]:
    """Approximate learning rates as n/2^k with whole n ≥ 1 and one k ≤ 8, the least that is exact to 1 %: (n, …), k."""
    for halvings in range(_MOST_HALVINGS + 1):
        whole = [round(rate * 2**halvings) for rate in rates]
        if all(abs(one / 2**halvings - rate) <= rate / 100 for one, rate in zip(whole, rates, strict=True)):
            break
    return tuple(max(1, one) for one in whole), halvings


class SealedPrivacySettings(PrivacySettings):
    """Noise of a sealed job; the ``unit`` says which."""

    unit: Literal["edge", "training-record", "node"]


class VotePrivacySettings(SealedPrivacySettings):
    """Two-sided geometric noise on votes over other holders' edges, counted once: ε is pure, δ is 0."""

    unit: Literal["edge"]
    """what ε protects: one edge, which is all that a holder records between two nodes"""
    canaries: int = Field(0, ge=0)
    """edges of each other holder that are made up, so that an audit can hold the run against its ledger; what is
    predicted for their nodes is worthless
    """


class WeightPrivacySettings(SealedPrivacySettings, DeltaSettings):
    """Gaussian noise on sums over training nodes, of which hidden weights are made."""

    canaries: int = Field(0, ge=0)
    """nodes of each other holder with columns that are made up, so that an audit can hold the run against its ledger;
    what is predicted is worthless
    """

    @property
    @override
    def relation(self) -> Neighbours:
        return "zero-out"


class RecordPrivacySettings(WeightPrivacySettings):
    """That noise alone: scores of other nodes are opened as they are. ``records.rows`` has the proof."""

    unit: Literal["training-record"]
    """what ε protects: all columns that a holder has of one training node, there or zero"""
    epsilon_total: float = Field(ge=0.05, allow_inf_nan=False)
    """ε of a holder's releases in the job"""


class NodePrivacySettings(WeightPrivacySettings):
    """That noise, and randomised response on one bit of every other node: ``records.bits`` has the proof."""

    unit: Literal["node"]
    """what ε protects: all columns that a holder has of one common node, there or zero"""
    epsilon_total: float = Field(ge=_LEAST_OF_BITS, allow_inf_nan=False)
    """ε of a holder's releases in the job; below 0.5 a bit says next to nothing"""
    delta: float | None = Field(None, gt=0, lt=1)
    """δ of every ε; null: the largest power of ten that is at most 1/(10·N), of N common nodes, and at most 1e-5"""

    @field_validator("epsilon_total", mode="before")
    @classmethod
    def _check_least(cls, said: object) -> object:
        if isinstance(said, int | float) and 0 < said < _LEAST_OF_BITS:
            raise ValueError(
                f"must be at least {_LEAST_OF_BITS:g}, below which a bit says next to nothing; raise it, or protect "
                "training nodes alone with unit: training-record"
            )
        return said

    @override
    def delta_of(self, nodes: int | None) -> float:
        """δ for so many common nodes, small enough for several jobs, whose δ add up (``EitherEvent``)."""
        return min(super().delta_of(nodes), _MOST_DELTA_OF_BITS) if self.delta is None else self.delta


def _read_privacy(said: Mapping[str, object]) -> SealedPrivacySettings:
    """Validate a mapping as the settings of its unit."""
    kinds: dict[object, type[SealedPrivacySettings]] = {
        "edge": VotePrivacySettings,
        "training-record": RecordPrivacySettings,
        "node": NodePrivacySettings,
    }
    return kinds.get(str(said.get("unit")), SealedPrivacySettings).model_validate(said)


class SealedJob(JobSettings):
    """Nothing is opened but what the label holder is to learn."""

    paradigm: Literal["sealed"] = "sealed"
    model: SealedModelSettings = SealedModelSettings()
    """the network of the sealed paradigm"""
    train: SealedTrainSettings = SealedTrainSettings()
    output: Literal["classes", "margins"] = "classes"
    """what the label holder learns of a node; margins: scores above the first class's, for probabilities and ranks"""
    named_nodes: int | None = Field(None, ge=1)
    """null: all common nodes are predicted; a number: in all predictions of the run so many, which the label holder
    names and nobody else learns, and none after training
    """
    online: bool = False
    """with named_nodes, across organisations: holders keep shares of predictions, which stay closed; for net serve the
    label holder opens single nodes, and the others see how many and when
    """
    release: Literal["none", "holders"] = "none"
    """holders: each learns the first layer's weights of its columns after training; none: all weights stay in shares
    """

    dealer_checks: float = Field(0.0, ge=0, le=0.99)
    """chance that a dealing is opened, recomputed by every holder and replaced before use, which exposes a wrong one;
    0: no checks. With select_by: last only
    """

    disputes: bool = False
    """parties sign what they send in training, and keep all that they put in and draw, for net dispute"""

    trust: Literal["dealer", "majority", "nobody"] = "dealer"
    """dealer: the server deals random numbers, and reads everything together with one holder; majority, of three
    holders or more: the last of them that is not the label holder deals, and reads everything together with another;
    nobody, of two holders: they make what others are dealt by encryption, at many times the cost
    """

    privacy: Annotated[
        VotePrivacySettings | NodePrivacySettings | RecordPrivacySettings | None, read_by(_read_privacy)
    ] = None
    """null: no noise; unit edge: of other holders' edges nothing is used but votes with noise; unit training-record:
    nothing is trained but hidden weights of their columns, sums over training nodes with noise; unit node: likewise,
    and each opens one bit of every other node, by randomised response
    """

    @classmethod
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """Preset choices that suit a sealed job; data sets of words keep features that are not standardised."""
        if said.get("privacy.unit") in ("training-record", "node"):
            yield Choice("output", "margins", "the label holder weighs scores", needed=True)
            yield Choice("train.select_by", "last", "nothing is told of how steps do", needed=True)
            yield Choice("train.epochs", 1, "there is one sum, and no step", needed=True)
            yield Choice("train.checkpoint_every", 1, "a session that was cut off goes on with the sum", needed=True)
            yield Choice(
                "data.feature_scaling", "length" if said.name("data.dataset") in OF_WORDS else "none", _OWN_ROW
            )
            return
        if said.name("data.dataset") not in OF_WORDS:
            yield Choice("data.feature_scaling", "standard", "columns have units of their own")
        if said.get("privacy") is not None or said.get("dealer_checks"):
            yield Choice("train.select_by", "last", "nothing is told of how steps do", needed=True)
        elif said.name("data.dataset") not in OF_WORDS - {"github"}:
            yield Choice("train.select_by", "auc", "a class may be rare, and accuracy says little of it then")
        if said.name("data.dataset") in OF_WORDS - {"facebook", "github"}:  # half of their nodes train: more steps help
            yield Choice("train.epochs", 120, "three trials of 40 steps")
            if said.get("trust") == "nobody":
                yield Choice("train.evaluate_every", 40, "an evaluation of all nodes costs most of all")
            else:
                yield Choice("train.evaluate_every", 20, "two evaluations of a trial")
        yield Choice("train.class_weights", "balanced", "a class may be rare, and counts as much as another then")

    @model_validator(mode="after")
    def _check_dealing(self) -> Self:
        if self.dealer_checks and self.train.select_by != "last":
            raise ValueError(
                f"dealer_checks={self.dealer_checks}: a dealing is committed to as a whole, and with "
                f"train.select_by={self.train.select_by} its length depends on how steps are judged: set "
                "train.select_by to last, or dealer_checks to 0"
            )
        return self

    @model_validator(mode="after")
    def _check_trust(self) -> Self:
        names = self.data.names
        if self.trust == "nobody":
            _check_nobody(self)
        if self.trust == "majority" and len(names) < _FEWEST_TO_TRUST:
            raise ValueError(
                f"trust=majority with {len(names)} holders: one of them deals for two others or more; name "
                f"{_FEWEST_TO_TRUST} holders or more, or set trust to dealer"
            )
        if self.trust == "majority" and self.dealer_checks:
            raise ValueError(
                f"dealer_checks={self.dealer_checks} with trust=majority: whole dealings are opened to be checked, and "
                "a holder's have its data in them; set dealer_checks to 0, or trust to dealer"
            )
        return self

    @model_validator(mode="after")
    def _check_online(self) -> Self:
        rules = (  # first those that no other setting mends
            (self.paradigm != "sealed", f"paradigm={self.paradigm}: several holders would ask; leave online out"),
            (self.privacy is not None, "privacy is set: its noise is of all predictions; leave one of both out"),
            (self.named_nodes is None, "named_nodes=null: set it to the most nodes that may be opened"),
            (not self.data.is_apart, "data.holders does not name them: on one machine no share is hidden; name them"),
        )
        for broken, why in rules if self.online else ():
            if broken:
                raise ValueError(f"online=True and {why}")
        return self

    @override
    def _check_privacy(self) -> None:
        if isinstance(self.privacy, VotePrivacySettings):
            _check_private(self, self.privacy)
        if isinstance(self.privacy, WeightPrivacySettings):
            _check_records(self, self.privacy.unit)

    @property
    def votes(self) -> VotePrivacySettings | None:
        """Privacy of unit ``edge``; None where the job has another, or none."""
        return self.privacy if isinstance(self.privacy, VotePrivacySettings) else None

    @property
    def records(self) -> WeightPrivacySettings | None:
        """Privacy of unit ``training-record`` or ``node``; None where the job has another, or none."""
        return self.privacy if isinstance(self.privacy, WeightPrivacySettings) else None

    @property
    def bits(self) -> NodePrivacySettings | None:
        """Privacy of unit ``node``; None where the job has another, or none."""
        return self.privacy if isinstance(self.privacy, NodePrivacySettings) else None

    @property
    def dealing_party(self) -> PartyId:
        """Who deals: the server, nobody or, with ``trust: majority``, the last holder that is not the label holder."""
        if self.trust != "majority":
            return SERVER if self.trust == "dealer" else NOBODY
        return [name for name in self.data.names if name != self.data.label_party][-1]

    @property
    def computing(self) -> tuple[PartyId, ...]:
        """The holders that compute on what is dealt to them: all but one that deals."""
        return tuple(name for name in self.data.names if name != self.dealing_party)

    @property
    def duties(self) -> Duties:
        """All holders publish or, with ``privacy``, those whose edges carry votes; the label holder scores."""
        learner = self.data.label_party
        others = tuple(name for name in self.data.names if name != learner)
        publishing = self.data.names if self.privacy is None else others
        return Duties(publishing=publishing, scoring=(learner,), dealing=self.dealing_party or None)

    @property
    def passes(self) -> Passes:
        """No public target nodes: the label holder keeps the order of training rows secret; evaluates unless "last"."""
        # Not loaded: a site that is asked lives long.
        lacks = WITHOUT_COMPILER if self.trust == "nobody" and find_spec(COMPILER) is None else ""
        return Passes(targets=None, evaluates=self.train.select_by != "last", signed=self.disputes, lacks=lacks)

    @property
    def inputs(self) -> InputRules:
        """Degrees are bounded at holders whose edges are hopped over, and not where they only carry noisy votes."""
        if self.records is not None:  # edges stay at home
            return InputRules(per_node=tuple(name for name in self.data.names if name != self.data.label_party))
        rule: tuple[str, int | None] = ("model.max_degree", None)
        if self.model.max_degree is not None:
            rule = "each holder's share of model.max_degree", (self.model.max_degree - 1) // len(self.data.names)
        bounded: tuple[PartyId, ...] = (self.data.label_party,)
        if self.privacy is None:
            blocks = self.model.blocks  # with a dot: hops over edges that others' columns go over too
            bounded = self.data.names if blocks is None or any("." in block for block in blocks) else ()
        return InputRules(weights=self.model.edge_weights, degree_rules=dict.fromkeys(bounded, rule))

    @property
    def noise(self) -> NoiseFacts:
        if self.records is not None:
            return NoiseFacts(sums_records=True, canaries=self.records.canaries)
        return NoiseFacts() if self.votes is None else NoiseFacts(counts_votes=True, canaries=self.votes.canaries)

    @property
    def outcome(self) -> Outcome:
        """What is predicted; with ``privacy`` of the data as trained, for the same noise on other data would cancel."""
        return Outcome(
            predicts_named=self.named_nodes is not None,
            keeps_shares=self.online,
            opens_classes_alone=self.output == "classes",
            predicts_as_trained=self.privacy is not None,
        )


def sealed(job: JobSettings) -> SealedJob:
    """Return ``job`` typed as a sealed job; ``ConfigError`` where it is of another paradigm."""
    return job_of(SealedJob, job)


def _check_nobody(job: SealedJob) -> None:
    """Refuse what two holders without a dealer cannot do: ``ValueError``."""
    rules = (
        (len(job.data.names) != _PAIR, f"{len(job.data.names)} holders: name {_PAIR}, or set trust to majority"),
        (job.dealer_checks > 0, f"dealer_checks={job.dealer_checks}: there is no dealing; set dealer_checks to 0"),
        (job.privacy is not None, "privacy: nobody draws noise that no holder knows; set trust to dealer"),
    )
    for broken, why in rules:
        if broken:
            raise ValueError(f"trust=nobody with {why}")


def _check_private(job: SealedJob, privacy: VotePrivacySettings) -> None:
    """Refuse, with ``ValueError``, settings that ``privacy`` has no noise for, or that open more than ε counts."""
    rules = (
        ("model.edge_weights", job.model.edge_weights, False, "a vote counts 1, and a weight may be any number"),
        ("train.select_by", job.train.select_by, "last", "how many validation nodes are right is told without noise"),
        (
            "release",
            job.release,
            "none",
            "weights hang on the label holder's edges, which have no noise against others",
        ),
    )
    for name, value, needed, why in rules:
        if value != needed:
            raise ValueError(
                f"{name}={value!r} with privacy in a sealed job: {why}; set {name} to {needed!r}, or leave privacy out"
            )
    apart = [
        block
        for block in job.model.blocks or ()
        if block not in _OF_NO_OTHERS_EDGES and not block.startswith("pooled.")
    ]
    if apart:
        raise ValueError(
            f"model.blocks={list(job.model.blocks or ())} with privacy in a sealed job: noise protects votes "
            f"over others' edges alone, and {listed(apart)} would use these edges otherwise; leave them out"
        )
    if job.model.edge_slots is None:
        raise ValueError(
            "model.edge_slots=null with privacy in a sealed job: everybody would see each holder's number of edges, "
            "rounded up, which no noise covers; give the most that any holder can have, both directions of a link "
            "counted, by public knowledge"
        )
    if privacy.canaries and job.named_nodes is not None:
        raise ValueError(
            f"privacy.canaries={privacy.canaries} with named_nodes={job.named_nodes} in a sealed job: an audit reads "
            "what is predicted of canaries, and no node is predicted that is not named; leave one of both out"
        )


def _check_records(job: SealedJob, unit: str) -> None:
    """Refuse, with ``ValueError``, settings that hidden weights of records cannot honour."""
    usual, why = SealedTrainSettings(), "no step is made, and the label holder fits its own model at home"
    steps = ("learning_rate", "weight_decay", "momentum", "batch_size", "evaluate_every")
    rules: list[tuple[str, object, object, str]] = [
        ("disputes", job.disputes, False, "holders whiten columns in floating point, which may differ at an auditor"),
        ("output", job.output, "margins", "the label holder weighs scores by its validation nodes"),
        ("named_nodes", job.named_nodes, None, "the label holder weighs scores by its validation nodes"),
        ("release", job.release, "none", "weights are what the noise hides"),
        ("train.select_by", job.train.select_by, "last", "there is one sum, and no step to choose"),
        ("train.epochs", job.train.epochs, 1, "there is one sum, and no step"),
        ("train.checkpoint_every", job.train.checkpoint_every, 1, "a sum that is lost cannot be paid for again"),
        *((f"train.{name}", getattr(job.train, name), getattr(usual, name), why) for name in steps),
        *((f"model.{name}", found, getattr(SealedModelSettings(), name), why) for name, found in job.model),
    ]
    for name, value, needed, reason in rules:
        if value != needed:
            way_out = "leave it out" if needed is None else f"leave it out, or set it to {needed!r}"
            raise ValueError(f"{name}={value!r} with privacy.unit={unit}: {reason}; {way_out}")
    if job.data.feature_scaling == "standard":
        raise ValueError(
            f"data.feature_scaling=standard with privacy.unit={unit}: means and deviations of all rows tell of one "
            "record, which no noise covers; set it to none, row or length, and declare ranges in the party files"
        )
