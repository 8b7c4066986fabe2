"""What was released of holders' data: a party's ledger for life, what a job would take of it, and a run's ledgers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.table import Table

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.privacy.accountant import largest_count
from veilgraph.privacy.event import Event, LocalEvent
from veilgraph.privacy.ledger_files import FILE, Marks, check_never_there, ledger_party
from veilgraph.privacy.lifetime_costs import is_everybody
from veilgraph.privacy.lifetime_ledger import Lifetime
from veilgraph.protocol.job import JobSettings, adds_noise, perturbing
from veilgraph.protocol.limits import largest_epsilon
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import LedgerPlace
from veilgraph.report.budget import protection_of
from veilgraph.report.protection import PER_RELEASE, TOTAL, epsilon_text, releases_text
from veilgraph.report.run_data import RunData
from veilgraph.report.tables import Section, bar, table
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.lifetime import default_marks, lifetime_at, lifetime_of, read_place
from veilgraph.runtime.store.run_directory import PartyStore, Record, RunDirectory

_MOST_JOBS: Final = 1000  # more of the same are not counted


def ledger_at(organisation: Organisation) -> Lifetime | None:
    """Open a party's ledger for life, and make none; None: there never was one here. ``RunError``: it is gone."""
    folder = organisation.folder / organisation.settings.ledger
    if (folder / FILE).is_file():
        return lifetime_of(organisation)
    check_never_there(folder, Marks(default_marks()))
    return None


def ledger_in(folder: Path) -> Lifetime:
    """The ledger in a folder, of a holder that brings a graph. Nothing is made; ``ConfigError`` where there is none."""
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"--ledger {folder}: there is no {FILE}; give the folder of a ledger for life, or --party PARTY.yaml",
            key="--ledger",
            value=str(folder),
        )
    return lifetime_at(LedgerPlace(folder.absolute(), ledger_party(folder)))


def lifetime_table(ledger: Lifetime) -> Table:
    """Terminal table of all releases in a ledger for life, a row for each job and channel, and of their total ε."""
    facts = lifetime_facts(ledger)
    about = "" if facts["unit"] is None else f", unit {facts['unit']}, {facts['neighbours']}"
    limit = "no limit" if facts["budget"] is None else f"limits.max_epsilon={facts['budget']:g}"
    return table(
        "Everything that was ever released",
        ("first", "job", "channel", ">releases", ">nodes"),
        (
            (
                *(str(row[name]) for name in ("first", "job", "channel")),
                f"{row['releases']:,}",
                "all" if row["nodes"] is None else f"{row['nodes']:,}",
            )
            for row in facts["released"]
        ),
        caption=f"Of the node that paid most: total ε {epsilon_text(facts['total'])} (δ = {facts['delta']:g}{about}); "
        f"{limit}.\n{facts['ledger']}",
    )


def lifetime_facts(ledger: Lifetime) -> Record:
    """What ``lifetime_table`` shows; None: an infinite ε, no budget, and as nodes everybody."""
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
        "total": _finite_or_none(total),
        "delta": ledger.delta,
        "unit": None if about is None else about.unit,
        "neighbours": None if about is None else about.neighbours,
        "budget": _finite_or_none(budget.epsilon),
        "nodes": ledger.nodes,
        "released": [
            {"first": first[key], "job": key[1], "channel": key[2], "releases": count, "nodes": key[3]}
            for key, count in counts.items()
        ],
    }


def life_rows(found: RunData, own: Mapping[PartyId, Organisation]) -> Iterator[tuple[str, str, str, str, int]]:
    """Yield what each holder's ledger for life comes to, where the run or its party file, in ``own``, names one."""
    for holder, folder in found.folders.items():
        ledger = ledger_at(own[holder]) if holder in own else None
        place = None if holder in own else read_place(PartyStore(folder))
        if place is not None and (place.folder / FILE).is_file():
            ledger = ledger_in(place.folder)
        if ledger is not None:
            facts = lifetime_facts(ledger)
            total, releases = epsilon_text(facts["total"]), sum(each["releases"] for each in facts["released"])
            unit = "" if facts["unit"] is None else f", unit {facts['unit']}, {facts['neighbours']}"
            limit = "none" if facts["budget"] is None else f"{facts['budget']:g}"
            yield holder, total, f"δ = {facts['delta']:g}{unit}", limit, releases


def outlook_facts(ledger: Lifetime, job: JobSettings, party: PartyId, nodes: int | None = None) -> Record:
    """What a ledger for life would come to after a job, if every node that ever paid pays for all its releases.

    ``total`` is once it is done, None for infinite; ``jobs``: how many like it still fit, None for any number;
    ``about``: what the ledger's total is about, where the job's releases are about something else.
    """
    event, releases = _planned_releases(job, party, nodes)
    if releases == 0:
        return {"total": _finite_or_none(ledger.total()), "jobs": None, "about": None}
    if event is None:
        return {"total": None, "jobs": None if math.isinf(ledger.budget.epsilon) else 0, "about": None}

    jobs = None
    if math.isfinite(ledger.budget.epsilon):
        jobs = largest_count(lambda many: ledger.fits(ledger.total_with(event, releases, many)), _MOST_JOBS)
    about = ledger.about
    other = None if about is None or about.bounds(event) else f"about {about.unit}, {about.neighbours}"
    return {"total": _finite_or_none(ledger.total_with(event, releases)), "jobs": jobs, "about": other}


