"""How often a party takes part in jobs across organisations, and who is asked.

Limits judge one job by what it reveals. What many jobs reveal adds up, so a journal counts them: one JSON object a
line, appended by one process at a time and on the disk before anything leaves for what it counts. Where a crash tore
the last line nobody knows what it said, so it counts as anything. What was counted is taken back only by the process
that counted it, when the parties did not agree and nothing was sent.

A person at a site is asked by a file for each waiting job, held by the process that waits. The answer names the SHA-256
of exactly what was shown, settings and a number that no other request has: it answers nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Final, Literal

from pydantic import AwareDatetime, Field, SerializeAsAny, ValidationError
from pydantic_core import from_json

from veilgraph.core.chain import whole_lines
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import append, descriptor_of, locked, os_errors_as, private_folder, sync_folder
from veilgraph.core.settings import Exact
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.party_settings import ConsentSettings

DAY: Final = timedelta(hours=24)

Counted = Literal["job", "alignment"]
COUNTED: Final[tuple[Counted, ...]] = ("job", "alignment")
What = Literal["job", "resumed", "alignment", "returned", "asked", "approved", "refused", "torn", "unreadable"]


class Entry(Exact):
    """One line of the journal."""

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


def counting_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries that count, in order: those not returned, and lines that cannot be read."""
    entries = list(entries)
    returned = {entry.of for entry in entries if entry.what == "returned"}
    return [
        entry
        for entry in entries
        if entry.what == "unreadable" or (entry.what in ("job", "resumed", "alignment") and entry.id not in returned)
    ]


def count(entries: Sequence[Entry], what: Counted, since: datetime | None = None) -> int:
    """Count the jobs or alignments that stand, all or those after ``since``; unreadable lines count as either."""
    return sum(
        entry.what in (what, "unreadable") and (since is None or entry.time > since)
        for entry in counting_entries(entries)
    )


def limit_reached(settings: ConsentSettings, entries: Sequence[Entry], what: Counted, now: datetime) -> str:
    """Why limits allow no further job or alignment now, or "" if they do; names a limit and its value, no count."""
    in_all, per_day = getattr(settings, f"{what}s"), getattr(settings, f"{what}s_per_day")
    if in_all is not None and count(entries, what) >= in_all:
        return f"consent.{what}s={in_all} is used up: raise it, or ask for no more"
    if per_day is not None and count(entries, what, now - DAY) >= per_day:
        return f"consent.{what}s_per_day={per_day} is used up: wait for at most 24 hours, or raise it"
    return ""


log = logging.getLogger("veilgraph")


