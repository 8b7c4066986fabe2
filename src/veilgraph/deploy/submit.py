"""A job that an administrator submits from afar: settings, no code and no data.

Every site checks it against its own policy and its own party file.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from typing import Any, Final

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, PeerFailed, RunError, VeilgraphError
from veilgraph.core.text import Report
from veilgraph.core.types import PartyId
from veilgraph.deploy.asking import AdministratorConnection, administrator, not_connected
from veilgraph.deploy.failures import CONSEQUENCES, errors_of, sites_of
from veilgraph.deploy.kit import Kit, SiteWork
from veilgraph.deploy.progress import JobReport
from veilgraph.deploy.roles import Roles
from veilgraph.protocol.job import JobSettings

_REJOIN_S: Final = 120.0
_ANSWER_S: Final = 20.0
_POLL_S: Final = 1.0
_WITHIN_S: Final = (3.0, 12.0)  # for answers: the longest after a poll that some site left open, as a busy one does
_CAUSE_S: Final = 5.0  # in which the others say what they know of a failure: the first may not know why
_END_S: Final = 40.0  # twice what a stopped process has to end by itself
_SILENT_S: Final = 60.0  # a site that does not answer for so long is lost


def submit(
    kit: Kit,
    settings: JobSettings,
    work: SiteWork,
    *,
    resume: bool,
    wait: bool,
    report: Report,
    retries: int = 0,
    connect_s: float = 30.0,
) -> str:
    """Submits a job with an administrator's kit and, if asked to, waits for its end; returns its id.

    ``report`` is called with a line when something happens. With ``wait`` it goes on ``retries`` times after a lost
    party or connection. ``connect_s`` is the longest wait for the broker, and for sites that are not connected.

    Raises ``ConfigError``: a party refused the job; ``LinkError``: no connection, or a site is not connected;
    ``RunError``: the job failed.
    """
    check_names(settings)
    for retry in range(retries + 1):
        try:
            options: dict[str, Any] = {"resume": resume, "wait": wait, "report": report, "connect_s": connect_s}
            return _submit(kit, settings, work, **options, again=retry > 0)
        except CONSEQUENCES as error:
            if retry == retries:
                raise
            report(f"{error}; going on")
            resume, connect_s = True, max(connect_s, _REJOIN_S)
    raise RunError(f"retries={retries} must be at least 0")


def refresh(
    kit: Kit, settings: JobSettings, *, wait: bool, report: Report, retries: int = 0, connect_s: float = 30.0
) -> str:
    """Have the parties predict anew from their tables and, in a job with ``online``, answer from that prediction.

    A session that answers from the prediction before is stopped first, and submitted again where the new one fails.
    ``wait`` is for the last of what is submitted, whose id is returned. The rest, and errors, are as for ``submit``.
    """
    check_names(settings)
    online = settings.outcome.keeps_shares

    def submitted(work: SiteWork, waits: bool) -> str:
        options: dict[str, Any] = {"report": report, "retries": retries, "connect_s": connect_s}
        return submit(kit, settings, work, resume=False, wait=waits, **options)

    stopped = online and _stop_answers(kit, settings, report, connect_s)
    try:
        predicted = submitted("predict", wait or online)
    except VeilgraphError:
        if stopped:
            report("there is no new prediction; answering from the one before")
            submitted("answer", False)
        raise
    return submitted("answer", wait) if online else predicted


def _stop_answers(kit: Kit, settings: JobSettings, report: Report, connect_s: float) -> bool:
    """Stop a job's sessions that answer, and wait for their end: whether there were any; ``RunError``: one goes on."""
    sites, deadline, stopped = sites_of(settings, kit.roles), time.monotonic() + _END_S, set[str]()
    with administrator(kit, connect_s) as ops:
        while True:
            running = _answering(ops.jobs(sites, _ANSWER_S), settings)
            for job_id in running - stopped:
                report(f"{job_id[:8]}: answers from the prediction before; stopping it")
                ops.ask(sites, _ANSWER_S, ask="stop", about=job_id)
            stopped |= running
            if not running:
                return bool(stopped)
            if time.monotonic() > deadline:
                way_out = "end it with: veilgraph net stop, and refresh again"
                raise RunError(
                    f"{', '.join(sorted(running))} still answers {_END_S:g} s after it was stopped; {way_out}"
                )
            time.sleep(_POLL_S)


def _answering(said: Mapping[PartyId, Sequence[JobReport]], settings: JobSettings) -> set[str]:
    """Ids of a job's sessions that answer at some site."""
    named = (job for job in chain.from_iterable(said.values()) if job.name == settings.name and job.work == "answer")
    return {job.job for job in named if job.state == "running"}


