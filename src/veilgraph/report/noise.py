"""What noise a total ε needs, for how many jobs a total lasts, and what accuracy to expect of it.

What to expect was measured on public data, never on anybody's own. ``expected.json`` has the curves: ``python -m
research.expected`` makes it of what was measured (docs/gap.json, docs/label-privacy.json, docs/sealed-privacy.json,
docs/private-averaging.json). Between two ε that were measured the curve is a line in log ε. Below the least it is the
control at an ε of next to nothing, above the largest the figure there: neither promises more than was seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Final, cast

import numpy as np
from pydantic import ValidationError
from rich.table import Table

from veilgraph.core.files import adapter_of
from veilgraph.core.settings import first_problem
from veilgraph.privacy import lifetime_costs
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.settings import OWN_SHARE
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import meaning, plans_of
from veilgraph.report.protection import PER_RELEASE, TOTAL, epsilon_text, rounded_up
from veilgraph.report.tables import table
from veilgraph.runtime.store.run_directory import Record

_SLACK: Final = 1e-3  # noise is rounded up, so the ε of a job is a little below the one that is asked for
_MEASURED: Final = (("edge", "replacement"), ("node-edges", "zero-out"))
CURVES: Final = Path(__file__).with_name("expected.json")


@dataclass(frozen=True)
class Horizon:
    """What a total is to last for: jobs like this one, and predictions beside theirs, each with data that changed."""

    jobs: int = 1
    predictions: int = 0

    def releases(self, planned: Plan) -> int:
        """Of a holder in all that time."""
        return self.jobs * planned.releases + self.predictions * planned.inference

    def __str__(self) -> str:
        later = f" and {self.predictions:,} more predictions" if self.predictions else ""
        return f"{self.jobs:,} job{'s' if self.jobs > 1 else ''}{later}, each of changed data"


_ONE_JOB: Final = Horizon()


@dataclass(frozen=True)
class NeededNoise:
    """The noise with which all that a job foresees, until the ``horizon``, costs each of ``totals``, finite and above
    0.

    ``job`` is with differential privacy, or as it would be with it; ``nodes`` are common, where that is known.
    """

    job: JobSettings
    totals: Sequence[float]
    nodes: int | None = None
    horizon: Horizon = _ONE_JOB

    @cached_property
    def facts(self) -> list[Record]:
        """What the table shows, for programs; a ``ConfigError`` where a total needs less noise than can be added."""
        return [
            {
                "epsilon_total": total,
                "schedule": schedule,
                "holder": name,
                "releases": self.horizon.releases(planned),
                "noise_multiplier": (wanted := self._of_total(planned, total)).multiplier,
                "epsilon_release": wanted.epsilon_release,
            }
            for total in self.totals
            for schedule, name, planned in self._plans
        ]

    def table(self) -> Table | None:
        """A row for each total, schedule and holder; None if the job can have no such noise. Errors are ``facts``'."""
        plans = self._plans
        if not plans:
            return None
        first, shown = plans[0][-1], 0.0
        caption = f"Mechanism {first.mechanism_name}, noise rounded up. {meaning(first.settings, first.delta)}."
        if self.horizon != _ONE_JOB:
            caption = f"For {self.horizon}. {caption}"
        rows = []
        for each in self.facts:
            total, shown = "" if each["epsilon_total"] == shown else f"{each['epsilon_total']:g}", each["epsilon_total"]
            noise = (rounded_up(each["noise_multiplier"]), rounded_up(each["epsilon_release"]))
            rows.append((total, each["schedule"], each["holder"], f"{each['releases']:,}", *noise))
        columns = (f">{TOTAL}", "schedule", "holder", ">releases", ">noise over clip", f">{PER_RELEASE}")
        return table("Noise that a total needs", columns, rows, caption=caption)

    def job_epsilons(self) -> dict[float, float]:
        """Total ε → that of a single job with the noise that it needs, of the job's own schedule."""
        own = None if self.job.privacy is None else self.job.privacy.schedule
        return {
            total: self._of_total(planned, total).epsilon_total
            for schedule, _, planned in self._plans
            for total in self.totals
            if schedule == own
        }

    def notes(self) -> list[str]:
        """Which totals the job's own noise fits, why it cannot have a schedule, and who publishes nothing."""
        variants, reasons = _variants(self.job)
        notes = [*self._horizon_notes(), *reasons]
        if "every-step" in variants and self.job.train.select_by != "last":
            notes.append("schedule every-step needs train.select_by=last and train.patience=null as well")
        if "once" in variants and not self.job.duties.summing:
            holder = self.job.data.label_party
            notes.append(f"with schedule once {holder}, the label holder, publishes nothing: {TOTAL} is 0")
        return notes

    def _horizon_notes(self) -> list[str]:
        """Which totals such jobs fit with the noise that the job has; none for the job alone, or without any noise."""
        plans = [] if self.job.privacy is None or self.horizon == _ONE_JOB else plans_of(self.job, self.nodes).values()
        needed = [
            lifetime_costs.epsilon(lifetime_costs.price(of.event, self.horizon.releases(of), of.delta), of.delta)
            for of in plans
            if of.releases and of.event is not None
        ]
        if not needed:
            return []
        fits = [f"{each:g}" for each in self.totals if max(needed) <= each]
        return [
            f"with the noise that the job has, {self.horizon} come to a {TOTAL} of {rounded_up(max(needed))}, which "
            f"fits {'a total of ' + ', '.join(fits) if fits else 'none of the totals asked about'}"
        ]

    @cached_property
    def _plans(self) -> list[tuple[str, str, Plan]]:
        """Schedule, holder and plan, of every schedule that the job can have and every holder that releases with it."""
        return [
            (schedule, name, planned)
            for schedule, variant in _variants(self.job)[0].items()
            for name, planned in plans_of(variant, self.nodes).items()
            if planned.releases
        ]

    def _of_total(self, planned: Plan, total: float) -> Plan:
        """With the noise by which everything until the horizon has that total: of several jobs pure ε add up."""
        spare = self.horizon.jobs * planned.spare if planned.joint else 0
        releases = self.horizon.releases(planned) + spare
        noise = planned.multiplier_for(total, releases, once=self.horizon == _ONE_JOB)
        update = {"epsilon_total": total, "noise_multiplier": noise, "epsilon_step": None}
        return replace(planned, settings=planned.settings.model_copy(update=update))


