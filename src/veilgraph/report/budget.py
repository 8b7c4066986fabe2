"""Differential privacy for the terminal: what a job will cost, what noise a total ε needs, and what a run has spent.

The ε of one release and the ε of all of them are different numbers; no table has one without the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from rich.table import Table
from rich.text import Text

from veilgraph.core.errors import RunError
from veilgraph.core.settings import first_problem
from veilgraph.core.types import PartyId
from veilgraph.privacy import accountant
from veilgraph.privacy.accountant import releases_within
from veilgraph.privacy.local.settings import FeatureReleaseSettings
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.settings import MECHANISMS, PrivacySettings, fitting_delta
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.labels import label_notes
from veilgraph.report.releases import release_notes
from veilgraph.run.ledgers import LEDGER_SUMMARY
from veilgraph.run.run_directory import Record, RunDirectory

_PER_RELEASE: Final = "per-release ε"
_TOTAL: Final = "total ε"
_NOTHING: Final = "–"
_DIGITS: Final = 4
NO_PERSON: Final = " (not a person, not an edge)"
"""Said wherever an ε is shown that is about one published row."""
OF_NODES: Final = "δ ≤ 1/(10·N), of N common nodes"
"""Said of a δ that follows from N, where N is not known."""
_ROUNDING: Final = 1 - 1e-9
"""What calibration adds to be safe is not rounded up to another digit."""


class _Spent(BaseModel):
    releases: dict[str, int]
    epsilon_release: float | None
    epsilon_total: float | None
    delta: float | None = None


def budget_table(job: JobSettings, nodes: int | None = None) -> Table:
    """What every holder publishes, with how much noise, and what that costs.

    Args:
        job: with differential privacy.
        nodes: common to all holders; None where that is not known.
    """
    table = Table(title="Differential privacy", title_justify="left", caption_justify="left")
    table.caption = "Noise over clip: standard deviation (laplace: scale) / C. Its deviation is that of one entry."
    table.add_column("")
    columns = []
    for name, planned in _plans(job, nodes).items():
        table.add_column(Text(name), justify="right")
        columns.append(_facts(planned, holds_against(job)))
    for heading in columns[0]:
        style = "bold" if heading in (_PER_RELEASE, _TOTAL) else None
        table.add_row(heading, *(column[heading] for column in columns), style=style)
    return table


def budget_notes(job: JobSettings, nodes: int | None = None) -> list[str]:
    """What must be said beside the table, a line each; the arguments are ``budget_table``'s."""
    privacy = job.privacy
    if privacy is None and job.feature_release is not None:
        return release_notes(job, job.feature_release, nodes)
    if job.label_privacy is not None:
        return label_notes(job, job.label_privacy)
    if privacy is None:
        return [
            f"no differential privacy: nothing is clipped or noised, and {_PER_RELEASE} and {_TOTAL} of every holder "
            "are infinite",
            *paradigm_of(job).privacy_notes(job),
        ]
    plans = _plans(job, nodes)
    notes = [paradigm_of(job).whose_noise(job)]
    notes += _delta_notes(job, nodes)
    if privacy.unit == "row":
        notes.append(f"ε is about one published row{NO_PERSON}; for these there are privacy.unit=node and edge")
    if any(planned.multiplier == 0 and planned.releases for planned in plans.values()):
        notes.append(
            "privacy.noise_multiplier=0: rows are clipped and nothing is added, so there is no differential privacy"
        )
    notes += paradigm_of(job).privacy_notes(job)
    if privacy.aggregation is not None:
        planned = next(planned for planned in plans.values() if planned.releases)
        matrices = "noisy matrix" if planned.matrices == 1 else f"{planned.matrices} noisy matrices"
        what = "node with all its edges" if privacy.unit == "node-edges" else privacy.unit
        notes.append(
            f"noise is in every hop: one {what} moves the {matrices} of a release by at most {planned.clips:.4g} "
            "together, where every row has length 1 before a hop"
        )
        if privacy.aggregation.own_rows == "clear":
            notes.append(
                f"privacy.aggregation.own_rows=clear: {job.data.label_party} is given the others' columns as they are, "
                "so of features ε is infinite"
            )
    if privacy.unit == "node-edges":
        notes.append(
            f"a holder whose graph has a node of more than privacy.degree_bound={privacy.degree_bound} neighbours "
            "refuses before it releases anything"
        )
    if privacy.unit != "row" and privacy.aggregation is None and nodes is None:
        notes.append(
            f"rows that one {privacy.unit} changes: no more than there are common nodes, whose number is not known "
            "here; with fewer, noise that follows from ε is less, and ε that follows from noise is"
        )
    if privacy.epsilon_total is not None:
        notes.append(
            f"privacy.epsilon_total={privacy.epsilon_total:g} {_room(list(plans.values()), privacy.epsilon_total)}"
        )
    return notes


