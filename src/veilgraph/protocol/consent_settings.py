"""How often a party takes part in jobs across organisations, and who is asked: settings, what is counted, refusals.

Limits (``protocol.limits``) judge one job by what it reveals. What many jobs reveal adds up, so consent counts them.
The counts are made of the entries of a journal (``protocol.journal``), which outlives every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from veilgraph.core.settings import Settings

DAY: Final = timedelta(hours=24)
MAX_APPROVAL_WAIT_S: Final = 7 * 86400.0

Counted = Literal["job", "alignment"]
COUNTED: Final[tuple[Counted, ...]] = ("job", "alignment")
What = Literal["job", "resumed", "alignment", "returned", "asked", "approved", "refused", "torn", "unreadable"]


class ConsentSettings(Settings):
    """How often a party takes part, across organisations; the defaults count and ask for nothing."""

    jobs: int | None = Field(None, ge=0, description="most jobs in all that this kit takes part in; null: any number")
    jobs_per_day: int | None = Field(None, ge=0, description="most jobs within 24 hours; null: any number")
    resumes: int = Field(
        5, ge=0, description="sessions that go on with one training before the next counts as a job of its own"
    )
    alignments: int | None = Field(
        None, ge=0, description="most alignments in all: each tells others which of their ids are common now"
    )
    alignments_per_day: int | None = Field(None, ge=0, description="most alignments within 24 hours")
    approval: Literal["limits", "ask"] = Field(
        "limits", description="limits: what is within the limits is accepted; ask: a person approves each job as well"
    )
    approval_wait_s: float = Field(
        3600.0, gt=0, le=MAX_APPROVAL_WAIT_S, description="longest wait for that person; then the job is refused"
    )

    @property
    def limited(self) -> bool:
        """Whether anything is counted against a limit."""
        return any(
            limit is not None for limit in (self.jobs, self.jobs_per_day, self.alignments, self.alignments_per_day)
        )


class Entry(BaseModel):
    """One line of the journal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: AwareDatetime
    what: What
    id: str = ""
    """Random; names what was counted or asked."""
    of: str = ""
    """``id`` of what is returned, resumed (its job), asked about (its job), approved or refused (what was asked)."""
    job: str = ""
    """The engine's id of the submitted job."""
    name: str = ""
    work: str = ""
    resume: bool = False
    settings: str = ""
    """SHA-256 of the job's settings."""
    request: str = ""
    """SHA-256 of what a person was, or is, asked about."""
    reason: str = ""


def standing(entries: Iterable[Entry]) -> list[Entry]:
    """What counts, in order: all that was not returned. A line that cannot be read counts as anything."""
    entries = list(entries)
    returned = {entry.of for entry in entries if entry.what == "returned"}
    return [
        entry
        for entry in entries
        if entry.what == "unreadable" or (entry.what in ("job", "resumed", "alignment") and entry.id not in returned)
    ]


def count(entries: Sequence[Entry], what: Counted, since: datetime | None = None) -> int:
    """How many jobs or alignments there were; after ``since``, those that lie ahead of the clock included."""
    return sum(
        entry.what in (what, "unreadable") and (since is None or entry.time > since) for entry in standing(entries)
    )


def used_up(settings: ConsentSettings, entries: Sequence[Entry], what: Counted, now: datetime) -> str:
    """Why there may not be one more now; empty when there may. It names the limit and its value, never a count."""
    in_all, per_day = (
        (settings.jobs, settings.jobs_per_day) if what == "job" else (settings.alignments, settings.alignments_per_day)
    )
    if in_all is not None and count(entries, what) >= in_all:
        return f"consent.{what}s={in_all} is used up: raise it, or ask for no more"
    if per_day is not None and count(entries, what, now - DAY) >= per_day:
        return f"consent.{what}s_per_day={per_day} is used up: wait for at most 24 hours, or raise it"
    return ""


def renamed(entries: Iterable[Entry], new: Entry) -> bool:
    """Whether the engine's id of a job stood for another job before: what was shown under it is not this."""
    return any(
        entry.job == new.job
        and entry.settings
        and (entry.work, entry.resume, entry.settings) != (new.work, new.resume, new.settings)
        for entry in entries
    )


def begun(entries: Sequence[Entry], settings_hash: str) -> Entry | None:
    """The newest training of exactly these settings that was counted; None without one."""
    trained = (
        entry
        for entry in reversed(standing(entries))
        if entry.what == "job" and entry.work == "train" and entry.settings == settings_hash
    )
    return next(trained, None)


def resumed(entries: Sequence[Entry], job: Entry) -> int:
    """How many sessions went on with a job."""
    return sum(entry.what == "resumed" and entry.of == job.id for entry in standing(entries))


def was_approved(entries: Sequence[Entry], job: Entry) -> bool:
    """Whether a person approved a job that was counted."""
    asked = {entry.id for entry in entries if entry.what == "asked" and entry.of == job.id}
    return any(entry.what == "approved" and entry.of in asked for entry in entries)
