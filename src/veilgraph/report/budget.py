"""What a job's differential privacy costs before it runs, and what it guarantees.

The ε of one release and the ε of all of them are different numbers; no table has one without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from rich.table import Table
from typing_extensions import override

from veilgraph.core.text import listed
from veilgraph.privacy.accountant import releases_within
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.settings import PrivacySettings, fitting_delta
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.protection import (
    ADD_UP,
    BOUND,
    NO_DELTA,
    NO_PERSON,
    OF_NODES,
    PER_RELEASE,
    RELATIONS,
    TOTAL,
    Guarantee,
    PerturbedLabels,
    PrivateTraining,
    Protection,
    counted,
    rounded_up,
)
from veilgraph.report.tables import NOTHING, table

_UNITS: Final = MappingProxyType(
    {
        "row": "one row of one published matrix: what one message says of one node",
        "edge": "one edge: everything that a holder records between one pair of nodes",
        "node": "one node's features at one holder, all columns together",
        "node-edges": "one node's features and all its edges at one holder",
    }
)
_NOT: Final = MappingProxyType(
    {
        "row": "It is not about a person, and not about an edge: what a holder has of either reaches many rows.",
        "edge": "It is not about a node's features, nor about labels.",
        "node": "It is not about edges, nor about labels.",
        "node-edges": "It is not about labels, nor about which nodes there are.",
    }
)
_NOISELESS: Final = (
    "Clipping without noise protects nothing: noise_multiplier is 0, and ε is infinite, as without differential "
    "privacy."
)
_NONE: Final = (
    "This job has no differential privacy. What parties receive is not noised, and no number bounds what they can "
    "infer from it: per-release ε and total ε are infinite for every holder."
)


def protection_of(job: JobSettings, nodes: int | None = None) -> Protection[Any]:
    """The differential privacy of a job, one without any included; ``nodes``: common to all holders, if known."""
    own: Protection[Any] | None = paradigm_of(job).guarantee.protection(job, nodes)
    if own is not None:
        return own
    if job.privacy is not None:
        return PublishedRows(job, job.privacy, nodes)
    if job.label_privacy is not None:
        return PerturbedLabels(job, job.label_privacy, nodes)
    if job.training_plan is not None:
        return PrivateTraining(job, job.training_plan, nodes)
    return NoProtection(job, None, nodes)


def plans_of(job: JobSettings, nodes: int | None = None) -> dict[str, Plan]:
    """Holders' names → their plan: the label holder's, and the others', which are all alike."""
    labelled = job.data.label_party
    others = [name for name in job.data.names if name != labelled]
    found = {
        f"{labelled} (label holder)": paradigm_of(job).privacy.plan(job, labelled, nodes),
        ", ".join(others): paradigm_of(job).privacy.plan(job, others[0], nodes),
    }
    return {name: planned for name, planned in found.items() if planned is not None}


def meaning(privacy: PrivacySettings, delta: float | None) -> str:
    """What an ε of published rows is about."""
    what = NO_PERSON if privacy.unit == "row" else ""
    return f"{OF_NODES if delta is None else f'δ = {delta:g}'}, unit {privacy.unit}{what}, {privacy.relation}"


class NoProtection(Protection[None]):
    """A job without differential privacy, which may be asked what noise it would need."""

    @override
    def table(self) -> None:
        return None

    @override
    def notes(self) -> list[str]:
        return [
            f"no differential privacy: nothing is clipped or noised, and {PER_RELEASE} and {TOTAL} of every holder "
            "are infinite",
            *paradigm_of(self.job).guarantee.privacy_notes(self.job),
        ]

    @override
    def facts(self) -> Mapping[str, Any]:
        return {}

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        return Guarantee("", _NONE)


