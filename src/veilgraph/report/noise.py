"""What noise a total ε needs, and for how many jobs and predictions a total lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from veilgraph.core.settings import first_problem
from veilgraph.privacy.lifetime import costs
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.settings import MECHANISMS
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.epsilon import PER_RELEASE, TOTAL, meaning, plans_of, rounded_up
from veilgraph.run.run_directory import Record


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
    table.caption = f"Mechanism {first.settings.mechanism}, noise rounded up. {meaning(first.settings, first.delta)}."
    if lasting != Horizon():
        table.caption = f"For {lasting}. {table.caption}"
    for heading in (TOTAL, "schedule", "holder", "releases", "noise over clip", PER_RELEASE):
        table.add_column(heading, justify="left" if heading in ("schedule", "holder") else "right")
    for total in totals:
        shown = f"{total:g}"
        for schedule, name, planned in plans:
            wanted = _of_total(planned, total, lasting)
            noise, epsilon = rounded_up(wanted.multiplier), rounded_up(wanted.epsilon_release)
            table.add_row(shown, schedule, Text(name), f"{lasting.releases(planned):,}", noise, epsilon)
            shown = ""
    return table


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
    plans = [] if job.privacy is None or horizon == Horizon() else plans_of(job, nodes).values()
    needed = [
        costs.epsilon(costs.price(of.event, horizon.releases(of), of.delta), of.delta)
        for of in plans
        if of.releases and of.event is not None
    ]
    if not needed:
        return ""
    fits = [f"{each:g}" for each in totals if max(needed) <= each]
    return (
        f"with the noise that the job has, {horizon} come to a {TOTAL} of {rounded_up(max(needed))}, which fits "
        f"{'a total of ' + ', '.join(fits) if fits else 'none of the totals asked about'}"
    )


def noise_notes(job: JobSettings) -> list[str]:
    """Why the job cannot have a schedule as it is, what else must change for one, and who publishes nothing."""
    variants, notes = _variants(job)
    if "every-step" in variants and job.train.select_by != "last":
        notes.append("schedule every-step needs train.select_by=last and train.patience=null as well")
    if "once" in variants and not job.summing:
        notes.append(f"with schedule once {job.data.label_party}, the label holder, publishes nothing: {TOTAL} is 0")
    return notes


def _that_release(job: JobSettings, nodes: int | None) -> list[tuple[str, str, Plan]]:
    """Schedule, holder and plan, of every schedule that the job can have and every holder that releases with it."""
    return [
        (schedule, name, planned)
        for schedule, variant in _variants(job)[0].items()
        for name, planned in plans_of(variant, nodes).items()
        if planned.releases
    ]


def _of_total(planned: Plan, total: float, horizon: Horizon) -> Plan:
    """With the noise by which everything until the horizon has that total.

    Of several jobs a ledger for life adds up pure ε, which a job by itself composes numerically.
    """
    mechanism, privacy = MECHANISMS[planned.settings.mechanism], planned.settings
    releases = horizon.releases(planned) + (horizon.jobs * planned.spare if planned.joint else 0)
    if mechanism.is_gaussian or horizon == Horizon():
        noise = mechanism.for_total(total, planned.delta, releases, planned.clips)
    else:
        noise = mechanism.for_one(total / releases, planned.delta, planned.clips, privacy.calibration)
    update = {"epsilon_total": total, "noise_multiplier": noise, "epsilon_step": None}
    return replace(planned, settings=privacy.model_copy(update=update))


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