def outlook_note(facts: Record, ledger: Lifetime) -> str:
    """``outlook_facts`` in a sentence: the total after the job, and how many such jobs fit the limit."""
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


def _planned_releases(job: JobSettings, party: PartyId, nodes: int | None) -> tuple[Event | None, int]:
    """What one release of a party is, None for an infinite ε, and how many the job plans; (None, 0) without any."""
    if job.training_plan is not None:
        return job.training_plan.event, job.training_plan.steps
    if job.label_privacy is not None:
        if party not in perturbing(job):
            return None, 0
        return LocalEvent(job.label_privacy.epsilon, "label"), 1
    planned = paradigm_of(job).privacy.plan(job, party, nodes)
    if planned is not None:
        return planned.event, planned.releases
    cost = largest_epsilon(job, party, nodes)
    if cost == 0:
        return None, 0
    return (LocalEvent(cost) if math.isfinite(cost) else None), 1


def _finite_or_none(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def spent_table(spent: Mapping[PartyId, Record], job: JobSettings) -> Table:
    """Terminal table of releases and ε by holder, from ledgers' summaries (``read_spent``); infinite ε are None."""
    rows = (_account_row(party, record) for party, record in spent.items())
    scope = protection_of(job).guarantee(_largest_delta(spent)).scope
    about = f"{scope[:1].upper()}{scope[1:]}." if scope else None
    return table("Differential privacy", ("holder", ">releases", f">{PER_RELEASE}", f">{TOTAL}"), rows, caption=about)


def _largest_delta(spent: Mapping[PartyId, Record]) -> float | None:
    return max((each["delta"] for each in spent.values() if each.get("delta") is not None), default=None)


def life_note(spent: Mapping[PartyId, Record]) -> str:
    """Say which holders have a ledger for life, and which this run's alone; empty where nothing was released."""
    lasting = {party: each.get("lasting") for party, each in spent.items() if each["epsilon_total"]}
    said = []
    if counted_for_life := [party for party, lasts in lasting.items() if lasts]:
        said.append(
            f"These totals are of this run. What all runs took of {', '.join(counted_for_life)} is in each one's "
            "ledger for life: veilgraph budget JOB --party PARTY (docs/explanation/privacy.md#one-budget-for-life)."
        )
    if alone := [party for party, lasts in lasting.items() if lasts is False]:
        said.append(
            f"In the ledger of this run alone: {', '.join(alone)}. Another run on the same data costs as much again, "
            "and nothing counts both; a ledger for life does (docs/explanation/privacy.md#one-budget-for-life)."
        )
    return " ".join(said)


def effect_of_releases(summary: Record, job: JobSettings) -> str:
    """Say whether the releases of a run changed any prediction; empty where it did not compute that."""
    alone, holder = summary.get("without_releases"), job.data.label_party
    if alone is None:
        return ""
    if alone["changed"]:
        return f"The releases changed {alone['changed']:,} of {summary['nodes']:,} predictions of {holder}."
    if job.duties.summing:
        return (
            f"The release changed nothing: {holder} predicts of every node what it would without an edge; noise has "
            "left nothing in the sums over them. Allow a larger ε, or fewer hops"
        )
    return (
        f"The release changed nothing: {holder} is alone, and predicts of every node what it would without the others; "
        "noise has left no evidence in their rows. Allow a larger ε, or a unit that changes fewer rows"
    )


def _account_row(holder: PartyId, spent: Record) -> tuple[str, str, str, str]:
    """A holder's releases, ε of one and total ε."""
    total = spent["epsilon_total"]
    releases = "not counted" if total is None else releases_text(spent["releases"])
    return holder, releases, epsilon_text(spent["epsilon_release"]), epsilon_text(total)


def privacy(found: RunData) -> Section:
    """The page's section on the ledgers of a run; ``verdict`` is the largest total ε, for the head of the page."""
    job, spent = found.settings, found.spent
    protection = protection_of(job)
    if not adds_noise(job):
        return {"verdict": "none", "guarantee": protection.guarantee(), "accounts": (), "notes": ()}
    notes = [life_note(spent), *_missing_ledgers(found)]
    if found.summary is not None:
        notes.insert(0, effect_of_releases(found.summary, job))
    verdict = "nothing in a ledger here yet"
    if spent:  # the largest total holds for every holder
        totals = [each["epsilon_total"] for each in spent.values()]
        verdict = f"total ε {epsilon_text(None if None in totals else max(totals))}"
    guarantee = protection.guarantee(_largest_delta(spent))
    accounts = []
    for holder, each in spent.items():
        total, budget = each["epsilon_total"], each.get("budget")
        share = None if total is None or budget is None else bar(total, budget)
        accounts.append((*_account_row(holder, each), "" if budget is None else f"{budget:g}", share))
    return {"verdict": verdict, "guarantee": guarantee, "accounts": accounts, "notes": [*filter(None, notes)]}


def _missing_ledgers(found: RunData) -> Iterator[str]:
    run = RunDirectory(found.path)
    for holder in found.settings.data.names:
        if holder not in found.here:
            yield f"{holder}'s ledger is not in this directory."
        elif holder not in found.spent and (run.party_path(holder) / LEDGER).is_file():
            yield f"{holder}'s ledger is not summed up: that is done when a session ends well."
