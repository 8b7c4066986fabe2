"""A job of averaging: every holder has a graph of its own, with features in the same columns and no node in common.

What ``preset: auto`` chooses follows from what the job says: ε or σ, ``batch``, holders, rounds. No data are looked at;
docs/explanation/averaging.md has how it was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator
from typing_extensions import override

from veilgraph.core.settings import Settings
from veilgraph.core.types import MASKS
from veilgraph.graph.settings import PartitionSettings
from veilgraph.nn.local.build import CustomLocal
from veilgraph.paradigms.horizontal.settings import same_columns
from veilgraph.privacy.accountant import analytic_multiplier
from veilgraph.protocol.facets import Duties, InputRules, NoiseFacts, Outcome, Passes
from veilgraph.protocol.figures import CLASS_MEASURES, Measures, selecting
from veilgraph.protocol.job import JobSettings, job_of, require
from veilgraph.protocol.preset import Choice, JobContent
from veilgraph_averaging.at_home import AtHomeSettings
from veilgraph_averaging.network import AnyRuleSettings, FedAvgSettings, NetworkSettings
from veilgraph_averaging.private.event import Joint, reach
from veilgraph_averaging.private.plan import SampledPlan, sampled_plan
from veilgraph_averaging.private.settings import SampledSettings
from veilgraph_averaging.symbols.settings import SymbolSettings, check_symbols
from veilgraph_averaging.tasks import TASKS, AnyTaskSettings, TaskSettings

MOMENTUM: Final = 0.9
ROUNDS: Final = 80
LARGEST_RATE: Final = 2.0
"""Beyond it training may diverge without noise too, with rows and gradients of length 1 and that momentum."""
WANDER: Final = 0.45  # how far the noise of all rounds may move one weight, as a standard deviation

_TERMS: Final = "a term is one node's"
_WIDE: Final = "wider ones were no better"
_NOISED: Final = "nobody is told how an epoch did"


def _rate_of(said: JobContent) -> float | None:
    """Return the preset's ``learning_rate`` for a job as written; None where its settings are not valid."""
    privacy, local = said.get("averaging.privacy"), said.get("model.local.hops", None)
    rounds, momentum = said.get("train.epochs", ROUNDS), said.get("averaging.rule.momentum", MOMENTUM)
    try:
        given = SampledSettings.model_validate(privacy)
        bound = given.degree_bound
        hops = (0 if bound is None else 1) if local is None else int(local)
        terms = reach(hops, bound or 1)
        rounds, momentum = int(rounds), float(momentum)
    except (ValidationError, TypeError, ValueError):
        return None
    if rounds < 1 or not 0 <= momentum < 1 or given.batch is None:
        return None
    return learning_rate(given, terms, rounds, momentum, _num_holders(said), _noise_share(said, given))


def learning_rate(
    given: SampledSettings, terms: int, rounds: int, momentum: float, holders: int, share: float = 1.0
) -> float:
    """The rate with which the noise of all rounds moves a weight by ``WANDER``, or ``LARGEST_RATE`` where that is less.

    A step moves a weight by η/(1 − β) times its noise, once momentum has run out; the mean of P holders' noise has
    deviation σC/(batch·√P), and T rounds √T of it. σ is taken to be (2N − 1)·q·√T/μ, of the Gaussian mechanism that
    many small draws come to, where it is not given: a rule of thumb for a rate, and nothing that ε rests on. N is
    ``terms``, T ``rounds``, β ``momentum``, P ``holders``, each of which adds ``share`` of σ.
    """
    noise = given.noise_multiplier
    if noise is None:
        assert given.epsilon_total is not None
        moved = (2 * terms - 1) * (1 if given.neighbours == "zero-out" else 2)
        single = analytic_multiplier(given.epsilon_total, given.delta_of_batch)
        noise = moved * given.sampling_rate * math.sqrt(rounds) * single
    one = share * noise * given.clip * math.sqrt(rounds) / (given.divisor * math.sqrt(holders))
    found = min(LARGEST_RATE, WANDER * (1 - momentum) / one)
    return float(f"{found:.3g}")


def usual_threshold(holders: int) -> int:
    """Return the default ``threshold``, how many holders a sum needs: more than two thirds."""
    return 2 * holders // 3 + 1