def _delta_notes(job: JobSettings, nodes: int | None) -> list[str]:
    """Which δ the figures are at, and when it is refused."""
    if job.privacy is not None and job.privacy.delta is None:
        rule = (
            "privacy.delta is left out and follows from N, the number of common nodes: the largest power of ten that "
            f"is at most 1/(10·N), and at most {fitting_delta():g}"
        )
        if nodes is None:
            rule += ", which is taken here; with N above 1,000 it is less, and noise or ε more: --nodes N shows them"
        return [rule]
    said = delta_in_doubt(job) if nodes is None else delta_too_large(job, nodes)
    return [said if nodes is None else f"every holder refuses the job: {said}"] if said else []


@dataclass(frozen=True)
class Horizon:
    """What a total is to last for.

    Attributes:
        jobs: how many jobs like this one, each with data that changed.
        predictions: how many predictions with data that changed, beside those that each job foresees.
    """

    jobs: int = 1
    predictions: int = 0

    def releases(self, planned: Plan) -> int:
        """Of a holder in all that time."""
        return self.jobs * planned.releases + self.predictions * planned.inference

    def __str__(self) -> str:
        later = f" and {self.predictions:,} more predictions" if self.predictions else ""
        return f"{self.jobs:,} job{'s' if self.jobs > 1 else ''}{later}, each of changed data"


def noise_table(
    job: JobSettings, totals: Sequence[float], nodes: int | None = None, horizon: Horizon | None = None
) -> Table | None:
    """The noise with which all that a job foresees costs a wanted total ε; None if the job can have no such noise.

    Args:
        job: with differential privacy, or as it would be with it.
        totals: each finite and above 0.
        nodes: common to all holders; None where that is not known.
        horizon: what the total is to last for; None: the job alone.

    Raises:
        ConfigError: a total needs less noise than a mechanism can add.
    """
    plans, lasting = _that_release(job, nodes), horizon or Horizon()
    if not plans:
        return None
    table = Table(title="Noise that a total needs", title_justify="left", caption_justify="left")
    first = plans[0][-1]
    table.caption = f"Mechanism {first.settings.mechanism}, noise rounded up. {_about(first.settings, first.delta)}."
    if lasting != Horizon():
        table.caption = f"For {lasting}. {table.caption}"
    for heading in (_TOTAL, "schedule", "holder", "releases", "noise over clip", _PER_RELEASE):
        table.add_column(heading, justify="left" if heading in ("schedule", "holder") else "right")
    for total in totals:
        shown = f"{total:g}"
        for schedule, name, planned in plans:
            wanted = _of_total(planned, total, lasting)
            noise, epsilon = _up(wanted.multiplier), _up(wanted.epsilon_release)
            table.add_row(shown, schedule, Text(name), f"{lasting.releases(planned):,}", noise, epsilon)
            shown = ""
    return table


def budget_facts(job: JobSettings, nodes: int | None = None) -> dict[str, Record]:
    """What ``budget_table`` shows, for programs: an ε that is None is infinite. The arguments are its."""
    return {
        name: {
            "schedule": planned.settings.schedule,
            "mechanism": planned.settings.mechanism,
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
            "holds_against": holds_against(job),
        }
        for name, planned in _plans(job, nodes).items()
    }


def noise_facts(
    job: JobSettings, totals: Sequence[float], nodes: int | None = None, horizon: Horizon | None = None
) -> list[Record]:
    """What ``noise_table`` shows, for programs; the arguments are its."""
    lasting = horizon or Horizon()
    return [
        {
            "epsilon_total": total,
            "schedule": schedule,
            "holder": name,
            "releases": lasting.releases(planned),
            "noise_multiplier": (wanted := _of_total(planned, total, lasting)).multiplier,
            "epsilon_release": wanted.epsilon_release,
        }
        for total in totals
        for schedule, name, planned in _that_release(job, nodes)
    ]


