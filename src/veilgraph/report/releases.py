"""Perturbed features and labels for the terminal: what nodes release, and what that costs them before a job runs."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from veilgraph.privacy.local.settings import FeatureReleaseSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import delta_in_doubt, delta_too_large

_RESPONSE: Final = "randomised response"
_HEADINGS: Final = ("holder", "released", "mechanism", "per-release ε", "total ε")


def release_table(job: JobSettings, release: FeatureReleaseSettings) -> Table:
    """What the nodes of every holder release, by which mechanism, and what that costs a node there.

    Args:
        job: in which nodes perturb their features.
        release: how they do.
    """
    table = Table(title="Local differential privacy", title_justify="left", caption_justify="left")
    table.caption = "Of one release, made a single time" + (f"; δ = {release.delta:g}." if release.delta else ".")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading.endswith("ε") else "left")
    for holder in job.data.names:
        costs = _costs(job, release, holder)
        for number, (what, mechanism, epsilon) in enumerate(costs):
            total = f"{sum(cost for *_, cost in costs):g}" if number == 0 else ""
            table.add_row(Text(holder if number == 0 else ""), what, mechanism, f"{epsilon:g}", total)
        if not costs and not job.summing:
            table.add_row(Text(f"{holder} (learns)"), "nothing", "–", "0", "0")
    return table


def release_notes(job: JobSettings, release: FeatureReleaseSettings, nodes: int | None = None) -> list[str]:
    """What must be said beside the table, a line each.

    Args:
        job: in which nodes perturb their features.
        release: how they do.
        nodes: common to all holders; None where that is not known.
    """
    labels, delta = job.label_release, "" if release.delta is None else f", δ = {release.delta:g}"
    notes = [
        f"nodes perturb their features at {', '.join(job.releasing)} a single time, by {release.mechanism}: "
        f"per-release ε and total ε {release.epsilon:g}{delta}, of one node's features at one holder, any in the range "
        f"from {release.low:g} to {release.high:g} against any other"
    ]
    if labels is not None:
        notes.append(
            f"nodes perturb their labels at {labels.holder} a single time: {labels.epsilon:g} more there; which nodes "
            "have one for training or validation is not hidden"
        )
    if len(job.releasing) > 1:
        everything = sum(cost for holder in job.releasing for *_, cost in _costs(job, release, holder))
        notes.append(f"what a node releases at all of these holders together has a total ε of {everything:g}")
    if nodes is None and (said := delta_in_doubt(job)):
        notes.append(said)
    if nodes is not None and (refused := delta_too_large(job, nodes)):
        notes.append(f"every holder refuses the job: {refused}")
    if not job.learns_alone:
        notes.append("edges and labels are not noised: per-release ε and total ε of these are infinite")
    elif not job.summing:
        notes.append(f"edges are not noised: {job.data.label_party}, which learns, has them and sends nothing of them")
    return [*notes, "changed data are released anew, which costs the same again; training and predicting cost nothing"]


def release_facts(job: JobSettings, release: FeatureReleaseSettings) -> dict[str, list[dict[str, object]]]:
    """Holder → what one of its nodes releases, for programs."""
    return {
        holder: [{"what": what, "mechanism": how, "epsilon": cost} for what, how, cost in _costs(job, release, holder)]
        for holder in job.data.names
    }


def _costs(job: JobSettings, release: FeatureReleaseSettings, holder: str) -> list[tuple[str, str, float]]:
    """(What, mechanism, ε) of everything that the holder's nodes release."""
    labels = job.label_release
    found: list[tuple[str, str, float]] = []
    if holder in job.releasing:
        found.append(("features", release.mechanism, release.epsilon))
    if labels is not None and holder == labels.holder:
        found.append(("label", _RESPONSE, labels.epsilon))
    return found