def _noise_share(said: JobContent, given: SampledSettings) -> float:
    """Return the share of σ that a holder adds: 1/√(T − t) with joint noise; 1 without, or if T − t is below 2."""
    if given.joint_noise is None:
        return 1.0
    stated: Any = said.get("averaging.threshold")
    honest = (stated if isinstance(stated, int) else usual_threshold(_num_holders(said))) - given.joint_noise.colluding
    return 1 / math.sqrt(honest) if honest > 1 else 1.0


def _num_holders(said: JobContent) -> int:
    for key in ("data.parties", "data.graphs"):
        named: Any = said.get(key)
        if isinstance(named, Mapping) and named:
            return len(named)
    count: Any = said.get("data.holders", 2)
    if isinstance(count, int):
        return max(1, count)
    return len(count) if isinstance(count, list | tuple) and count else 2


class AveragingSettings(Settings):
    """How holders' weights become one, under masks."""

    task: AnyTaskSettings = TaskSettings()
    """what is learnt"""
    rule: AnyRuleSettings = FedAvgSettings()
    personal: tuple[Literal["input", "local", "output"], ...] = ()
    """parts whose weights each holder keeps to itself: map of the features, hops, last map"""
    local_epochs: int = Field(5, ge=1, le=1000)
    """E, a holder's epochs in a round"""
    threshold: int | None = Field(None, ge=1)
    """t, holders needed throughout a round, over half; fewer that collude with the server learn no holder's weights.
    null: over two thirds
    """
    patience_s: float = Field(60.0, gt=0)
    """the server's wait for each message of a sum, then it continues without missing holders"""
    privacy: SampledSettings | None = None
    """DP-SGD: noise for an ε of a node with label and edges; null: none"""
    at_home: AtHomeSettings | None = None
    """with privacy: what each holder adds to the final model from its own data, without noise, and keeps"""
    symbols: SymbolSettings | None = None
    """in place of averaged weights: labels under randomised response over edges to others' nodes; null: none"""


_BY_NODES: Final = PartitionSettings(by="nodes")
_MOST_PERSONAL: Final = 2
_WAITS: Final = 6  # who is left out of a sum waits for its five messages, and for what follows


