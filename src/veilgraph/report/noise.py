"""What noise a total ε needs, for how many jobs a total lasts, and what accuracy to expect of it.

What to expect was measured on public data, never on anybody's own. ``expected.json`` has the curves: ``python -m
research.expected`` makes it of what was measured (docs/figures/gap.json, docs/figures/label-privacy.json,
docs/figures/sealed-privacy.json, docs/figures/private-averaging.json). Between two ε that were measured the curve is a
line in log ε. Below the least it is the control at an ε of next to nothing, or the figure at the least where none was
measured; above the largest it is the figure there. Neither promises more than was seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import numpy as np
from pydantic import ValidationError
from rich.table import Table

from veilgraph.core.files import adapter_of
from veilgraph.core.validation import problem_of
from veilgraph.privacy import lifetime_costs
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import meaning, plans_of
from veilgraph.report.protection import PER_RELEASE, TOTAL, epsilon_text, rounded_up
from veilgraph.report.tables import table
from veilgraph.runtime.store.run_directory import Record

_SLACK: Final = 1e-3  # noise is rounded up, so the ε of a job is a little below the one that is asked for
CURVES: Final = Path(__file__).with_name("expected.json")


@dataclass(frozen=True)
class Horizon:
    """What a total is to last for: jobs like this one, and predictions beside theirs, each with data that changed."""

    jobs: int = 1
    predictions: int = 0

    def releases(self, planned: Plan) -> int:
        """How many releases a holder makes until the horizon, by its plan."""
        return self.jobs * planned.releases + self.predictions * planned.inference

    def __str__(self) -> str:
        later = f" and {self.predictions:,} more predictions" if self.predictions else ""
        return f"{self.jobs:,} job{'s' if self.jobs > 1 else ''}{later}, each of changed data"


_ONE_JOB: Final = Horizon()


@dataclass(frozen=True)
class NeededNoise:
    """The noise with which all releases of a job until the ``horizon`` cost each of ``totals``, finite and above 0.

    ``job`` is with differential privacy, or as it would be with it; ``nodes`` are common, where that is known.
    """

    job: JobSettings
    totals: Sequence[float]
    nodes: int | None = None
    horizon: Horizon = _ONE_JOB

    @cached_property
    def facts(self) -> list[Record]:
        """What the table shows: for each total and holder releases, deviation, and ε of one release."""
        return [
            {
                "epsilon_total": total,
                "holder": name,
                "releases": self.horizon.releases(planned),
                "deviation": (wanted := self._plan_within(planned, total)).deviation,
                "epsilon_release": wanted.epsilon_release,
            }
            for total in self.totals
            for name, planned in self._plans
        ]

    def table(self) -> Table | None:
        """A row for each total and holder; None if the job can have no such noise. Errors are ``facts``'."""
        plans = self._plans
        if not plans:
            return None
        first, shown = plans[0][-1], 0.0
        caption = f"Mechanism: {first.mechanism}, noise rounded up. {meaning(first.settings, first.delta)}."
        if self.horizon != _ONE_JOB:
            caption = f"For {self.horizon}. {caption}"
        rows = []
        for each in self.facts:
            total, shown = "" if each["epsilon_total"] == shown else f"{each['epsilon_total']:g}", each["epsilon_total"]
            noise = (rounded_up(each["deviation"]), rounded_up(each["epsilon_release"]))
            rows.append((total, each["holder"], f"{each['releases']:,}", *noise))
        columns = (f">{TOTAL}", "holder", ">releases", ">deviation of an entry", f">{PER_RELEASE}")
        return table("Noise that a total needs", columns, rows, caption=caption)

    def job_epsilons(self) -> dict[float, float]:
        """Total ε → ε of a single job with the noise that this total needs; empty for a job without ``privacy``."""
        if self.job.privacy is None:
            return {}
        return {
            total: self._plan_within(planned, total).total(planned.releases)
            for _, planned in self._plans
            for total in self.totals
        }

    def notes(self) -> list[str]:
        """Which totals the job's own noise fits, why it cannot have any, and who publishes nothing."""
        notes = [*self._horizon_notes(), *([self._noisy_job] if isinstance(self._noisy_job, str) else [])]
        if not isinstance(self._noisy_job, str) and not self.job.duties.summing:
            notes.append(f"{self.job.data.label_party}, the label holder, publishes nothing: {TOTAL} is 0")
        return notes

    def _horizon_notes(self) -> list[str]:
        """Which totals such jobs fit with the noise that the job has; none for the job alone, or without any noise."""
        plans = [] if self.job.privacy is None or self.horizon == _ONE_JOB else plans_of(self.job, self.nodes).values()
        needed = [
            lifetime_costs.epsilon(lifetime_costs.price(of.event, self.horizon.releases(of), of.delta), of.delta)
            for of in plans
            if of.releases
        ]
        if not needed:
            return []
        fits = [f"{each:g}" for each in self.totals if max(needed) <= each]
        return [
            f"with the noise that the job has, {self.horizon} come to a {TOTAL} of {rounded_up(max(needed))}, which "
            f"fits {'a total of ' + ', '.join(fits) if fits else 'none of the totals asked about'}"
        ]

    @cached_property
    def _plans(self) -> list[tuple[str, Plan]]:
        """Holders' names and plan, of all that release anything, with the job's noise or as it would be."""
        if isinstance(self._noisy_job, str):
            return []
        return [(name, planned) for name, planned in plans_of(self._noisy_job, self.nodes).items() if planned.releases]

    @cached_property
    def _noisy_job(self) -> JobSettings | str:
        """The job, with noise if it has none; or why it cannot have any."""
        if self.job.privacy is not None:
            return self.job
        content = {**self.job.model_dump(mode="json"), "privacy": {"unit": "edge", "epsilon_total": 1.0}}
        try:
            return type(self.job).model_validate(content)
        except ValidationError as error:
            return f"noise is not for this job: {problem_of(error)[-1].removeprefix('job: ')}"

    def _plan_within(self, planned: Plan, total: float) -> Plan:
        """The plan with the noise by which all releases until the horizon cost ``total``."""
        return planned.within(total, self.horizon.releases(planned))


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
        control: at an ε of next to nothing, which is what all but the protected data bring; None: not measured.
        points: ε of one job → figure.
        unprotected: of the same job without the setting, where that uses the data in other ways than ``without``.
    """

    way: str
    data: str
    figure: str
    seeds: int
    alone: float
    without: float
    control: float | None
    points: Mapping[float, float]
    unprotected: float | None = None

    def at(self, epsilon: float) -> float:
        """The figure to expect of one job with that ε, interpolated in log ε; below all points, ``control``."""
        known = sorted(self.points)
        if epsilon < known[0] * (1 - _SLACK) and self.control is not None:
            return self.control
        return float(np.interp(math.log(epsilon), np.log(known), [self.points[each] for each in known]))


def way_of(job: JobSettings) -> str:
    """How a job protects, in a word or two; empty where nothing of the kind was measured."""
    way = paradigm_of(job).guarantee.way(job)
    if job.label_privacy is not None and not job.noise.learns_true_labels:
        return way or "labels"
    if job.training_plan is not None:
        return way
    if job.privacy is None or job.privacy.unit != "edge":
        return ""
    return way + ", classes alone" * job.outcome.opens_classes_alone


@cache
def curves() -> tuple[Curve, ...]:
    """All measured curves, read from ``expected.json``."""
    found = json.loads(CURVES.read_text(encoding="utf-8"))["curves"]
    return cast("tuple[Curve, ...]", adapter_of(tuple[Curve, ...]).validate_python(found))


def expected_facts(job: JobSettings, epsilons: Mapping[float, float]) -> list[Record]:
    """Records of what ``expected_table`` shows, for the same arguments: one for each total ε and measured data set."""
    return [
        {
            "epsilon_total": total,
            "epsilon_job": epsilon,
            "data": curve.data,
            "figure": curve.figure,
            "seeds": curve.seeds,
            "alone": curve.alone,
            "control": curve.control,
            "expected": round(curve.at(epsilon), 4),
            "without_noise": curve.without,
            "unprotected": curve.unprotected,
        }
        for total, epsilon in epsilons.items()
        for curve in curves()
        if curve.way == way_of(job)
    ]


def expected_table(job: JobSettings, epsilons: Mapping[float, float]) -> Table | None:
    """Measured figures of such jobs for each total ε (``epsilons``: → ε of one job); None: nothing was measured.

    Columns of which nothing was measured are left out, and so are totals beyond the largest ε, where nothing changes.
    """
    largest = max((epsilon for curve in curves() if curve.way == way_of(job) for epsilon in curve.points), default=0)
    beyond = sorted(total for total, epsilon in epsilons.items() if epsilon >= largest * (1 - _SLACK))[1:]
    facts = expected_facts(job, {total: epsilon for total, epsilon in epsilons.items() if total not in beyond})
    if not facts:
        return None
    names = [name for name in _FIGURES if any(each[name] is not None for each in facts)]
    said = {
        "alone": "alone: the label holder, or in averaging each holder, by itself.",
        "control": "ε near 0: what all but the protected data bring, so noise leaves what is above that.",
        "unprotected": "no privacy: the same job without the setting.",
    }
    caption = " ".join(
        [
            "On test nodes of public data sets.",
            *(words for name, words in said.items() if name in names),
            "Yours are other data: veilgraph compare JOB.yaml measures alone and without noise on them.",
        ]
    )
    rows, shown = [], None
    for each in facts:
        totals = ("", "")
        if each["epsilon_total"] != shown:
            shown = each["epsilon_total"]
            totals = (f"{shown:g}", f"{each['epsilon_job']:.3g}")
        figures = ("–" if each[name] is None else f"{each[name]:.3f}" for name in names)
        rows.append((*totals, f"{each['data']}, {each['figure']}", *figures, f"{each['seeds']}"))
    columns = (">total ε", ">ε of one job", "data", *(_FIGURES[name] for name in names), ">seeds")
    return table("What to expect, by what was measured", columns, rows, caption=caption)


_FIGURES: Final = MappingProxyType(
    {
        "alone": ">alone",
        "control": ">ε near 0",
        "expected": ">with it",
        "without_noise": ">without noise",
        "unprotected": ">no privacy",
    }
)


def not_measured(job: JobSettings) -> str:
    """The note in place of ``expected_table`` for a unit that was not measured; empty without ``privacy``."""
    if job.privacy is None or "edge" not in job.privacy.unit:  # of others ``Guarantee.expected_gain`` speaks
        return ""
    return f"what accuracy to expect was not measured for unit {job.privacy.unit}"