class Consent:
    """A party's consent to one job; ``folder`` has its journal, ``runs`` its runs.

    Raises ``RunError``: the journal cannot be used; or it is gone, and there are runs that it would have counted.
    """

    def __init__(self, settings: ConsentSettings, folder: Path, request: JobRequest, runs: Path) -> None:
        self._settings, self._folder, self._request = settings, folder, request
        self._journal = Journal(folder)
        self._job = ""
        self._continues = False
        self._stack = ExitStack()
        self._shown: Waiting | None = None
        self._deadline = 0.0
        self._read = 0
        if settings.limited and not self._journal.path.exists() and any(runs.glob("*/job.yaml")):
            raise RunError(
                f"{self._journal.path} is missing and there are runs in {runs}, so that nobody knows how many jobs "
                f"there were; restore it, or count from zero: touch {self._journal.path} && chmod 600 "
                f"{self._journal.path}"
            )

    def against(self, *, aligns: bool) -> str:
        """Why the job would be refused if it came now, beginning with an alignment if it ``aligns``; counts nothing."""
        entries, now = self._journal.entries(), utc_now()
        job, alignment = (limit_reached(self._settings, entries, what, now) for what in COUNTED)
        return job or (alignment if aligns else "")

    @property
    def asks(self) -> bool:
        """Whether a person has to approve; known once the job is counted."""
        return self._settings.approval == "ask" and not self._continues

    @contextmanager
    def job(self) -> Iterator[str]:
        """Counts the job; yields why it is refused, empty when it is not. An error in the block takes it back."""
        with self._stack, self._counted("job") as refuses:
            yield refuses

    def alignment(self) -> AbstractContextManager[str]:
        """As ``job``, for an alignment within it."""
        return self._counted("alignment")

    def answer(self, wait_s: float) -> str | None:
        """Ask a person, the first time, and wait so long: a refusal, empty for approval; None for no answer yet."""
        if self._shown is None:
            self._ask()
        until = min(time.monotonic() + wait_s, self._deadline)
        while (found := self._read_answer()) is None and time.monotonic() < until:
            time.sleep(0.2)
        if found is None and time.monotonic() >= self._deadline:
            found = self._log_refusal(
                f"consent.approval=ask and nobody approved it within consent.approval_wait_s="
                f"{self._settings.approval_wait_s:g}: submit it when somebody is there"
            )
        return found

    @contextmanager
    def _counted(self, what: Counted) -> Iterator[str]:
        """Count a job or alignment; yields why it is refused, or "". An error in the block takes the count back."""
        refuses, taken = self._count_or_refuse(what)
        try:
            yield refuses
        except BaseException:
            if taken is not None:
                with suppress(RunError), self._journal.held():  # it stays counted then
                    self._journal.append(self._new_entry("returned", of=taken))
            raise

    def _count_or_refuse(self, what: Counted) -> tuple[str, str | None]:
        """Append an entry to the journal unless a rule forbids it: the refusal, or "", and the entry's id, or None."""
        new = self._new_entry(what)
        with self._journal.held() as entries:
            before = {
                (each.work, each.resume, each.settings) for each in entries if each.job == new.job and each.settings
            }
            # Of a job's id that stood for another job: what was shown under it is not this.
            if before - {(new.work, new.resume, new.settings)}:
                return f"job {new.job} was here with other settings: submit these as a job of their own", None
            goes_on = self._resumed_training(entries) if what == "job" else None
            if goes_on is not None:
                self._continues = True
                new = new.model_copy(update={"what": "resumed", "of": goes_on.id})
            elif refuses := limit_reached(self._settings, entries, what, utc_now()):
                return refuses, None
            self._journal.append(new)
        if what == "job":
            self._job = new.id
        return "", new.id

    def _resumed_training(self, entries: Sequence[Entry]) -> Entry | None:
        """Return the entry of the training that this session resumes uncounted and without being asked; else None."""
        request, counted = self._request, counting_entries(entries)
        this = ("job", "train", request.settings.hash())
        trained = [each for each in counted if (each.what, each.work, each.settings) == this]
        if request.work != "train" or not request.resume or not trained:
            return None
        job = trained[-1]
        resumed = sum(each.what == "resumed" and each.of == job.id for each in counted)
        asked = {each.id for each in entries if each.what == "asked" and each.of == job.id}
        approved = any(each.what == "approved" and each.of in asked for each in entries)
        goes_on = resumed < self._settings.resumes and (approved or self._settings.approval != "ask")
        return job if goes_on else None

    def _ask(self) -> None:
        """Show the request to people at the site, and note the question in the journal."""
        self._deadline = time.monotonic() + self._settings.approval_wait_s
        asked = self._new_entry("asked", of=self._job)
        self._shown = self._stack.enter_context(waiting(self._folder, self._request, asked.id))
        with self._journal.held():
            self._journal.append(asked)
        log.info(
            "%s (%s) waits for approval: veilgraph net consent approve %s --kit %s",
            self._request.settings.name,
            self._request.work,
            self._request.job,
            self._folder.parent,
        )

    def _read_answer(self) -> str | None:
        """Look for an answer in what was added to the journal: "" for approval, a refusal, or None for none yet."""
        if (size := self._journal.size()) == self._read:
            return None
        self._read = size
        for entry in self._journal.entries():
            shown = self._shown
            if shown is None or (entry.of, entry.request) != (shown.asked, shown.fingerprint):
                continue
            if entry.what == "approved":
                log.info("a person here approved the job")
                return ""
            if entry.what == "refused":
                return self._log_refusal(f"a person there decided so{f': {entry.reason}' if entry.reason else ''}")
        return None

    def _log_refusal(self, reason: str) -> str:
        log.info("not approved: %s", reason)
        return reason

    def _new_entry(self, what: What, of: str = "") -> Entry:
        settings = self._request.settings
        return Entry(
            time=utc_now(),
            what=what,
            id=token_hex(16),
            of=of,
            job=self._request.job,
            name=settings.name,
            work=self._request.work,
            resume=self._request.resume,
            settings=settings.hash(),
        )


def utc_now() -> datetime:
    """What the system's clock says, UTC."""
    return datetime.now(UTC)