class AveragingJob(JobSettings):
    """Holders train one network on graphs of their own; of their weights the server learns sums."""

    paradigm: Literal["averaging"] = "averaging"
    averaging: AveragingSettings = AveragingSettings()
    """how weights are averaged"""
    model: NetworkSettings = NetworkSettings()
    """the network"""

    @model_validator(mode="before")
    @classmethod
    def _divide(cls, data: object) -> object:
        """Write the defaults ``train.select_by`` and ``data.partition.by: nodes`` into a job's settings."""
        if not isinstance(data, Mapping):
            return data
        data = _default_select_by(data)
        given: Any = data.get("data", {})
        if not isinstance(given, Mapping) or not isinstance(given.get("partition", {}), Mapping):
            return data
        partition = dict(given.get("partition", {}))
        if given.get("graphs") or given.get("parties") or not isinstance(given.get("holders", 2), int):
            if partition == _BY_NODES.model_dump():  # of the job before the holders brought their graphs
                return {**data, "data": {key: value for key, value in given.items() if key != "partition"}}
            return data
        return {**data, "data": {**given, "partition": {"by": "nodes", **partition}}}

    @classmethod
    @override
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """Yield what ``preset: auto`` chooses for a job as written, with ``averaging.privacy`` or without."""
        if said.get("averaging.symbols") is not None:
            yield from _symbol_choices(said)
            return
        given = said.get("averaging.privacy")
        if given is None:
            yield from same_columns(said, classes=said.get("averaging.task.name", "classes") in ("classes", "graphs"))
            yield Choice("averaging.rule.name", "fedprox", "holders whose classes differ do not drift apart")
            return
        bounded = said.get("averaging.privacy.degree_bound") is not None
        yield Choice("data.feature_scaling", "length", "gradients are about as long as rows, and are clipped")
        if said.get("data.split") is not None:
            yield Choice("data.stratify", False, "who is trained on must hang on no other node")
        sums = not bounded and not said.get("model.dim") and said.get("train.epochs", 1) == 1
        yield Choice("model.dim", 0, "one sum of rows for each class") if sums else Choice("model.dim", 16, _WIDE)
        yield Choice("model.dropout", 0.0, _TERMS)
        yield Choice("model.local.model", "sage-mean", _TERMS)
        yield Choice("model.local.hops", int(bounded), "degree_bound is given" if bounded else "edges cost noise")
        yield Choice("model.local.normalize", False, "how large an embedding is tells something")
        yield Choice("averaging.rule.name", "fedsgd", "a holder gives a noisy gradient")
        yield Choice(
            "averaging.rule.momentum",
            *((0.0, "there is one round") if sums else (MOMENTUM, "fewer rounds, so less noise")),
        )
        yield Choice("averaging.local_epochs", 1, "a holder gives a noisy gradient")
        yield Choice("averaging.at_home.epochs", 300, "a holder may learn from its own edges what it tells nobody")
        yield Choice(
            "train.epochs",
            *((1, "all of ε is for one sum") if sums else (ROUNDS, "what matters is rounds times the rate")),
        )
        yield Choice("train.select_by", "last", _NOISED)
        yield Choice("train.patience", None, _NOISED)
        yield Choice("train.weight_decay", 0.0, "noise does not let weights grow to no purpose")
        if sums:
            yield Choice("train.learning_rate", 1.0, "how long weights are tells nothing")
        elif (rate := _rate_of(said)) is not None:
            yield Choice("train.learning_rate", rate, f"the noise of all rounds moves a weight by {WANDER:g} at most")

    def _check_parts(self) -> None:
        partition, why = self.data.partition, "holders have no node in common"
        if self.data.dataset is not None:
            require(
                "paradigm=averaging",
                ("data.partition.by", partition.by, ["nodes", "labels"], why),
                ("data.partition.knows", partition.knows, "own", why),
            )

    def _check_label_privacy(self, said: str) -> None:
        self._check_division(said)
        own, private = self.averaging, self.label_privacy
        epsilon = private and private.epsilon
        if own.symbols is not None:
            return  # ``check_symbols`` has its rules
        if own.task.name != "classes":
            why = "what is perturbed is the class of a node"
            require(f"averaging.task.name={own.task.name}", ("label_privacy.epsilon", epsilon, None, why))
        if own.privacy is not None:
            why = "noise on gradients covers a node's label, and their ε are not counted together"
            require("averaging.privacy", ("label_privacy.epsilon", epsilon, None, why))
        if private is not None:
            why = "they are scored by gradients of single nodes, of which none is sent"
            require("paradigm=averaging", ("label_privacy.canaries", private.canaries, 0, why))

    def _check_unused(self) -> None:
        if self.averaging.symbols is not None:
            check_symbols(self, self.averaging)  # before rules of weights that are averaged
        super()._check_unused()
        own, holders, threshold = self.averaging, len(self.data.names), self.threshold
        own.task.check(self.model, self.train)
        if not holders < 2 * threshold <= 2 * holders:
            raise ValueError(
                f"averaging.threshold={threshold} must be more than half of the {holders} holders, and no more than "
                f"all; choose {holders // 2 + 1} to {holders}"
            )
        if own.symbols is None and self.timeout_s < _WAITS * own.patience_s:
            raise ValueError(
                f"timeout_s={self.timeout_s:g} must be at least {_WAITS} times averaging.patience_s="
                f"{own.patience_s:g}: who is left out of a sum waits for its end; raise the one or lower the other"
            )
        if len(set(own.personal)) < len(own.personal) or len(own.personal) > _MOST_PERSONAL:
            raise ValueError(
                f"averaging.personal={', '.join(own.personal)} must name each part once, and leave one to be averaged; "
                "take one out"
            )
        if own.rule.sends_gradients:
            require(
                "rule fedsgd",
                ("averaging.personal", own.personal, (), "a holder takes no step, so its own parts stay as they are"),
                ("averaging.local_epochs", own.local_epochs, 1, "a gradient is of the weights that the server sent"),
            )
        if own.privacy is not None:
            check_private(self)
        elif not self.model.dim:
            raise ValueError("model.dim=0 without averaging.privacy: it is for noisy sums; give a dim of 1 or more")
        elif own.at_home is not None:
            raise ValueError(
                "averaging.at_home without averaging.privacy: holders are told of every round how all do with the same "
                "weights; leave at_home out, or keep parts of the network at home by averaging.personal"
            )

    @property
    def measures(self) -> Measures:
        return self.averaging.task.kind.measures.led_by(self.train.select_by)

    @property
    def threshold(self) -> int:
        """t: how many holders must stay through a sum, as set or by ``usual_threshold``."""
        stated = self.averaging.threshold
        return usual_threshold(len(self.data.names)) if stated is None else stated

    @property
    @override
    def training_plan(self) -> SampledPlan | None:
        given = self.averaging.privacy
        if given is None:
            return None
        joint = None if given.joint_noise is None else Joint(self.threshold, given.joint_noise.colluding)
        return sampled_plan(self.train.epochs, given, self.model.local.hops, joint)

    @property
    def records_survivors(self) -> bool:
        """Whether parties keep the survivors of every sum: some may be missing, and no fresh noise hides them."""
        return self.passes.tolerates_dropouts and self.averaging.privacy is None

    @property
    def gives_checkpoints(self) -> int | None:
        """How many holders must have a checkpoint to give it to one that lacks it; None: no checkpoint is given."""
        alike = self.passes.tolerates_dropouts and not self.averaging.personal and self.averaging.at_home is None
        return self.threshold if alike else None

    @property
    def is_aligned(self) -> bool:
        return False

    @property
    def duties(self) -> Duties:
        return Duties(publishing=self.data.names, scoring=self.data.names)

    @property
    def passes(self) -> Passes:
        return Passes(
            targets=self.train.batch_size,
            evaluates=self.averaging.privacy is None and self.averaging.symbols is None,
            learns_alone=self.averaging.symbols is not None,
            tolerates_dropouts=self.averaging.symbols is None and self.threshold < len(self.data.names),
        )

    @property
    def inputs(self) -> InputRules:
        given = self.averaging.privacy
        private = () if given is None else self.data.names
        bound = None if given is None else given.degree_bound
        return InputRules(
            of_nodes=() if self.averaging.task.name == "classes" else ("targets", "membership"),
            is_custom=issubclass(self.model.local.kind, CustomLocal),
            per_node=private,
            per_edge=private,
            joins_others=self.averaging.symbols is not None,
            joins_undirected=self.averaging.symbols is not None,
            standardises=self.averaging.symbols is not None,
            degree_rules={} if bound is None else dict.fromkeys(private, ("averaging.privacy.degree_bound", bound)),
        )

    @property
    def noise(self) -> NoiseFacts:
        if (given := self.averaging.symbols) is not None:
            others = given.untrained if given.answers == "all" else None
            return NoiseFacts(label_splits=MASKS[:1], others_label=others)
        joint = None if self.averaging.privacy is None else self.averaging.privacy.joint_noise
        return NoiseFacts(shared=None if joint is None else ("averaging.privacy.joint_noise", joint.colluding))

    @property
    @override
    def outcome(self) -> Outcome:
        return Outcome(predicts_as_trained=self.averaging.symbols is not None)


