"""What a run has spent of a budget, by the ledgers of its holders, and whether it was worth it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.privacy.local.settings import FeatureReleaseSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.report.epsilon import PER_RELEASE, TOTAL, counted, epsilon_text, holds_against, meaning
from veilgraph.run.ledgers import LEDGER_SUMMARY
from veilgraph.run.run_directory import Record, RunDirectory


class _Spent(BaseModel):
    releases: dict[str, int]
    epsilon_release: float | None
    epsilon_total: float | None
    delta: float | None = None
    lasting: bool | None = None


def spent_table(spent: Mapping[PartyId, Record], job: JobSettings) -> Table:
    """What the releases of a run have cost so far.

    Args:
        spent: holder → as in ``summary.json`` under ``privacy``; an infinite ε is None.
        job: of the run.
    """
    table = Table(title="Differential privacy", title_justify="left", caption_justify="left")
    for heading in ("holder", "releases", PER_RELEASE, TOTAL):
        table.add_column(heading, justify="left" if heading == "holder" else "right")
    for party, record in spent.items():
        epsilons = [epsilon_text(record[name]) for name in ("epsilon_release", "epsilon_total")]
        releases = "not counted" if record["epsilon_total"] is None else counted(record["releases"])
        table.add_row(Text(party), releases, *epsilons)
    if job.privacy is not None:
        deltas = [record["delta"] for record in spent.values() if record.get("delta") is not None]
        delta = max(deltas, default=job.privacy.delta)
        table.caption = f"{meaning(job.privacy, delta)}. Holds against {holds_against(job)}."
        if job.feature_release is not None:
            table.caption = f"{', '.join(job.summing)}: {table.caption}\nThe others: {_of_nodes(job.feature_release)}"
    elif job.feature_release is not None:
        table.caption = _of_nodes(job.feature_release)
    elif job.training_plan is not None:
        given, delta = job.training_plan.settings, job.training_plan.delta
        table.caption = (
            f"δ = {delta:g}, unit: a node's features, label and all its edges, {given.neighbours}. Holds "
            f"against {job.training_plan.against}."
        )
    elif job.label_privacy is not None:
        table.caption = "Unit: one label, replacement; features and edges are not noised. Holds against everybody."
    return table


def life_note(spent: Mapping[PartyId, Record]) -> str:
    """Where the releases of other runs are counted, and whose are nowhere; empty where nothing was released.

    Args:
        spent: as for ``spent_table``; who released nothing, or what was not counted, is left out.
    """
    counted = {party: each.get("lasting") for party, each in spent.items() if each["epsilon_total"]}
    said = []
    if lasting := [party for party, lasts in counted.items() if lasts]:
        said.append(
            f"These totals are of this run. What all runs took of {', '.join(lasting)} is in each one's ledger for "
            "life: veilgraph budget JOB.yaml --party PARTY.yaml (docs/privacy.md#one-budget-for-life)."
        )
    if alone := [party for party, lasts in counted.items() if lasts is False]:
        said.append(
            f"In the ledger of this run alone: {', '.join(alone)}. Another run on the same data costs as much again, "
            "and nothing counts both; a ledger for life does (docs/privacy.md#one-budget-for-life)."
        )
    return " ".join(said)


def worth(summary: Record, job: JobSettings) -> str:
    """Whether what was released, once, has changed a prediction; empty where a run cannot tell."""
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


def _of_nodes(release: FeatureReleaseSettings) -> str:
    about = "" if release.delta is None else f"δ = {release.delta:g}, "
    return f"{about}unit: what one node releases at one holder, replacement. Holds against everybody."


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