class PublishedRows(Protection[PrivacySettings]):
    """``privacy``: holders clip what they publish and add noise."""

    @override
    def table(self) -> Table:
        plans, against = plans_of(self.job, self.nodes), paradigm_of(self.job).guarantee.threat_model(self.job)
        columns = [_shown(planned, against) for planned in plans.values()]
        return table(
            "Differential privacy",
            ("", *(f">{name}" for name in plans)),
            ((heading, *(column[heading] for column in columns)) for heading in columns[0]),
            caption="Noise over clip: standard deviation (laplace: scale) / C. Its deviation is that of one entry.",
            bold=lambda row: row[0] in (PER_RELEASE, TOTAL),
        )

    @override
    def notes(self) -> list[str]:
        job, privacy, paradigm = self.job, self.settings, paradigm_of(self.job)
        plans = list(plans_of(job, self.nodes).values())
        notes = [paradigm.guarantee.noise_source(job), *self._delta_notes()]
        if privacy.unit == "row":
            notes.append(f"ε is about one published row{NO_PERSON}; for these there are privacy.unit=node and edge")
        if any(planned.multiplier == 0 and planned.releases for planned in plans):
            notes.append(
                "privacy.noise_multiplier=0: rows are clipped and nothing is added, so there is no differential privacy"
            )
        notes += paradigm.guarantee.privacy_notes(job)
        if privacy.aggregation is not None:
            planned = next(planned for planned in plans if planned.releases)
            matrices = "noisy matrix" if planned.matrices == 1 else f"{planned.matrices} noisy matrices"
            what = "node with all its edges" if privacy.unit == "node-edges" else privacy.unit
            if not self._is_pure:
                notes.append(
                    f"noise is in every hop: one {what} moves the {matrices} of a release by at most "
                    f"{planned.clips:.4g} together, where every row has length 1 before a hop"
                )
            if privacy.aggregation.own_rows == "clear":
                notes.append(
                    f"privacy.aggregation.own_rows=clear: {job.data.label_party} is given the others' columns as they "
                    "are, so of features ε is infinite"
                )
        if privacy.unit in ("edge", "node-edges"):
            notes.append(
                "a column that is made of edges, as a number of payments, shows them at any ε: a party file names such "
                "columns (nodes.columns_from_edges), and its holder refuses the job while one is a feature"
            )
        if privacy.unit == "node-edges":
            notes.append(
                f"a holder whose graph has a node of more than privacy.degree_bound={privacy.degree_bound} neighbours "
                "refuses before it releases anything"
            )
        if privacy.unit != "row" and privacy.aggregation is None and self.nodes is None:
            notes.append(
                f"rows that one {privacy.unit} changes: no more than there are common nodes, whose number is not known "
                "here; with fewer, noise that follows from ε is less, and ε that follows from noise is"
            )
        if (limit := privacy.epsilon_total) is not None:
            notes.append(f"privacy.epsilon_total={limit:g} {_room(plans, limit)}")
        return notes

    @property
    def _is_pure(self) -> bool:
        return self.job.noise.counts_votes

    def _delta_notes(self) -> list[str]:
        if self._is_pure:
            return ["ε is pure, of two-sided geometric noise on whole numbers: δ is 0, and the bound always holds"]
        if self.settings.delta is None:
            rule = (
                "privacy.delta is left out and follows from N, the number of common nodes: the largest power of ten "
                f"that is at most 1/(10·N), and at most {fitting_delta():g}"
            )
            if self.nodes is None:
                rule += (
                    ", which is taken here; with N above 1,000 it is less, and noise or ε more: --nodes N shows them"
                )
            return [rule]
        if self.nodes is None:
            return [doubt] if (doubt := delta_in_doubt(self.job)) else []
        refused = delta_too_large(self.job, self.nodes)
        return [f"every holder refuses the job: {refused}"] if refused else []

    @override
    def facts(self) -> Mapping[str, Any]:
        return {
            name: {
                "schedule": planned.settings.schedule,
                "mechanism": planned.mechanism_name,
                "releases_per_step": dict(planned.step),
                "steps": planned.steps,
                "releases_per_inference": planned.inference,
                "inferences": planned.inferences,
                "releases": planned.releases,
                "noise_multiplier": planned.multiplier,
                "unit": planned.settings.unit,
                "relation": planned.settings.relation,
                "rows": planned.rows,
                **({} if planned.moved is None else {"clips": planned.moved}),
                **({} if planned.joint is None else {"joint_noise": asdict(planned.joint)}),
                "delta": planned.delta,
                "epsilon_release": planned.epsilon_release,
                "epsilon_total": planned.epsilon_bound,
                "holds_against": paradigm_of(self.job).guarantee.threat_model(self.job),
            }
            for name, planned in plans_of(self.job, self.nodes).items()
        }

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        job, settings, paradigm = self.job, self.settings, paradigm_of(self.job)
        against, known = paradigm.guarantee.threat_model(job), 0.0 if self._is_pure else settings.delta or delta
        mechanism = settings.mechanism
        if self._is_pure:
            mechanism, releases = "two-sided geometric noise", "one count, in which a unit moves one entry by 1"
        elif settings.aggregation is not None:
            releases = f"one release, with noise in each of its hops ({settings.aggregation.hops})"
        else:
            releases = "one release" if settings.once else "a release in every step"
        about = (
            ("unit", _UNITS[settings.unit]),
            ("neighbouring relation", f"{settings.relation}: the unit {RELATIONS[settings.relation]}"),
            ("δ", OF_NODES.removeprefix("δ = ") if known is None else f"{known:g}" if known else NO_DELTA),
            ("mechanism", f"{mechanism}, {releases}"),
            ("holds against", against),
        )
        alone = f"{job.data.label_party}, the label holder, publishes nothing before it hands on predictions."
        handed = "" if job.duties.summing else ", and predictions and scores that the label holder hands on"
        limits = (
            _NOT[settings.unit],
            *paradigm.guarantee.privacy_limits(job),
            *([alone] if settings.once and not job.duties.summing else []),
            ADD_UP,
            "Not counted: how many nodes and columns there are, which nodes are common, sizes and times of messages, "
            f"choices made by looking at data{handed}.",
        )
        what = NO_PERSON if settings.unit == "row" else ""
        whose = listed(job.duties.summing) if job.duties.summing else "every holder"
        at = OF_NODES if known is None else f"δ = {known:g}"
        scope = f"of {whose}'s {settings.unit}s{what}, {settings.relation}, at {at}, against {against}"
        return Guarantee(scope, _NOISELESS if settings.noise_multiplier == 0 else BOUND, about, limits)


