"""Private training (DP-SGD) for the terminal: what a job with ``averaging.privacy`` costs, and what that hides."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from veilgraph.core.words import listed
from veilgraph.privacy import accountant
from veilgraph.privacy.calibrate import least_multiplier
from veilgraph.privacy.sampled_event import SampledEvent
from veilgraph.privacy.sampled_settings import SampledPlan
from veilgraph.protocol.job import JobSettings
from veilgraph.report.epsilon import epsilon_text
from veilgraph.run.run_directory import Record

UNIT = "a node's features, label and all its edges, and whether it is trained on"


def sampled_table(plan: SampledPlan) -> Table:
    """What every holder with labels releases, with how much noise, and what that costs."""
    table = Table(title="Private training", title_justify="left", caption_justify="left")
    table.caption = "Of every holder with labels alike. Noise over clip: standard deviation / C."
    table.add_column("")
    table.add_column("each holder", justify="right")
    for heading, value in (
        ("rounds, a release each", f"{plan.steps:,}"),
        ("sampling rate", f"{plan.settings.sampling_rate:g}"),
        ("terms that a node is in, at most", f"{plan.terms:,}"),
        ("noise over clip", f"{plan.multiplier:.4g}"),
        *(() if plan.joint is None else (("of which each adds", f"{plan.added:.4g}"),)),
        ("per-release ε", epsilon_text(plan.epsilon_release)),
        ("total ε", epsilon_text(plan.epsilon_total)),
        ("δ", f"{plan.delta:g}"),
    ):
        table.add_row(heading, value, style="bold" if heading.endswith(" ε") else None)
    return table


def sampled_notes(job: JobSettings, plan: SampledPlan) -> list[str]:
    """What must be said beside the table, a line each."""
    notes = [
        f"ε is about {UNIT}, {plan.settings.neighbours}; each holder's is about its own data and counts "
        f"{_whose(plan)}, against {plan.against}",
        f"a holder tells nothing else of its data but whether it has labels: {listed(job.data.names)} judge the model "
        "by themselves, and scores are theirs to guard",
    ]
    if plan.settings.degree_bound is not None:
        notes.append(
            "a holder whose graph has a node of more than averaging.privacy.degree_bound="
            f"{plan.settings.degree_bound} neighbours refuses before it releases anything"
        )
    return notes


def _whose(plan: SampledPlan) -> str:
    if plan.joint is None:
        return "its own noise alone"
    return (
        f"the noise that {plan.joint.honest} holders make together, each {plan.added:.3g} of the clip: where more than "
        f"{plan.joint.colluding} of them collude, or add none, it does not hold"
    )


def sampled_facts(job: JobSettings, plan: SampledPlan) -> Record:
    """Holder → what its releases cost, for programs."""
    facts = {
        "releases": plan.steps,
        "noise_multiplier": plan.multiplier,
        "sampling_rate": plan.settings.sampling_rate,
        "terms": plan.terms,
        "epsilon_release": plan.epsilon_release,
        "epsilon_total": plan.epsilon_total,
        "delta": plan.delta,
        **({} if plan.joint is None else {"joint_noise": asdict(plan.joint)}),
    }
    return dict.fromkeys(job.data.names, facts)


def sampled_noise(plan: SampledPlan, totals: list[float]) -> list[Record]:
    """The noise that totals need, and the ε of one round with it."""
    found, given = [], plan.settings
    for total in totals:
        noise = least_multiplier(
            lambda multiplier: SampledEvent(multiplier, given.sampling_rate, plan.terms, given.neighbours),
            total,
            plan.delta,
            plan.steps,
            plan.multiplier,
        )
        event = SampledEvent(noise, given.sampling_rate, plan.terms, given.neighbours)
        one = accountant.per_step(event, plan.delta)
        found.append({"epsilon_total": total, "noise_multiplier": noise, "epsilon_release": one})
    return found


def noise_table(needed: list[Record]) -> Table:
    """``sampled_noise`` as a table."""
    table = Table(title="The noise that a total needs", title_justify="left")
    for heading in ("total ε", "noise over clip", "per-release ε"):
        table.add_column(heading, justify="right")
    for each in needed:
        noise, one = f"{each['noise_multiplier']:.4g}", epsilon_text(each["epsilon_release"])
        table.add_row(f"{each['epsilon_total']:g}", noise, one)
    return table
