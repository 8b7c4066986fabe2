"""Differential privacy for the terminal: what a job will cost.

The ε of one release and the ε of all of them are different numbers; no table has one without the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.table import Table
from rich.text import Text

from veilgraph.privacy.accountant import releases_within
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.settings import fitting_delta
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.epsilon import NO_PERSON, PER_RELEASE, TOTAL, counted, holds_against, plans_of, rounded_up
from veilgraph.report.labels import label_notes
from veilgraph.report.releases import release_notes
from veilgraph.run.run_directory import Record

_NOTHING: Final = "–"


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
    for name, planned in plans_of(job, nodes).items():
        table.add_column(Text(name), justify="right")
        columns.append(_facts(planned, holds_against(job)))
    for heading in columns[0]:
        style = "bold" if heading in (PER_RELEASE, TOTAL) else None
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
            f"no differential privacy: nothing is clipped or noised, and {PER_RELEASE} and {TOTAL} of every holder "
            "are infinite",
            *paradigm_of(job).privacy_notes(job),
        ]
    plans = plans_of(job, nodes)
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
        for name, planned in plans_of(job, nodes).items()
    }


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
        "releases per training step": counted(planned.step),
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
        PER_RELEASE: rounded_up(planned.epsilon_release),
        TOTAL: rounded_up(planned.epsilon_total)
        if _has_room(planned)
        else f"at most {rounded_up(planned.epsilon_bound)}",
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
    return (
        f"{text}; all that the job foresees would have a {TOTAL} of {rounded_up(max(p.epsilon_total for p in plans))}"
    )


def _releases_that_fit(planned: Plan, limit: float) -> int:
    if planned.event is None:
        return planned.releases
    return releases_within(planned.event, limit, planned.delta, most=planned.releases)
