"""The privacy ledgers: what each holder's releases have cost so far, and of which budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.report.epsilon import epsilon_text
from veilgraph.report.page.charts import bar
from veilgraph.report.page.found import Found
from veilgraph.report.page.guarantee import Guarantee, guarantee
from veilgraph.report.spent import life_note, worth
from veilgraph.run.ledgers import LEDGER, LEDGER_SUMMARY
from veilgraph.run.run_directory import RunDirectory


class _Ledger(BaseModel):
    releases: dict[str, int]
    epsilon_release: float | None
    epsilon_total: float | None
    delta: float | None = None
    budget: float | None = None
    lasting: bool | None = None


@dataclass(frozen=True)
class Account:
    """One holder's ledger.

    Attributes:
        holder: whose.
        releases: what was published how often, in words.
        epsilon_release: of one release by itself.
        epsilon_total: of all releases so far.
        budget: the largest total that it accepts; empty where it has none.
        share: of the budget, in per cent; None where it has none, or the total is infinite.
    """

    holder: PartyId
    releases: str
    epsilon_release: str
    epsilon_total: str
    budget: str
    share: float | None


@dataclass(frozen=True)
class Privacy:
    """The section.

    Attributes:
        verdict: the total in a few words, for the head of the page.
        guarantee: what it means.
        accounts: one for each ledger that is here.
        notes: what the releases were worth, and what is missing.
    """

    verdict: str
    guarantee: Guarantee
    accounts: tuple[Account, ...] = ()
    notes: tuple[str, ...] = ()


def privacy(found: Found) -> Privacy:
    """What the ledgers of a run come to.

    Raises:
        RunError: a ledger's summary is damaged.
    """
    job = found.settings
    if not job.adds_noise:
        return Privacy("none", guarantee(job))
    ledgers = _ledgers(found)
    accounts = tuple(_account(holder, ledger) for holder, ledger in ledgers.items())
    notes = _missing(found, ledgers)
    if said := life_note({holder: ledger.model_dump() for holder, ledger in ledgers.items()}):
        notes = (said, *notes)
    if found.summary is not None and (said := worth(found.summary, job)):
        notes = (said, *notes)
    deltas = [ledger.delta for ledger in ledgers.values() if ledger.delta is not None]
    return Privacy(_verdict(ledgers), guarantee(job, max(deltas, default=None)), accounts, notes)


def _verdict(ledgers: dict[PartyId, _Ledger]) -> str:
    """The largest total: it holds for every holder."""
    if not ledgers:
        return "nothing in a ledger here yet"
    totals = [ledger.epsilon_total for ledger in ledgers.values()]
    known = [total for total in totals if total is not None]
    return f"total ε {epsilon_text(None if len(known) < len(totals) else max(known))}"


def _account(holder: PartyId, ledger: _Ledger) -> Account:
    published = ", ".join(f"{channel} {count:,}" for channel, count in ledger.releases.items() if count)
    total, budget = ledger.epsilon_total, ledger.budget
    return Account(
        holder,
        "not counted" if total is None else published or "none",
        epsilon_text(ledger.epsilon_release),
        epsilon_text(total),
        "" if budget is None else f"{budget:g}",
        None if total is None or budget is None else bar(total, budget),
    )


def _missing(found: Found, ledgers: dict[PartyId, _Ledger]) -> tuple[str, ...]:
    notes, run = [], RunDirectory(found.path)
    for holder in found.settings.data.names:
        if holder not in found.here:
            notes.append(f"{holder}'s ledger is not in this directory.")
        elif holder not in ledgers and (run.party_path(holder) / LEDGER).is_file():
            notes.append(f"{holder}'s ledger is not summed up: that is done when a session ends well.")
    return tuple(notes)


def _ledgers(found: Found) -> dict[PartyId, _Ledger]:
    run = RunDirectory(found.path)
    paths = {holder: run.party_path(holder) / LEDGER_SUMMARY for holder in found.settings.data.names}
    return {holder: _read(path) for holder, path in paths.items() if path.is_file()}


def _read(path: Path) -> _Ledger:
    try:
        return _Ledger.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{path}: damaged ({error}); a new prediction writes it anew from the ledger") from error