class Journal:
    """A journal in a folder that only this account can read: made at need, 0700, with the journal in it 0600."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.jsonl"
        with os_errors_as(RunError, f"{folder}: cannot be made", "keep the kit where you may write"):
            private_folder(folder)
            for path in (folder, self.path):
                if path.exists() and path.stat().st_mode & 0o077:
                    raise RunError(f"{path} is open to other accounts; close it: chmod go= {path}")

    def size(self) -> int:
        """Size of the journal in bytes, which grows with every line; 0 without a file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def entries(self) -> list[Entry]:
        """All complete lines so far, without waiting for a process that adds one."""
        return _parse_entries(whole_lines(self.path))

    def entries_of(self, settings: str) -> list[Entry]:
        """The entries about jobs whose settings have this SHA-256, answers and returns among them."""
        entries = self.entries()
        own = {each.id for each in entries if each.settings == settings}
        return [each for each in entries if each.settings == settings or each.of in own]

    @contextmanager
    def held(self) -> Iterator[list[Entry]]:
        """Lock the journal in the block, and yield its entries; other processes wait. Raises ``RunError``.

        A line that a crash tore is ended, and counts as anything.
        """
        way_out = "no job is taken part in uncounted: mend that first"
        with (
            os_errors_as(RunError, f"{self.path}: cannot be used", way_out),
            locked(self.path.parent, f"{self.path.parent} is in use", wait_s=math.inf),
        ):
            if not self.path.exists():
                append(self.path, b"")
                sync_folder(self.path.parent)
            content = self.path.read_bytes()
            if content and not content.endswith(b"\n"):
                append(self.path, b"\n" + _json_line(Entry(time=utc_now(), what="torn")), sync=True)
            yield self.entries()

    def append(self, entry: Entry) -> None:
        """Add a line while it is held: it is on the disk when this returns."""
        append(self.path, _json_line(entry), sync=True)


def _json_line(entry: Entry) -> bytes:
    return entry.model_dump_json(exclude_defaults=True).encode() + b"\n"


def _parse_entries(lines: Sequence[bytes]) -> list[Entry]:
    """Parse the journal's lines; one that cannot be read is an entry with the time of the next that can."""
    entries: list[Entry] = []
    after = utc_now()
    for line in reversed(lines):
        if not line.strip():
            continue
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError:
            entry = Entry(time=after, what="unreadable")
        after = entry.time
        entries.append(entry)
    return entries[::-1]


REQUESTS: Final = "requests"  # folder beside the journal
MAX_REASON_CHARACTERS: Final = 200


class JobRequest(Exact):
    """What a submitted job asks of a party."""

    job: str = Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$")
    """The engine's id of it: a name of a file here."""
    work: str
    resume: bool
    settings: SerializeAsAny[JobSettings]


@dataclass(frozen=True)
class Waiting:
    """A job that waits for a person.

    ``asked`` is the number of the question; ``fingerprint`` the SHA-256 (hex) of both, as they were written.
    """

    request: JobRequest
    asked: str
    fingerprint: str


@contextmanager
def waiting(folder: Path, request: JobRequest, asked: str) -> Iterator[Waiting]:
    """Write a request's file for people to see, and hold it for the block; it is no longer shown after a kill.

    ``asked`` is the number of the question, used once. Raises ``RunError`` if the file cannot be written.
    """
    content = json.dumps({"asked": asked, **request.model_dump(mode="json")}, indent=1).encode()
    path = folder / REQUESTS / f"{request.job}.json"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os_errors_as(RunError, f"{path}: cannot be written", "keep the kit where you may write"):
        private_folder(path.parent)
        descriptor = descriptor_of(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever finds it free knows that nobody waits any more
        os.writev(descriptor, [content])
        temporary.replace(path)
        yield Waiting(request, asked, hashlib.sha256(content).hexdigest())
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def all_waiting(folder: Path) -> list[Waiting]:
    """The jobs that wait at a site, whose consent is in ``folder``; one that cannot be read is left out."""
    found = (_read_waiting(path) for path in sorted((folder / REQUESTS).glob("[!.]*.json")))
    return [each for each in found if each is not None]


def answer(folder: Path, shown: Waiting, *, approved: bool, reason: str = "") -> None:
    """Write a person's answer to what was shown; raises ``ConfigError`` for a reason too long or not one line."""
    if len(reason) > MAX_REASON_CHARACTERS or not reason.isprintable():
        raise ConfigError(f"reason={reason[:20]!r}…: at most {MAX_REASON_CHARACTERS} printable characters on one line")
    entry = Entry(
        time=utc_now(),
        what="approved" if approved else "refused",
        of=shown.asked,
        job=shown.request.job,
        request=shown.fingerprint,
        reason=reason,
    )
    journal = Journal(folder)
    with journal.held():
        journal.append(entry)


def _read_waiting(path: Path) -> Waiting | None:
    """Read a request's file; None where its process has ended, or it cannot be read."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                content = file.read()
            else:
                return None
        shown = from_json(content)
        asked, settings = str(shown.pop("asked")), parse_job(shown.pop("settings"))
        return Waiting(JobRequest(**shown, settings=settings), asked, hashlib.sha256(content).hexdigest())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):
        return None
