"""A vertical job (VFGNN): holders of the same nodes. Every default here is the paper's where the paper names one.

docs/presets.md has the figures by which the choices of ``preset: auto`` were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Final, Literal

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.graph.settings import OF_WORDS
from veilgraph.mpc.ring import MAX_DETECTED_BITS
from veilgraph.nn.combine import build_combine
from veilgraph.nn.local.build import CustomLocal, FirstSettings
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.privacy.event import Joint
from veilgraph.privacy.plan import Channel, Plan, rows_changed_by_edge, rows_changed_by_node, rows_moved, sensitivity_of
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.job import Duties, InputRules, JobSettings, NoiseFacts, Passes, degree_rules, job_of, require
from veilgraph.protocol.preset import Choice, Said

_UNITS: Final = "columns have units of their own, and the ring bounds what embeddings may be"
_WORDS: Final = "rows of words differ in length alone"
_PASSES: Final = "it does not saturate"
_EPOCHS: Final = "early stopping ends most trainings before"
_COLUMNS: Final = "no column is relied on by itself"

_DENSE: Final = (
    Choice("data.feature_scaling", "standard", _UNITS),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.3, _COLUMNS),
    Choice("model.local.model", "sage-vpa", "more neighbours that agree say more"),
    Choice("model.local.activation", "relu", _PASSES),
    Choice("model.local.normalize", False, "how large an embedding is tells something"),
    Choice("model.server.activation", "relu", _PASSES),
    Choice("train.weight_decay", 1e-2, "few nodes have labels"),
    Choice("train.select_by", "auc", "accuracy says little of rare classes"),
    Choice("train.class_weights", "balanced", "a rare class counts as much as another"),
    Choice("train.epochs", 120, _EPOCHS),
    Choice("train.evaluate_every", 2, "an evaluation is as much traffic as half a step"),
    Choice("train.patience", 15, "evaluations are every second epoch"),
)
"""A few columns of any kind, most of them there at a node."""
_SPARSE: Final = (
    Choice("data.feature_scaling", "row", _WORDS),
    Choice("model.initial.learning_rate", 10.0, "rows of x sum to 1, so gradients are small"),
    Choice("model.initial.weight_decay", 1e-3, _COLUMNS),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.7, _COLUMNS),
    Choice("model.local.hops", 3, "neighbours write of the same"),
    Choice("model.local.start", "average", "few nodes have labels, and averaging needs none"),
    Choice("model.local.learning_rate", 3e-4, "the hops leave averaging slowly"),
    Choice("model.server.activation", "tanh", "sigmoid saturates"),
    Choice("train.evaluate_every", 2, "an evaluation is as much traffic as half a step"),
    Choice("train.patience", 15, "evaluations are every second epoch"),
)
"""Words: many columns, few of them there at a node."""


_RELEASED: Final = (
    Choice("model.initial.method", "individual", "each holder projects its own features", needed=True),
    Choice("model.local.model", "appnp", "what is released was trained on nothing", needed=True),
    Choice("model.initial.activation", "relu", _PASSES),
    Choice("model.initial.dropout", 0.5, _COLUMNS),
    Choice("model.local.activation", "none", _PASSES),
    Choice("model.server.layers", 0, "the label holder learns by itself"),
    Choice("train.learning_rate", 0.03, "nothing is sent in a step"),
    Choice("train.weight_decay", 5e-3, "few nodes have labels"),
    Choice("train.epochs", 300, _EPOCHS),
    Choice("train.evaluate_every", 2, "an evaluation takes as long as a step"),
)
"""One noisy release, from which the label holder learns by itself."""


def _of_release(said: Said) -> Iterator[Choice]:
    """With one release. Statistics of a whole column would carry one node to every row where ε is of a node."""
    is_of_words = said.get("data.dataset") in OF_WORDS or said.get("data.feature_scaling") == "row"
    if is_of_words or said.get("privacy.unit", "row") not in _OF_NODES:
        yield Choice("data.feature_scaling", "row" if is_of_words else "standard", _WORDS if is_of_words else _UNITS)
    yield from _RELEASED
    if said.get("privacy.aggregation") is not None:  # else they are hops of what is released, each of which costs ε
        yield Choice("model.local.hops", 8, "the label holder's own links cost no ε")
        yield Choice("model.local.teleport", 0.05, "far neighbours say much where few nodes have labels")
    if not is_of_words:
        yield Choice("train.select_by", "auc", "accuracy says little of rare classes")
        yield Choice("train.class_weights", "balanced", "a rare class counts as much as another")


def _without_meaning(said: Said) -> set[str]:
    """Keys that mean nothing beside what the job says, or another thing than was chosen for."""
    found = set[str]()
    if said.get("model.initial.method", "collaborative") != "collaborative":  # Adam learns W
        found |= {"model.initial.learning_rate", "model.initial.weight_decay"}
    local = said.get("model.local.model", FirstSettings().model)
    if local not in LOCAL_MODELS or "start" not in LOCAL_MODELS[local].settings.model_fields:
        found |= {"model.local.start", "model.local.learning_rate"}
    if said.get("label_privacy") is not None:  # the classes' shares are private; and decay outweighs so weak a loss
        found |= {"train.class_weights", "train.weight_decay"}
    return found


_OF_NODES: Final = ("node", "node-edges")


class VerticalJob(JobSettings):
    """Holders have other columns, and edges of their own, of the same nodes."""

    paradigm: Literal["vertical"] = "vertical"
    model: ModelSettings = ModelSettings()
    """the network"""

    @classmethod
    def choices(cls, said: Said) -> Iterable[Choice]:
        """What fits what the job says; nothing where every step is noised."""
        both = ("train.evaluate_every", "train.patience")  # each counts by the other
        apart = set[str](both if any(key in said for key in both) else ())
        if said.get("privacy") is not None:
            offered = _of_release(said) if said.get("privacy.schedule", "once") == "once" else iter(())
        else:
            usual = "row" if said.get("data.dataset") in OF_WORDS else "standard"
            offered = iter(_SPARSE if said.get("data.feature_scaling", usual) == "row" else _DENSE)
            apart |= _without_meaning(said)
        yield from (choice for choice in offered if choice.key not in apart)

    def _check_unused(self) -> None:
        self._check_parts()
        self._check_batches()
        privacy, label = self.privacy, self.label_privacy and self.label_privacy.epsilon
        if privacy is None:
            return
        if privacy.once:
            require("privacy.schedule=once", ("label_privacy.epsilon", label, None, "nothing leaves the label holder"))
            self._check_once()
        else:
            strategy = self.model.combine.strategy
            weighs = self.model.combine.kind.needs_weight
            unweighted = ["mean", "concat", "regression"] if weighs else strategy
            require(
                "privacy.schedule=every-step",
                ("label_privacy.epsilon", label, None, "their ε are not counted together"),
                ("model.combine.strategy", strategy, unweighted, "exact degrees would be published"),
                ("train.select_by", self.train.select_by, "last", "all parties would learn without noise which fits"),
            )
        if privacy.joint_noise is not None:
            self._check_joint_noise(privacy.joint_noise.colluding)

    def _check_batches(self) -> None:
        model = self.model
        if self.train.batch_size is None:
            fanout = ("model.local.fanout", model.local.fanout, None, "it bounds the neighbourhoods of batches")
            require("train.batch_size=null", fanout)
            return
        require(
            "train.batch_size",
            ("model.rounds", model.rounds, 1, "a second round would ask for the neighbours, and so tell edges"),
            ("model.head.logit_hops", model.head.logit_hops, 0, "they reach beyond a batch"),
            ("privacy", self.privacy and self.privacy.schedule, None, "its ledger counts releases of all rows"),
        )

    def _check_once(self) -> None:
        model, privacy = self.model, self.privacy
        local, strategy, masked = model.local, model.combine.strategy, model.combine.masked
        fixed = local.model if local.kind.is_fixed else "appnp"
        unweighted = ["mean", "concat"] if self.divisor is None else strategy
        many = len(self.duties.publishing) > 1
        require(
            "privacy.schedule=once",
            ("device", self.device, "cpu", "a single release is made, and learnt from, on the CPU"),
            ("model.rounds", model.rounds, 1, "a single release is a single round"),
            ("model.initial.method", model.initial.method, "individual", "each holder projects its own features"),
            ("model.local.model", local.model, fixed, "the released propagation has no trained weights"),
            ("model.combine.strategy", strategy, unweighted, "a release has no trained weights and no exact degrees"),
            ("model.combine.masked", masked, masked if many else [None, False], "one embedding has none to hide among"),
        )
        if self.data.feature_scaling == "standard" and privacy:
            why = "statistics of a whole column carry one node to every row (tables: declare ranges by scale)"
            require("data.feature_scaling=standard", ("privacy.unit", privacy.unit, ["row", "edge"], why))

    def _check_joint_noise(self, colluding: int) -> None:
        model, count = self.model, len(self.duties.publishing)
        strategy = model.combine.strategy if self.divisor is not None else "mean"
        require(
            "privacy.joint_noise",
            ("model.combine.strategy", model.combine.strategy, strategy, "it weighs shares of noise before the sum"),
            # Else h0 has every holder's features in it: one row moves all P summands by the clip each.
            (
                "model.initial.method",
                model.initial.method,
                "individual",
                "a row must move one holder's summand alone",
            ),
        )
        if not self.passes.is_masked:
            why = "one holder alone publishes" if count == 1 else "rows go to the server one by one"
            raise ValueError(
                f"privacy.joint_noise needs masks, and here {why}: a share of the noise protects a row inside a sum "
                "alone; take three holders or more, model.combine.strategy=mean and masked, or leave joint_noise out"
            )
        if not self.passes.learns_alone and not colluding:
            raise ValueError(
                f"privacy.joint_noise.colluding=0 with privacy.schedule=every-step: {self.data.label_party} adds a "
                "share and is sent what came of the sum, so it takes its own off with nobody's help; set it to 1 or "
                "more, or leave joint_noise out"
            )
        try:
            Joint(count, colluding)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def duties(self) -> Duties:
        """All publish; with ``privacy.schedule: once`` all but the label holder, which learns alone."""
        names, learner = self.data.names, self.data.label_party
        publishing = tuple(name for name in names if name != learner) if self._is_once else names
        return Duties(publishing=publishing, scoring=(learner,))

    @property
    def _is_once(self) -> bool:
        return self.privacy is not None and self.privacy.once

    @property
    def passes(self) -> Passes:
        return Passes(
            targets=self.train.batch_size,
            exchanges=("model.rounds", self.model.rounds),
            is_masked=self.model.combine.is_masked and len(self.duties.publishing) > 1,
            learns_alone=self._is_once,
        )

    @property
    def inputs(self) -> InputRules:
        unit, duties = None if self.privacy is None else self.privacy.unit, self.duties
        return InputRules(
            is_relational=self.model.local.kind.is_relational,
            is_custom=issubclass(self.model.local.kind, CustomLocal),
            per_node=duties.publishing if unit in _OF_NODES else (),
            per_edge=duties.publishing if unit in ("edge", "node-edges") else (),
            degree_rules=degree_rules(self.privacy, duties.noising),
        )

    @property
    def noise(self) -> NoiseFacts:
        joint = self.joint_noise
        return NoiseFacts(
            shared=None if joint is None else ("privacy.joint_noise", joint.colluding),
            network={"dim": self.model.dim, "local": self.model.local.model_dump(mode="json")},
        )

    @property
    def divisor(self) -> int | None:
        """What a published row is divided by where it is combined; None where it has weights."""
        return build_combine(self.model.combine).divisor(len(self.duties.publishing))

    @property
    def joint_noise(self) -> Joint | None:
        """Who makes the noise of a sum together (``privacy.plan``); None where every holder adds all of its own."""
        joint = None if self.privacy is None else self.privacy.joint_noise
        return None if joint is None else Joint(len(self.duties.publishing), joint.colluding)

    @property
    def sums_releases(self) -> bool:
        """Whether releases are whole numbers of one public grid, and are added up under masks as they are.

        Noise that is made jointly has to be; with every holder's own it takes half of the time to hide them so.
        """
        privacy = self.privacy
        if privacy is None or privacy.joint_noise is not None:
            return privacy is not None
        mechanism = MECHANISMS[privacy.mechanism]
        on_grid = mechanism.is_gaussian and mechanism.is_plain and privacy.noise_multiplier != 0
        return on_grid and not privacy.once and self.passes.is_masked and self.divisor is not None

    @property
    def sent_divisor(self) -> int:
        """What holders divide their rows by before they send them; where ``sums_releases`` the server does it."""
        return 1 if self.sums_releases else self.divisor or 1

    @property
    def left_divisor(self) -> int:
        """What the server divides the sum by: all of ``divisor`` that holders have not."""
        return self.divisor or 1 if self.sums_releases else 1

    @property
    def released_dim(self) -> int:
        """Columns of what a holder publishes in a round."""
        hops = None if self.privacy is None else self.privacy.aggregation
        return self.model.dim if hops is None else (hops.hops + hops.releases_own_rows) * hops.dim

    @property
    def gives_columns(self) -> bool:
        """Whether holders that release give the label holder their columns as they are."""
        hops = None if self.privacy is None else self.privacy.aggregation
        return hops is not None and not hops.releases_own_rows

    @property
    def publishes_once(self) -> bool:
        """Whether nothing is drawn in training, so that a step does not send what the evaluation before it sent."""
        model = self.model
        draws = model.initial.dropout or model.local.dropout or model.local.kind.draws
        return not draws and self.train.batch_size is None

    @property
    def feature_bits(self) -> int | None:
        """Fractional bits of features in the ring, where they do not depend on them; None where each holder states how
        many its features need, which tells something of every value.
        """
        stated = self.model.initial.feature_bits
        return MAX_DETECTED_BITS if stated is None and self.privacy is not None else stated


def vertical(job: JobSettings) -> VerticalJob:
    """A job as what it is; raises ``ConfigError`` where it is of another paradigm."""
    return job_of(VerticalJob, job)


def plan(job: JobSettings, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What one holder will publish; None in a job without differential privacy, and at the server, which has no data.

    Every training step publishes, the embeddings of each round and the gradients of each but the last; the label holder
    those of z_L as well. Where h^0 is computed together, every holder's embeddings, and gradients of rounds, depend on
    all holders' features: those of the others count as releases of this holder's data (their noise is as much, and
    drawn by themselves). What others make of z_L does not: it was released. With ``once`` every holder but the label
    holder releases for inference alone: training needs no more. Where noise is made jointly, all add as much as the
    label holder needs, which releases a gradient more in every step.

    ``nodes``, common to all holders, may be unknown: no more rows than that can change, and a δ that the job leaves
    open follows from it.
    """
    own, privacy = vertical(job), job.privacy
    model, rounds = own.model, own.model.rounds
    if privacy is None or party not in job.data.names:
        return None
    labelled = party == job.data.label_party
    step, inference, steps, others = dict[Channel, int](), int(not labelled), 0, 0
    if not privacy.once:
        step = {"embeddings": rounds, "gradients": rounds - 1 + int(labelled)}
        if others := len(job.data.names) - 1 if model.initial.is_joint else 0:
            step["others"] = others * (2 * rounds - 1)
        inference, steps = rounds * (1 + others), job.train.epochs
    if privacy.unit == "row":
        rows = 1
    elif privacy.aggregation is not None:
        rows = rows_moved(privacy)
    else:
        count = rows_changed_by_edge if privacy.unit == "edge" else rows_changed_by_node
        most = 1 << 62 if nodes is None else nodes  # no plan depends on it
        rows = max(1, count(privacy.degree_bound, model.local.hops, most))
    hops = model.local.hops if privacy.once else None
    alone = int(labelled and not privacy.once)
    return Plan(
        party,
        privacy,
        MappingProxyType(step),
        inference,
        steps,
        rows,
        others,
        nodes,
        hops if privacy.aggregation is None else privacy.aggregation.hops,
        sensitivity_of(privacy),
        joint=own.joint_noise,
        alone=alone,
        spare=steps * (1 - alone),
        is_summed=own.sums_releases,
    )