def job_epsilons(
    job: JobSettings, totals: Sequence[float], nodes: int | None = None, horizon: Horizon | None = None
) -> dict[float, float]:
    """Total ε → that of a single job with the noise that it needs, of the job's own schedule; the arguments are
    ``noise_table``'s.
    """
    schedule = None if job.privacy is None else job.privacy.schedule
    plans = [planned for each, _, planned in _that_release(job, nodes) if each == schedule]
    return {
        total: _of_total(planned, total, horizon or Horizon()).epsilon_total for planned in plans for total in totals
    }


def horizon_note(job: JobSettings, totals: Sequence[float], nodes: int | None, horizon: Horizon) -> str:
    """Which totals such jobs fit with the noise that the job has; empty for the job alone, or without any noise.

    The arguments are ``noise_table``'s.
    """
    plans = [] if job.privacy is None or horizon == Horizon() else _plans(job, nodes).values()
    needed = [
        accountant.total({of.event: horizon.releases(of)}, of.delta)
        for of in plans
        if of.releases and of.event is not None
    ]
    if not needed:
        return ""
    fits = [f"{each:g}" for each in totals if max(needed) <= each]
    return (
        f"with the noise that the job has, {horizon} come to a {_TOTAL} of {_up(max(needed))}, which fits "
        f"{'a total of ' + ', '.join(fits) if fits else 'none of the totals asked about'}"
    )


def _that_release(job: JobSettings, nodes: int | None) -> list[tuple[str, str, Plan]]:
    """Schedule, holder and plan, of every schedule that the job can have and every holder that releases with it."""
    return [
        (schedule, name, planned)
        for schedule, variant in _variants(job)[0].items()
        for name, planned in _plans(variant, nodes).items()
        if planned.releases
    ]


def _of_total(planned: Plan, total: float, horizon: Horizon) -> Plan:
    """With the noise by which everything until the horizon has that total."""
    mechanism, privacy = MECHANISMS[planned.settings.mechanism], planned.settings
    releases = horizon.releases(planned) + (horizon.jobs * planned.spare if planned.joint else 0)
    noise = mechanism.for_total(total, planned.delta, releases, planned.clips)
    update = {"epsilon_total": total, "noise_multiplier": noise, "epsilon_step": None}
    return replace(planned, settings=privacy.model_copy(update=update))


def noise_notes(job: JobSettings) -> list[str]:
    """Why the job cannot have a schedule as it is, what else must change for one, and who publishes nothing."""
    variants, notes = _variants(job)
    if "every-step" in variants and job.train.select_by != "last":
        notes.append("schedule every-step needs train.select_by=last and train.patience=null as well")
    if "once" in variants and not job.summing:
        notes.append(f"with schedule once {job.data.label_party}, the label holder, publishes nothing: {_TOTAL} is 0")
    return notes


def spent_table(spent: Mapping[PartyId, Record], job: JobSettings) -> Table:
    """What the releases of a run have cost so far.

    Args:
        spent: holder → as in ``summary.json`` under ``privacy``; an infinite ε is None.
        job: of the run.
    """
    table = Table(title="Differential privacy", title_justify="left", caption_justify="left")
    for heading in ("holder", "releases", _PER_RELEASE, _TOTAL):
        table.add_column(heading, justify="left" if heading == "holder" else "right")
    for party, record in spent.items():
        epsilons = [epsilon_text(record[name]) for name in ("epsilon_release", "epsilon_total")]
        releases = "not counted" if record["epsilon_total"] is None else _counts(record["releases"])
        table.add_row(Text(party), releases, *epsilons)
    if job.privacy is not None:
        deltas = [record["delta"] for record in spent.values() if record.get("delta") is not None]
        delta = max(deltas, default=job.privacy.delta)
        table.caption = f"{_about(job.privacy, delta)}. Holds against {holds_against(job)}."
        if job.feature_release is not None:
            table.caption = f"{', '.join(job.summing)}: {table.caption}\nThe others: {_of_nodes(job.feature_release)}"
    elif job.feature_release is not None:
        table.caption = _of_nodes(job.feature_release)
    elif job.training_plan is not None:
        given = job.training_plan.settings
        table.caption = (
            f"δ = {given.delta:g}, unit: a node's features, label and all its edges, {given.neighbours}. Holds "
            f"against {job.training_plan.against}."
        )
    elif job.label_privacy is not None:
        table.caption = "Unit: one label, replacement; features and edges are not noised. Holds against everybody."
    return table


