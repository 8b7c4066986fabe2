"""A vertical job (VFGNN): holders of the same nodes. Every default here is the paper's where the paper names one."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final, Literal

from pydantic import Field

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import MAX_DETECTED_BITS
from veilgraph.nn.combine import build_combine
from veilgraph.nn.local.build import CustomLocal
from veilgraph.paradigms.vertical import preset
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.privacy.event import Joint
from veilgraph.privacy.plan import Channel, Plan, rows_changed_by_edge, rows_changed_by_node, rows_moved, sensitivity_of
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.job import Duties, InputRules, JobSettings, NoiseFacts, Passes, degree_rules, job_of
from veilgraph.protocol.preset import Choice, Said


class VerticalJob(JobSettings):
    """Holders have other columns, and edges of their own, of the same nodes."""

    paradigm: Literal["vertical"] = "vertical"
    model: ModelSettings = Field(ModelSettings(), description="the network")

    @classmethod
    def choices(cls, said: Said) -> Iterable[Choice]:
        return preset.choices(said)

    def _check_unused(self) -> None:
        self._check_parts()
        if self.device != "cpu" and self.passes.learns_alone:
            raise ValueError(
                f"device={self.device!r} is for paradigm='vertical' without a single release; leave it out: the others "
                "compute on the CPU"
            )
        self._check_batches()
        if self.model.initial.release is not None:
            self._check_perturbed()
        if self.label_privacy is not None:
            self._check_label_privacy(f"label_privacy.epsilon={self.label_privacy.epsilon:g}")
        if self.privacy is not None:
            (self._check_once if self.privacy.once else self._check_every_step)()
            if self.privacy.joint_noise is not None:
                self._check_joint_noise(self.privacy.joint_noise.colluding)

    def _check_label_privacy(self, said: str) -> None:
        if self.passes.learns_alone:
            raise ValueError(
                f"{said} is about what leaves the label holder, and with privacy.schedule=once nothing does: it is not "
                "needed; leave it out"
            )
        if self.privacy is not None:
            raise ValueError(
                f"{said} perturbs labels and privacy.schedule=every-step noises rows, and their ε are not "
                "counted together; leave one of them out, or take privacy.schedule=once, where no label leaves its "
                "holder"
            )
        if self.model.initial.release is not None:
            raise ValueError(
                f"{said} perturbs labels and model.initial.method=perturbed features, and their ε are not "
                "counted together; leave label_privacy out, or choose another method"
            )

    def _check_batches(self) -> None:
        if self.train.batch_size is None:
            if self.model.local.fanout is not None:
                raise ValueError(
                    f"model.local.fanout={self.model.local.fanout} bounds the neighbourhoods of batches; leave it out "
                    "or set train.batch_size"
                )
            return
        rules = (
            ("model.rounds", self.model.rounds, 1, "a second round would ask for the neighbours, and so tell edges"),
            ("model.head.logit_hops", self.model.head.logit_hops, 0, "they reach beyond a batch"),
            ("privacy", self.privacy, None, "its ledger counts releases of all rows"),
        )
        for name, value, needed, why in rules:
            if value != needed:
                raise ValueError(
                    f"train.batch_size needs {name}={'null' if needed is None else needed}: {why}; set it so or leave "
                    "batch_size out"
                )

    def _check_perturbed(self) -> None:
        if self.privacy is not None:
            raise ValueError(
                "privacy noises what a holder publishes and model.initial.method=perturbed its features, and their ε "
                "are not counted together; leave one of them out"
            )
        if self.data.feature_scaling == "standard":
            raise ValueError(
                "data.feature_scaling='standard' computes with all nodes' values, and with "
                "model.initial.method=perturbed each node perturbs its own alone; choose none, row or length"
            )

    def _check_every_step(self) -> None:
        if self.model.combine.kind.needs_weight:
            raise ValueError(
                f"privacy publishes noisy rows and model.combine.strategy={self.model.combine.strategy!r} exact "
                "degrees; choose mean, concat or regression"
            )
        if self.train.select_by != "last":
            raise ValueError(
                f"train.select_by={self.train.select_by!r} tells all parties which epochs fit the validation labels "
                "better, without noise; with privacy set select_by to last and patience to null"
            )

    def _check_once(self) -> None:
        rules = (
            ("model.rounds", self.model.rounds, 1, "a single release is a single round"),
            ("model.initial.method", self.model.initial.method, "individual", "each holder projects its own features"),
        )
        for name, value, needed, why in rules:
            if value != needed:
                raise ValueError(f"privacy.schedule=once needs {name}={needed}, not {value}: {why}")
        if not self.model.local.kind.is_fixed:
            raise ValueError(
                f"privacy.schedule=once needs model.local.model=appnp, not {self.model.local.model}: the released "
                "propagation has no trained weights"
            )
        if self.divisor is None:
            raise ValueError(
                f"privacy.schedule=once needs model.combine.strategy mean or concat, not "
                f"{self.model.combine.strategy}: what a holder releases has no trained weights and no exact degrees"
            )
        if self.model.combine.masked and len(self.duties.publishing) == 1:
            raise ValueError(
                "model.combine.masked=true hides one of several embeddings, and with privacy.schedule=once and 2 "
                "holders there is one alone; leave masked out"
            )
        privacy = self.privacy
        if privacy and privacy.unit in ("node", "node-edges") and self.data.feature_scaling == "standard":
            raise ValueError(
                f"privacy.unit={privacy.unit} needs features that are not scaled by statistics of a whole column, "
                "as data.feature_scaling=standard does: they carry one node to every row; set it to none, row or "
                "length (tables: declare ranges with nodes.features, scale), or choose unit row or edge"
            )

    def _check_joint_noise(self, colluding: int) -> None:
        if self.divisor is None:
            raise ValueError(
                f"privacy.joint_noise and model.combine.strategy={self.model.combine.strategy!r}: it weighs rows and "
                "their shares of the noise before they are summed; choose mean, or leave joint_noise out"
            )
        if self.model.initial.is_joint:
            raise ValueError(
                f"privacy.joint_noise and model.initial.method={self.model.initial.method!r}: h0 has every holder's "
                "features in it, so one row moves all P summands by the clip each, and their noise would have to be "
                "as much as each holder's own; set it to individual, or leave joint_noise out"
            )
        if not self.passes.is_masked:
            why = (
                "one holder alone publishes" if len(self.duties.publishing) == 1 else "rows go to the server one by one"
            )
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
            Joint(len(self.duties.publishing), colluding)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def duties(self) -> Duties:
        """All publish; with ``privacy.schedule: once`` all but the label holder, which learns alone."""
        names, learner = self.data.names, self.data.label_party
        releasing = () if self.model.initial.release is None else names
        return Duties(
            publishing=tuple(name for name in names if not (self._is_once and name == learner)),
            scoring=(learner,),
            releasing=releasing,
            learning=releasing,
        )

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
            per_node=duties.publishing if unit in ("node", "node-edges") else duties.releasing,
            per_edge=duties.publishing if unit in ("edge", "node-edges") else (),
            degree_rules=degree_rules(self.privacy, duties.noising),
        )

    @property
    def noise(self) -> NoiseFacts:
        joint = None if self.privacy is None else self.privacy.joint_noise
        return NoiseFacts(
            feature_release=self.model.initial.release,
            release_setting="model.initial.release",
            shared=None if joint is None else ("privacy.joint_noise", joint.colluding),
            network={"dim": self.model.dim, "local": self.model.local.model_dump(mode="json")},
        )

    @property
    def divisor(self) -> int | None:
        """What a published row is divided by where it is combined; None where it has weights."""
        return build_combine(self.model.combine).divisor(len(self.duties.publishing))

    @property
    def has_joint_noise(self) -> bool:
        """Whether holders make the noise of a sum together (``privacy.plan``)."""
        return self.privacy is not None and self.privacy.joint_noise is not None

    @property
    def joint_noise(self) -> Joint | None:
        """Who makes the noise of a sum together; None where every holder adds all of its own."""
        if self.privacy is None or self.privacy.joint_noise is None:
            return None
        return Joint(len(self.duties.publishing), self.privacy.joint_noise.colluding)

    @property
    def sums_releases(self) -> bool:
        """Whether releases are whole numbers of one public grid, and are added up under masks as they are.

        Noise that is made jointly has to be; with every holder's own it takes half of the time to hide them so.
        """
        if self.privacy is None or self.has_joint_noise:
            return self.has_joint_noise
        mechanism = MECHANISMS[self.privacy.mechanism]
        on_grid = mechanism.is_gaussian and mechanism.is_plain and self.privacy.noise_multiplier != 0
        return on_grid and not self.privacy.once and self.passes.is_masked and self.divisor is not None

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
        """Whether a training step would publish what the evaluation before it did, which is then not sent again.

        That is so where holders draw nothing in training.
        """
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


_ANY_NUMBER: Final = 1 << 62
"""Of nodes: a plan does not depend on how many there are."""


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
    model, privacy = vertical(job).model, job.privacy
    rounds = model.rounds
    if privacy is None or party not in job.data.names:
        return None
    labelled = party == job.data.label_party
    if privacy.once:
        step, inference, steps, others = dict[Channel, int](), int(not labelled), 0, 0
    else:
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
        rows = max(1, count(privacy.degree_bound, model.local.hops, _ANY_NUMBER if nodes is None else nodes))
    hops, moved = (model.local.hops if privacy.once else None), sensitivity_of(privacy)
    if privacy.aggregation is not None:
        hops = privacy.aggregation.hops
    joint, alone = vertical(job).joint_noise, int(labelled and not privacy.once)
    return Plan(
        party,
        privacy,
        MappingProxyType(step),
        inference,
        steps,
        rows,
        others,
        nodes,
        hops,
        moved,
        joint=joint,
        alone=alone,
        spare=steps * (1 - alone),
        is_summed=vertical(job).sums_releases,
    )
