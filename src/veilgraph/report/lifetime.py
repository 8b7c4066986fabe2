"""A party's lifetime ledger for the terminal: what was ever released of its data, and what a job would leave."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from rich.table import Table
from rich.text import Text

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.privacy.event import Event, LocalEvent
from veilgraph.privacy.lifetime.costs import is_everybody
from veilgraph.privacy.lifetime.ledger import Lifetime
from veilgraph.privacy.lifetime.lines import FILE, begun_by, check_never_there
from veilgraph.privacy.lifetime.marks import Marks
from veilgraph.protocol.acceptance import largest_epsilon
from veilgraph.protocol.inputs import LedgerPlace
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.epsilon import epsilon_text
from veilgraph.run.lifetimes import default_marks, lifetime_at, lifetime_of
from veilgraph.run.run_directory import Record

_MOST_JOBS = 1000
"""More of the same are not counted."""


def ledger_at(organisation: Organisation) -> Lifetime | None:
    """The party's ledger; None where nothing was ever released, as far as this account has seen. Nothing is made.

    Raises:
        RunError: as ``lifetime_of``: one that is gone too.
    """
    folder = organisation.folder / organisation.settings.ledger
    if (folder / FILE).is_file():
        return lifetime_of(organisation)
    check_never_there(folder, Marks(default_marks()))
    return None


def ledger_in(folder: Path) -> Lifetime:
    """The ledger in a folder, of a holder that brings a graph. Nothing is made.

    Raises:
        ConfigError: there is none.
        RunError: as ``lifetime_of``.
    """
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"--ledger {folder}: there is no {FILE}; give the folder of a ledger for life, or --party PARTY.yaml",
            key="--ledger",
            value=str(folder),
        )
    return lifetime_at(LedgerPlace(folder.absolute(), begun_by(folder)))


def lifetime_table(ledger: Lifetime) -> Table:
    """What was ever released: a row for each job and channel."""
    facts = lifetime_facts(ledger)
    table = Table(title="Everything that was ever released", title_justify="left", caption_justify="left")
    for heading in ("first", "job", "channel", "releases", "nodes"):
        table.add_column(heading, justify="right" if heading in ("releases", "nodes") else "left")
    for row in facts["released"]:
        named = [Text(str(row[name])) for name in ("first", "job", "channel")]
        table.add_row(*named, f"{row['releases']:,}", "all" if row["nodes"] is None else f"{row['nodes']:,}")
    table.caption = _sentence(facts)
    return table


def lifetime_facts(ledger: Lifetime) -> Record:
    """What ``lifetime_table`` shows, for programs: an ε that is None is infinite, a budget that is None is none, and
    nodes that are None are everybody.
    """
    total, about, budget = ledger.total(), ledger.about, ledger.budget
    counts: Counter[tuple[str, str, str, int | None]] = Counter()
    first: dict[tuple[str, str, str, int | None], str] = {}
    for entry in ledger.lines.entries:
        keys = ledger.lines.cohort(entry.cohort)
        key = (entry.run, entry.job, entry.channel, None if is_everybody(keys) else len(keys))
        counts[key] += entry.count
        first.setdefault(key, entry.time)
    return {
        "ledger": str(ledger.path),
        "total": _finite(total),
        "delta": ledger.delta,
        "unit": None if about is None else about.unit,
        "neighbours": None if about is None else about.neighbours,
        "budget": _finite(budget.epsilon),
        "nodes": ledger.nodes,
        "released": [
            {"first": first[key], "job": key[1], "channel": key[2], "releases": count, "nodes": key[3]}
            for key, count in counts.items()
        ],
    }


def outlook_facts(ledger: Lifetime, job: JobSettings, party: PartyId, nodes: int | None = None) -> Record:
    """What a job would take, if every node that ever paid pays for all that the job foresees.

    Args:
        ledger: of the party.
        job: validated.
        party: a holder of it.
        nodes: common to all holders; None where that is not known.

    Returns:
        ``total`` once it is done, None for infinite; ``jobs``: how many like it still fit, None for any number;
        ``about``: what the ledger's total is about, where the job's releases are about something else; else None.
    """
    event, releases = _foreseen(job, party, nodes)
    if releases == 0:
        return {"total": _finite(ledger.total()), "jobs": None, "about": None}
    if event is None:
        return {"total": None, "jobs": None if math.isinf(ledger.budget.epsilon) else 0, "about": None}

    def total(jobs: int) -> float:
        return ledger.total_with(event, releases, jobs)

    jobs = None
    if math.isfinite(ledger.budget.epsilon):
        fits = ledger.fits
        low, high = 0, _MOST_JOBS + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(total(middle)) else (low, middle)
        jobs = low
    about = ledger.about
    other = None if about is None or about.bounds(event) else f"about {about.unit}, {about.neighbours}"
    return {"total": _finite(total(1)), "jobs": jobs, "about": other}


def outlook_note(facts: Record, ledger: Lifetime) -> str:
    """``outlook_facts`` in a sentence."""
    left = f"this job would take it to {epsilon_text(facts['total'])}"
    less = "less where what it releases was released before"
    if math.isinf(ledger.budget.epsilon):
        return f"{left}, {less}; limits.max_epsilon sets no bound"
    if facts["jobs"] == 0:
        if facts["about"] is not None:
            return f"this job's ε is not {facts['about']}, as this ledger's total is: it would be refused"
        return (
            f"{left}, beyond limits.max_epsilon={ledger.budget.epsilon:g}: it would be refused, unless all that it "
            "releases was released before"
        )
    many = f"{_MOST_JOBS} or more" if facts["jobs"] == _MOST_JOBS else f"{facts['jobs']}"
    return (
        f"{left}, {less}; "
        f"limits.max_epsilon={ledger.budget.epsilon:g} has room for {many} such jobs, this one among them"
    )


def _foreseen(job: JobSettings, party: PartyId, nodes: int | None) -> tuple[Event | None, int]:
    """What each release does, and how many there are."""
    if job.training_plan is not None:
        return job.training_plan.event, job.training_plan.steps
    if job.label_privacy is not None:
        if party not in job.perturbing:
            return None, 0
        return LocalEvent(job.label_privacy.epsilon, "label"), 1
    planned = paradigm_of(job).plan(job, party, nodes)
    if planned is not None:
        return planned.event, planned.releases
    cost = largest_epsilon(job, party, nodes)
    if cost == 0:
        return None, 0
    return (LocalEvent(cost) if math.isfinite(cost) else None), 1


def _sentence(facts: Record) -> str:
    about = "" if facts["unit"] is None else f", unit {facts['unit']}, {facts['neighbours']}"
    limit = "no limit" if facts["budget"] is None else f"limits.max_epsilon={facts['budget']:g}"
    return (
        f"Of the node that paid most: total ε {epsilon_text(facts['total'])} (δ = {facts['delta']:g}{about}); "
        f"{limit}.\n{facts['ledger']}"
    )


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