def passing_note(spent: Mapping[PartyId, Record]) -> str:
    """Whose releases are in the ledger of their run alone, so that nothing counts those of other runs; empty for none.

    Args:
        spent: as for ``spent_table``; who released nothing, or what was not counted, is left out.
    """
    alone = [party for party, each in spent.items() if each["epsilon_total"] and each.get("lasting") is False]
    if not alone:
        return ""
    return (
        f"In the ledger of this run alone: {', '.join(alone)}. Another run on the same data costs as much again, and "
        "nothing counts both; a ledger for life does (docs/privacy.md#one-budget-for-life)."
    )


def worth(summary: Record, job: JobSettings) -> str:
    """Whether what was released, once, has changed a prediction; empty where a run cannot tell.

    Args:
        summary: of the run.
        job: of the run.
    """
    alone, holder = summary.get("without_releases"), job.data.label_party
    if alone is None:
        return ""
    if alone["changed"]:
        return f"The releases changed {alone['changed']:,} of {summary['nodes']:,} predictions of {holder}."
    if job.summing:
        return (
            f"The release changed nothing: {holder} predicts of every node what it would without an edge; noise has "
            "left nothing in the sums over them. Allow a larger ε, or fewer hops"
        )
    return (
        f"The release changed nothing: {holder} is alone, and predicts of every node what it would without the others; "
        "noise has left no evidence in their rows. Allow a larger ε, or a unit that changes fewer rows"
    )


def read_spent(run: RunDirectory) -> dict[PartyId, Record]:
    """What each holder's ledger came to after its last piece of work; holders without a word of it are left out.

    Raises:
        RunError: a file is damaged.
    """
    found = {}
    for party in run.settings.data.names:
        path = run.party_path(party) / LEDGER_SUMMARY
        try:
            found[party] = _Spent.model_validate_json(path.read_bytes()).model_dump()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: damaged ({error}); a new prediction writes it anew from the ledger") from error
    return found


def holds_against(job: JobSettings) -> str:
    """Against whom a holder's ε holds."""
    return paradigm_of(job).holds_against(job)


def epsilon_text(epsilon: float | None) -> str:
    """An ε as ledgers are summed up with it, None for infinite: four digits, rounded up."""
    return "infinite" if epsilon is None else _up(epsilon)


def _plans(job: JobSettings, nodes: int | None = None) -> dict[str, Plan]:
    """Holders' names → their plan: the label holder's, and the others', which are all alike."""
    labelled = job.data.label_party
    others = [name for name in job.data.names if name != labelled]
    found = {
        f"{labelled} (label holder)": paradigm_of(job).plan(job, labelled, nodes),
        ", ".join(others): paradigm_of(job).plan(job, others[0], nodes),
    }
    return {name: planned for name, planned in found.items() if planned is not None}


def _facts(planned: Plan, against: str) -> dict[str, str]:
    privacy = planned.settings

    def if_any(releases: int, text: str) -> str:
        return text if releases else _NOTHING

    every, gradients = planned.releases, planned.step.get("gradients", 0)
    changed = f"{planned.rows:,}" if privacy.unit == "row" else f"at most {planned.rows:,}"
    hops = {} if privacy.aggregation is None else {"noisy matrices": if_any(every, f"{planned.matrices}")}
    joint = {}
    if (made_by := planned.joint) is not None:
        joint["noise made by"] = if_any(every, f"any {made_by.honest} of {made_by.holders}")
    return {
        "schedule": privacy.schedule,
        "releases per training step": _counts(planned.step),
        "training steps": if_any(planned.per_step, f"{planned.steps:,}"),
        "releases per inference": f"{planned.inference}",
        "inferences": f"{planned.inferences:,}",
        "releases in all": f"{planned.releases:,}",
        "mechanism": if_any(every, privacy.mechanism),
        **hops,
        **joint,
        "clip C of embeddings": if_any(every, f"{privacy.clip:g}"),
        "clip C of gradients": if_any(gradients, f"{privacy.gradient_clip:g}"),
        "noise over clip": if_any(every, f"{planned.multiplier:.4g}"),
        "its deviation in embeddings": if_any(every, _deviation(planned, "embeddings")),
        "its deviation in gradients": if_any(gradients, _deviation(planned, "gradients", alone=planned.alone > 0)),
        "unit": privacy.unit,
        "neighbours": privacy.relation,
        "rows that a unit changes": if_any(every, changed),
        "δ": f"{planned.delta:g}",
        _PER_RELEASE: _up(planned.epsilon_release),
        _TOTAL: _up(planned.epsilon_total) if _has_room(planned) else f"at most {_up(planned.epsilon_bound)}",
        "holds against": against,
    }


