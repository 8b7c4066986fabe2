"""What accuracy to expect at an ε: from curves that were measured on public data, never from anybody's own.

``expected.json`` has them: ``python -m research.expected`` makes it of what was measured (docs/gap.json,
docs/label-privacy.json, docs/sealed-privacy.json, docs/private-averaging.json). Between two ε that were measured the
curve is a line in log ε. Below the least it is the control at an ε of next to nothing, above the largest the figure
there: neither promises more than was seen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Final

from rich.table import Table

from veilgraph.privacy.settings import OWN_SHARE
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.run.run_directory import Record

_SLACK: Final = 1e-3
"""Noise is rounded up, so the ε of a job is a little below the one that is asked for."""
_MEASURED: Final = (("edge", "replacement"), ("node-edges", "zero-out"))
_MATTERS: Final = ("privacy.aggregation.hops", "privacy.aggregation.dim", "privacy.degree_bound")
CURVES: Final = Path(__file__).with_name("expected.json")


@dataclass(frozen=True)
class Curve:
    """One way of protecting, on one data set.

    Attributes:
        way: which, as ``way_of`` names it.
        data: name of the data set.
        figure: accuracy or AUC, on test nodes.
        seeds: of which everything is a mean.
        alone: of the label holder by itself.
        without: of the same job without noise.
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
        epsilon = max(epsilon, known[0])
        below = max(each for each in known if each <= epsilon)
        above = min((each for each in known if each > epsilon), default=below)
        share = 0.0 if above == below else math.log(epsilon / below) / math.log(above / below)
        return self.points[below] + share * (self.points[above] - self.points[below])


def way_of(job: JobSettings) -> str:
    """How a job protects, in a word or two; empty where nothing of the kind was measured."""
    if job.label_privacy is not None:
        return paradigm_of(job).way or "labels"
    if job.training_plan is not None:
        return paradigm_of(job).trained_way(job)
    hops = None if job.privacy is None else job.privacy.aggregation
    if job.privacy is None or hops is None or (job.privacy.unit, job.privacy.relation) not in _MEASURED:
        return ""
    if way := paradigm_of(job).way:
        return way if job.privacy.unit == "edge" else ""
    if hops.own_share not in (None, OWN_SHARE):
        return ""
    clear = ", own rows in the clear" if hops.own_rows == "clear" else ""
    return f"{job.privacy.unit}, noise in every hop{clear}"


def matters(job: JobSettings) -> dict[str, int]:
    """What of a job with noise in every hop moves its figure beside ε and the data: path of a setting → value."""
    if job.privacy is None or job.privacy.aggregation is None:
        return {}
    found = {path: attrgetter(path)(job) for path in _MATTERS}
    return {path: value for path, value in found.items() if value is not None}


@cache
def curves() -> tuple[Curve, ...]:
    """All that there are."""
    found = json.loads(CURVES.read_text(encoding="utf-8"))["curves"]
    return tuple(
        Curve(**{**each, "points": {float(epsilon): value for epsilon, value in each["points"].items()}})
        for each in found
    )


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
    """What came of such a job where that was measured, at each ε; None where it was not.

    Args:
        job: with differential privacy.
        epsilons: total ε → what of it a single job has.
    """
    facts = expected_facts(job, epsilons)
    if not facts:
        return None
    table = Table(title="What to expect, by what was measured", title_justify="left", caption_justify="left")
    table.caption = (
        "On test nodes of public data sets, beside the label holder (averaging: each holder) alone and the same job "
        "without noise. Yours are other data: veilgraph compare measures alone and without noise on them."
        + _otherwise(job, [each["measured_with"] for each in facts])
    )
    for heading in ("total ε", "ε of one job", "data", "alone", "with it", "without noise", "seeds"):
        table.add_column(heading, justify="left" if heading == "data" else "right")
    shown = None
    for each in facts:
        first = each["epsilon_total"] != shown
        shown = each["epsilon_total"]
        figures = (f"{each[name]:.3f}" for name in ("alone", "expected", "without_noise"))
        totals = (f"{shown:g}", f"{each['epsilon_job']:.3g}") if first else ("", "")
        table.add_row(*totals, f"{each['data']}, {each['figure']}", *figures, f"{each['seeds']}")
    return table


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