def _shown(planned: Plan, against: str) -> dict[str, str]:
    privacy, every, gradients = planned.settings, planned.releases, planned.step.get("gradients", 0)

    def if_any(releases: int, text: str) -> str:
        return text if releases else NOTHING

    def deviation(channel: Channel, *, alone: bool = False) -> str:
        """Of the noise on one entry; ``alone``: of the label holder's gradients, those that are in no sum."""
        return f"{planned.deviation(channel, alone=alone):.4g}"

    changed = f"{planned.rows:,}" if privacy.unit == "row" else f"at most {planned.rows:,}"
    hops = {} if privacy.aggregation is None else {"noisy matrices": if_any(every, f"{planned.matrices}")}
    joint = {}
    if (made_by := planned.joint) is not None:
        joint["noise made by"] = if_any(every, f"any {made_by.honest} of {made_by.holders}")
    total = rounded_up(planned.epsilon_total) if _has_room(planned) else f"at most {rounded_up(planned.epsilon_bound)}"
    return {
        "schedule": privacy.schedule,
        "releases per training step": counted(planned.step),
        "training steps": if_any(planned.per_step, f"{planned.steps:,}"),
        "releases per inference": f"{planned.inference}",
        "inferences": f"{planned.inferences:,}",
        "releases in all": f"{planned.releases:,}",
        "mechanism": if_any(every, planned.mechanism_name),
        **hops,
        **joint,
        "clip C of embeddings": if_any(every, f"{privacy.clip:g}"),
        "clip C of gradients": if_any(gradients, f"{privacy.gradient_clip:g}"),
        "noise over clip": if_any(every, f"{planned.multiplier:.4g}"),
        "its deviation in embeddings": if_any(every, deviation("embeddings")),
        "its deviation in gradients": if_any(gradients, deviation("gradients", alone=planned.alone > 0)),
        "unit": privacy.unit,
        "neighbours": privacy.relation,
        "rows that a unit changes": if_any(every, changed),
        "δ": f"{planned.delta:g}",
        PER_RELEASE: rounded_up(planned.epsilon_release),
        TOTAL: total,
        "holds against": against,
    }


def _has_room(planned: Plan) -> bool:
    return planned.epsilon_total <= planned.epsilon_bound


def _room(plans: Sequence[Plan], limit: float) -> str:
    """How far ``epsilon_total`` lets the job go: to where it ends for the first holder."""
    if all(map(_has_room, plans)):
        return "has room for all that the job foresees"
    counts = [
        (of, of.releases if of.event is None else releases_within(of.event, limit, of.delta, most=of.releases))
        for of in plans
        if of.releases
    ]
    steps = min(min(planned.steps, planned.affordable_steps(count)) for planned, count in counts)
    foreseen = counts[0][0]
    if any(count < planned.inference for planned, count in counts) or (foreseen.steps and not steps):
        what = "a training step beside the inferences" if foreseen.steps else "a single inference"
        return f"has no room for {what}, and the job would end with an error: raise it or add more noise"
    text = f"ends training after step {steps:,} of {foreseen.steps:,}"
    if steps == foreseen.steps:
        text = "has room for all of the training"
    if foreseen.settings.predictions:
        left = min((count - steps * planned.per_step) // planned.inference - 1 for planned, count in counts)
        text += f", with room for {left:,} of {foreseen.settings.predictions:,} later predictions"
    everything = rounded_up(max(planned.epsilon_total for planned in plans))
    return f"{text}; all that the job foresees would have a {TOTAL} of {everything}"