def _deviation(planned: Plan, channel: Channel, *, alone: bool = False) -> str:
    """Of the noise on one entry; ``alone``: of the label holder's gradients, those that are in no sum."""
    return f"{math.sqrt(planned.mechanism(channel, alone=alone).variance) if planned.multiplier else 0.0:.4g}"


def _has_room(planned: Plan) -> bool:
    return planned.epsilon_total <= planned.epsilon_bound


def _room(plans: Sequence[Plan], limit: float) -> str:
    """How far ``epsilon_total`` lets the job go: to where it ends for the first holder."""
    if all(map(_has_room, plans)):
        return "has room for all that the job foresees"
    counts = [(planned, _releases_that_fit(planned, limit)) for planned in plans if planned.releases]
    steps = min(min(planned.steps, planned.affordable_steps(count)) for planned, count in counts)
    foreseen = counts[0][0]
    if any(count < planned.inference for planned, count in counts) or (foreseen.steps and not steps):
        what = "a training step beside the inferences" if foreseen.steps else "a single inference"
        return f"has no room for {what}, and the job would end with an error: raise it or add more noise"
    text = (
        "has room for all of the training"
        if steps == foreseen.steps
        else (f"ends training after step {steps:,} of {foreseen.steps:,}")
    )
    if foreseen.settings.predictions:
        left = min((count - steps * planned.per_step) // planned.inference - 1 for planned, count in counts)
        text += f", with room for {left:,} of {foreseen.settings.predictions:,} later predictions"
    return f"{text}; all that the job foresees would have a {_TOTAL} of {_up(max(p.epsilon_total for p in plans))}"


def _releases_that_fit(planned: Plan, limit: float) -> int:
    if planned.event is None:
        return planned.releases
    return releases_within(planned.event, limit, planned.delta, most=planned.releases)


def _variants(job: JobSettings) -> tuple[dict[str, JobSettings], list[str]]:
    """Schedule → the job with it, its noise from ``epsilon_total``; and why the job cannot have another one."""
    found: dict[str, JobSettings] = {}
    reasons = []
    for schedule in ("every-step", "once"):
        content = job.model_dump(mode="json")
        noise = {"noise_multiplier": None, "epsilon_step": None, "epsilon_total": 1.0, "calibration": "analytic"}
        content["privacy"] = {**(content["privacy"] or paradigm_of(job).to_be_private()), **noise, "schedule": schedule}
        if schedule == "every-step":
            content["train"].update(select_by="last", patience=None)
        try:
            found[schedule] = type(job).model_validate(content)
        except ValidationError as error:
            reasons.append(f"schedule {schedule} is not for this job: {first_problem(error).removeprefix('job: ')}")
    return found, reasons


def _about(privacy: PrivacySettings, delta: float | None) -> str:
    """What an ε is about."""
    at = OF_NODES if delta is None else f"δ = {delta:g}"
    what = NO_PERSON if privacy.unit == "row" else ""
    return f"{at}, unit {privacy.unit}{what}, {privacy.relation}"


def _of_nodes(release: FeatureReleaseSettings) -> str:
    about = "" if release.delta is None else f"δ = {release.delta:g}, "
    return f"{about}unit: what one node releases at one holder, replacement. Holds against everybody."


def _counts(releases: Mapping[Any, int]) -> str:
    return ", ".join(f"{channel} {count:,}" for channel, count in releases.items() if count) or "none"


def _up(number: float) -> str:
    """Four digits, rounded up: an ε is never shown smaller, nor noise that is needed less, than it is."""
    if math.isinf(number):
        return "infinite"
    rounded = Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal_from_float(number * _ROUNDING)
    return f"{float(rounded):.{_DIGITS}g}" if 1e-4 <= number < 1e4 or number == 0 else f"{float(rounded):g}"