def _symbol_choices(said: JobContent) -> Iterable[Choice]:
    """Yield what ``preset: auto`` chooses for a job with ``averaging.symbols``."""
    if said.get("data.split") is not None:
        yield Choice("data.stratify", False, "who is trained on must hang on no other node")
    yield Choice("data.feature_scaling", "none", "each holder standardises its own columns")
    yield Choice("train.epochs", 1, "symbols are sent once, and each holder learns at home")
    yield Choice("train.select_by", "last", "each holder chooses on its own validation nodes")
    yield Choice("train.patience", None, "there is one epoch")


def _default_select_by(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set ``train.select_by`` to the task's first figure where a job leaves it out; not for tasks of classes."""
    name = JobContent(data).get("averaging.task.name")
    if not isinstance(name, str) or name not in TASKS or TASKS[name].measures.main.name == CLASS_MEASURES.main.name:
        return data  # of classes the preset chooses
    return selecting(data, TASKS[name].measures)


_STATISTICS: Final = (
    "a column's statistics are of all rows, and not noised; have party files declare ranges (scale: {low, high}), as "
    "veilgraph data init --protect node-edges drafts them"
)
_FEWEST_SHARES: Final = 2  # of noise, beside those of the holders that collude (``privacy.plan``)


def check_private(job: AveragingJob) -> None:
    """Refuse settings with which private training would reveal more than noisy sums, or miscount a node's terms."""
    given, model, own, data = job.averaging.privacy, job.model, job.averaging, job.data
    assert given is not None
    bound = given.degree_bound
    require(
        "averaging.privacy",
        ("averaging.task.name", own.task.name, "classes", "a term is the loss of one node's class"),
        ("averaging.rule.name", own.rule.name, "fedsgd", "a holder gives a noisy gradient in a round"),
        ("averaging.personal", own.personal, (), "weights that stay at home would be trained without noise"),
        ("model.dropout", model.dropout, 0.0, "terms are drawn in its place"),
        ("model.local.dropout", model.local.dropout, 0.0, "terms are drawn in its place"),
        ("train.class_weights", job.train.class_weights, "none", "how many nodes a class has is not noised"),
        ("train.select_by", job.train.select_by, "last", "scores of an epoch are not noised, and nobody is told any"),
        # With these a node's result is of what is within K hops of it, and nothing is drawn.
        ("model.local.model", model.local.model, ["gin", "sage-mean"], "a result must be of what is within the hops"),
        ("data.feature_scaling", data.feature_scaling, ["length", "row", "none"], _STATISTICS),
    )
    if (bound is None) != (model.local.hops == 0):
        raise ValueError(
            f"averaging.privacy.degree_bound={bound} with model.local.hops={model.local.hops}: it bounds how many "
            "terms a node reaches over edges; give it with hops, and leave it out without"
        )
    sums = not model.dim and job.train.epochs == 1
    if given.batch is None and not sums:
        raise ValueError(
            "averaging.privacy.batch is missing: steps are as long as sums over batch; give about how many training "
            "nodes a holder has, by public knowledge, or take one round of class sums, model.dim=0 and train.epochs=1"
        )
    if given.batch is not None and given.delta is not None and sums and own.at_home is not None:
        raise ValueError(
            f"averaging.privacy.batch={given.batch:g} with delta={given.delta:g}: class sums are scaled at home, and "
            "batch would say but what delta fits; leave one of the two out"
        )
    if given.joint_noise is not None:
        _check_joint_noise(job, given.joint_noise.colluding)
    if data.dataset is not None and (data.split is None or data.stratify):
        raise ValueError(
            "data.split with averaging.privacy: who is trained on must hang on no other node, and a split by classes, "
            "or one that a data set brings, may; give data.split, as in [0.5, 0.25, 0.25], with data.stratify: false"
        )


def _check_joint_noise(job: AveragingJob, colluding: int) -> None:
    """Refuse a ``threshold`` too low for joint noise, or for no two sums of one round to be opened.

    Those that collude can confirm two sets of survivors, and others one each (Bonawitz et al. 2017, section 6.2): with
    2·threshold > P + t no two sets are ever confirmed by so many.
    """
    holders, threshold = len(job.data.names), job.threshold
    if threshold - colluding >= _FEWEST_SHARES and 2 * threshold > holders + colluding:
        return
    least = max(colluding + _FEWEST_SHARES, (holders + colluding) // 2 + 1)
    way_out = (
        f"set averaging.threshold to {least} to {holders}"
        if least <= holders
        else f"{holders} holders are too few for it: lower colluding, or leave joint_noise out"
    )
    raise ValueError(
        f"averaging.privacy.joint_noise.colluding={colluding} with averaging.threshold={threshold} of {holders} "
        "holders: in a sum that is opened two more than those must be there, and no holder's part may be in two sums "
        f"of one round, which needs a threshold above half of all and those that collude; {way_out}"
    )


def averaging(job: JobSettings) -> AveragingJob:
    """Return ``job`` as an ``AveragingJob``; ``ConfigError`` if it is of another paradigm."""
    return job_of(AveragingJob, job)