def _variants(job: JobSettings) -> tuple[dict[str, JobSettings], list[str]]:
    """Schedule → the job with it, its noise from ``epsilon_total``; and why the job cannot have another one."""
    found: dict[str, JobSettings] = {}
    reasons = []
    for schedule in ("every-step", "once"):
        content = job.model_dump(mode="json")
        noise = {"noise_multiplier": None, "epsilon_step": None, "epsilon_total": 1.0, "calibration": "analytic"}
        content["privacy"] = {
            **(content["privacy"] or paradigm_of(job).privacy.to_be_private()),
            **noise,
            "schedule": schedule,
        }
        if schedule == "every-step":
            content["train"].update(select_by="last", patience=None)
        try:
            found[schedule] = type(job).model_validate(content)
        except ValidationError as error:
            reasons.append(f"schedule {schedule} is not for this job: {first_problem(error).removeprefix('job: ')}")
    return found, reasons


def trained_noise_table(needed: Sequence[Record]) -> Table:
    """The noise that totals need in private training."""
    return table(
        "The noise that a total needs",
        (f">{TOTAL}", ">noise over clip", f">{PER_RELEASE}"),
        (
            (f"{each['epsilon_total']:g}", f"{each['noise_multiplier']:.4g}", epsilon_text(each["epsilon_release"]))
            for each in needed
        ),
    )


@dataclass(frozen=True)
class Curve:
    """One way of protecting, as ``way_of`` names it, on one data set: means over seeds, on test nodes.

    Attributes:
        figure: accuracy or AUC.
        alone: of the label holder by itself; ``without``: of the same job without noise.
        control: at an ε of next to nothing.
        points: ε of one job → figure.
        measured_with: what of a job moves the figure and was not varied: path of a setting → value.
    """

    way: str
    data: str
    figure: str
    seeds: int
    alone: float
    without: float
    control: float
    points: Mapping[float, float]
    measured_with: Mapping[str, int] = field(default_factory=dict)

    def at(self, epsilon: float) -> float:
        """The figure to expect of one job with that ε."""
        known = sorted(self.points)
        if epsilon < known[0] * (1 - _SLACK):
            return self.control
        return float(np.interp(math.log(epsilon), np.log(known), [self.points[each] for each in known]))