def _submit(
    kit: Kit,
    settings: JobSettings,
    work: SiteWork,
    *,
    resume: bool,
    wait: bool,
    report: Report,
    connect_s: float,
    again: bool,
) -> str:
    """Submit a job once; arguments and errors as ``submit``.

    ``again``: the same session was lost, and may still be ending at a site, which waits for that.
    """
    roles = kit.roles
    sites = sites_of(settings, roles)
    with administrator(kit, connect_s) as ops:
        said = ops.jobs(sites, connect_s)
        if missing := [site for site in sites if site not in said]:
            raise not_connected(missing, roles)
        if not again and (answering := _answering(said, settings)):
            raise RunError(
                f"{settings.name}: job {min(answering)} answers from this run, and no other job can use it meanwhile; "
                "have it answer from a new prediction with --work refresh, or end it with: veilgraph net stop",
                code="in-use",
            )
        job_id, job = secrets.token_hex(16), settings.model_dump(mode="json")
        answers = ops.ask(sites, _ANSWER_S, id=job_id, ask="run", job=job, work=work, resume=resume)
        refusals = [f"{site}: {answer.refuses}" for site, answer in answers.items() if answer.refuses]
        if refusals or len(answers) < len(sites):
            with suppress(LinkError):
                ops.ask(sites, _ANSWER_S, ask="stop", about=job_id)
            if refusals:
                raise RunError(f"job {job_id} was not begun: {'; '.join(refusals)}")
            raise _lost_error(job_id, [site for site in sites if site not in answers], roles)
        report(f"submitted {settings.name} ({work}) as {job_id}; {roles.in_job(settings)}")
        if wait:
            _await_end(ops, job_id, report, sites, roles)
    return job_id


def check_names(settings: JobSettings) -> None:
    """Refuses with ``ConfigError`` a job that names files, or data."""
    if not settings.data.is_apart:
        names = ", ".join(settings.data.names)
        raise ConfigError(
            "data.holders: a submitted job names its holders and nothing of their files; write under data, in place of "
            f"its source, holders: [{names}]"
        )


def _await_end(
    ops: AdministratorConnection, job_id: str, report: Report, sites: tuple[PartyId, ...], roles: Roles
) -> None:
    """Wait until the job has ended at every site; once one failed, stop the others. Raises the job's error."""
    said, heard, failed_at = "", dict.fromkeys(sites, time.monotonic()), 0.0
    known, within_s = dict[PartyId, JobReport](), _WITHIN_S[0]
    for _ in count():
        with suppress(LinkError):
            answered = ops.jobs(sites, within_s)
            within_s = _WITHIN_S[0] if len(answered) == len(sites) else min(2 * within_s, _WITHIN_S[1])
            for site, words in answered.items():
                of_none = JobReport(job=job_id, state="ended")
                known[site] = word = next((each for each in words if each.job == job_id), of_none)
                heard[site] = time.monotonic()
                if word.says and word.says != said:
                    said = word.says
                    report(f"{job_id[:8]}: {said}")
        states = {site: each.state for site, each in known.items()}
        running = [site for site in sites if states.get(site, "running") == "running"]
        if not running:
            break
        if len(running) < len(sites) and any(state not in ("running", "done") for state in states.values()):
            failed_at = failed_at or time.monotonic()
            if time.monotonic() > failed_at + _CAUSE_S:
                with suppress(LinkError):
                    ops.ask(running, _CAUSE_S, ask="stop", about=job_id)
                break
        if lost := [site for site in running if time.monotonic() > heard[site] + _SILENT_S]:
            raise _lost_error(job_id, lost, roles)
        time.sleep(_POLL_S)
    if error := cause(known, sites, roles):
        raise error
    if stopped := [site for site, state in states.items() if state == "stopped"]:
        way_out = (
            "go on with --resume"
            if any(each.work == "train" for each in known.values())
            else "submit it again to go on"
        )
        raise RunError(f"job {job_id} was stopped at {', '.join(stopped)}; {way_out}")


def _lost_error(job_id: str, sites: Sequence[PartyId], roles: Roles) -> LinkTimeout:
    """The error for sites that were connected, and answer no more."""
    silent = not_connected(sites, roles)
    return LinkTimeout(f"job {job_id}: {silent}; go on with --resume", code=silent.code, party=silent.party)


def cause(known: Mapping[PartyId, JobReport], sites: tuple[PartyId, ...], roles: Roles) -> VeilgraphError | None:
    """Why a job failed, by what its sites say; None where none did."""
    failures = {site: each.failure for site, each in known.items() if each.failure is not None}
    ended = next((site for site, each in known.items() if each.state == "ended"), None)
    stopped = any(each.state == "stopped" for each in known.values())
    if not failures and ended is None:
        return None
    if stopped and ended is None and all(each.is_consequence for each in failures.values()):
        return None
    error = errors_of(failures, sites, roles, ended)[0]
    return error.told(f"{error}; go on with --resume") if isinstance(error, (PeerFailed, LinkTimeout)) else error
