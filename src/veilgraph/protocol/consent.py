"""One submitted job before the consent of one party: counted in its journal, and shown to a person where one is asked.

What is counted is on the disk before anything leaves for it. It is taken back only by the process that counted it, when
the parties did not agree and nothing was sent; a process that is killed takes nothing back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.protocol.consent_settings import (
    COUNTED,
    ConsentSettings,
    Counted,
    Entry,
    What,
    begun,
    renamed,
    resumed,
    used_up,
    was_approved,
)
from veilgraph.protocol.journal import Journal, utc_now
from veilgraph.protocol.requests import JobRequest, Waiting, waiting

_POLL_S: Final = 0.2
_ID_BYTES: Final = 16

log = logging.getLogger("veilgraph")


class Consent:
    """A party's consent to one job.

    Args:
        settings: of its party file.
        folder: of its journal, in its kit.
        request: the job.
        runs: folder of its runs.

    Raises:
        RunError: the journal cannot be used; or it is gone, and there are runs that it would have counted.
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
        """Why the job would be refused if it came now, and nothing is counted; empty when it would not.

        Args:
            aligns: whether it would begin with an alignment.
        """
        entries, now = self._journal.entries(), utc_now()
        job, alignment = (used_up(self._settings, entries, what, now) for what in COUNTED)
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

    @contextmanager
    def alignment(self) -> Iterator[str]:
        """As ``job``, for an alignment within it."""
        with self._counted("alignment") as refuses:
            yield refuses

    def answer(self, wait_s: float) -> str | None:
        """Asks a person, the first time, and waits so long: a refusal, empty for approval; None for no answer yet."""
        if self._shown is None:
            self._ask()
        until = min(time.monotonic() + wait_s, self._deadline)
        while (found := self._answered()) is None and time.monotonic() < until:
            time.sleep(_POLL_S)
        if found is None and time.monotonic() >= self._deadline:
            found = self._refused(
                f"consent.approval=ask and nobody approved it within consent.approval_wait_s="
                f"{self._settings.approval_wait_s:g}: submit it when somebody is there"
            )
        return found

    @contextmanager
    def _counted(self, what: Counted) -> Iterator[str]:
        refuses, taken = self._take(what)
        try:
            yield refuses
        except BaseException:
            if taken is not None:
                with suppress(RunError), self._journal.held() as journal:  # it stays counted then
                    journal.append(self._entry("returned", of=taken))
            raise

    def _take(self, what: Counted) -> tuple[str, str | None]:
        """Why not, or the id of what was counted."""
        with self._journal.held() as journal:
            if renamed(journal.entries, self._entry(what)):
                return f"job {self._request.job} was here with other settings: submit these as a job of their own", None
            goes_on = self._begun(journal.entries) if what == "job" else None
            if goes_on is not None:
                self._continues = True
                entry = self._entry("resumed", of=goes_on.id)
            elif refuses := used_up(self._settings, journal.entries, what, utc_now()):
                return refuses, None
            else:
                entry = self._entry(what)
            journal.append(entry)
        if what == "job":
            self._job = entry.id
        return "", entry.id

    def _begun(self, entries: Sequence[Entry]) -> Entry | None:
        """The training that this session goes on with, where it neither counts nor is asked about anew."""
        request = self._request
        if request.work != "train" or not request.resume:
            return None
        job = begun(entries, request.settings.hash())
        if job is None or resumed(entries, job) >= self._settings.resumes:
            return None
        return None if self._settings.approval == "ask" and not was_approved(entries, job) else job

    def _ask(self) -> None:
        self._deadline = time.monotonic() + self._settings.approval_wait_s
        asked = self._entry("asked", of=self._job)
        self._shown = self._stack.enter_context(waiting(self._folder, self._request, asked.id))
        with self._journal.held() as journal:
            journal.append(asked)
        log.info(
            "%s (%s) waits for approval: veilgraph net approve %s --kit %s",
            self._request.settings.name,
            self._request.work,
            self._request.job,
            self._folder.parent,
        )

    def _answered(self) -> str | None:
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
                return self._refused(f"a person there decided so{f': {entry.reason}' if entry.reason else ''}")
        return None

    def _refused(self, reason: str) -> str:
        log.info("not approved: %s", reason)
        return reason

    def _entry(self, what: What, of: str = "") -> Entry:
        settings = self._request.settings
        return Entry(
            time=utc_now(),
            what=what,
            id=token_hex(_ID_BYTES),
            of=of,
            job=self._request.job,
            name=settings.name,
            work=self._request.work,
            resume=self._request.resume,
            settings=settings.hash(),
        )