def way_of(job: JobSettings) -> str:
    """How a job protects, in a word or two; empty where nothing of the kind was measured."""
    if job.label_privacy is not None:
        return paradigm_of(job).guarantee.way or "labels"
    if job.training_plan is not None:
        return paradigm_of(job).guarantee.trained_way(job)
    hops = None if job.privacy is None else job.privacy.aggregation
    if job.privacy is None or hops is None or (job.privacy.unit, job.privacy.relation) not in _MEASURED:
        return ""
    if way := paradigm_of(job).guarantee.way:
        return way if job.privacy.unit == "edge" else ""
    if hops.own_share not in (None, OWN_SHARE):
        return ""
    clear = ", own rows in the clear" if hops.own_rows == "clear" else ""
    return f"{job.privacy.unit}, noise in every hop{clear}"


def matters(job: JobSettings) -> dict[str, int]:
    """What of a job with noise in every hop moves its figure beside ε and the data: path of a setting → value."""
    if job.privacy is None or job.privacy.aggregation is None:
        return {}
    paths = ("privacy.aggregation.hops", "privacy.aggregation.dim", "privacy.degree_bound")
    found = {path: attrgetter(path)(job) for path in paths}
    return {path: value for path, value in found.items() if value is not None}


@cache
def curves() -> tuple[Curve, ...]:
    """All that there are."""
    found = json.loads(CURVES.read_text(encoding="utf-8"))["curves"]
    return cast("tuple[Curve, ...]", adapter_of(tuple[Curve, ...]).validate_python(found))


def expected_facts(job: JobSettings, epsilons: Mapping[float, float]) -> list[Record]:
    """What ``expected_table`` shows, for programs; the arguments are its."""
    return [
        {
            "epsilon_total": total,
            "epsilon_job": epsilon,
            "data": curve.data,
            "figure": curve.figure,
            "seeds": curve.seeds,
            "alone": curve.alone,
            "expected": round(curve.at(epsilon), 4),
            "without_noise": curve.without,
            "measured_with": dict(curve.measured_with),
        }
        for total, epsilon in epsilons.items()
        for curve in curves()
        if curve.way == way_of(job)
    ]


def expected_table(job: JobSettings, epsilons: Mapping[float, float]) -> Table | None:
    """What came of such a job where that was measured, at each total ε, of which a single job has so much; or None."""
    facts = expected_facts(job, epsilons)
    if not facts:
        return None
    caption = (
        "On test nodes of public data sets, beside the label holder (averaging: each holder) alone and the same job "
        "without noise. Yours are other data: veilgraph compare measures alone and without noise on them."
        + _otherwise(job, [each["measured_with"] for each in facts])
    )
    rows, shown = [], None
    for each in facts:
        totals = ("", "")
        if each["epsilon_total"] != shown:
            shown = each["epsilon_total"]
            totals = (f"{shown:g}", f"{each['epsilon_job']:.3g}")
        figures = (f"{each[name]:.3f}" for name in ("alone", "expected", "without_noise"))
        rows.append((*totals, f"{each['data']}, {each['figure']}", *figures, f"{each['seeds']}"))
    columns = (">total ε", ">ε of one job", "data", ">alone", ">with it", ">without noise", ">seeds")
    return table("What to expect, by what was measured", columns, rows, caption=caption)


def _otherwise(job: JobSettings, measured: Sequence[Mapping[str, int]]) -> str:
    """In what the job is not as those that were measured."""
    said = []
    for path, own in matters(job).items():
        values = sorted({each[path] for each in measured if path in each})
        if values and values != [own]:
            said.append(f"{path} was {' or '.join(map(str, values))}, and is {own} here")
    return f" Measured otherwise: {'; '.join(said)}." if said else ""


def not_measured(job: JobSettings) -> str:
    """Said in place of the table."""
    privacy = job.privacy
    if privacy is None:
        return ""
    return (
        f"what accuracy to expect was not measured for schedule {privacy.schedule}, unit {privacy.unit}"
        f"{'' if privacy.aggregation is None else ', with noise in every hop'}; docs/gap.md says for what it was"
    )
