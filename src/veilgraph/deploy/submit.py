"""A job that an administrator submits from afar: settings, no code and no data.

Every site checks it against its own policy and its own party file.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Literal

from nvflare.fuel.flare_api.flare_api import Session

from veilgraph.core.errors import ConfigError, LinkTimeout, PeerFailed, RunError, VeilgraphError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.core.types import PartyId
from veilgraph.deploy.failures import CONSEQUENCES, sites_of
from veilgraph.deploy.kit import Kit, SiteWork
from veilgraph.deploy.roles import Roles
from veilgraph.deploy.session import (
    FINISHED,
    POLL_S,
    RUNNING,
    admin_session,
    answered,
    last_said,
    missing,
    not_connected,
    reported,
    server_log,
)
from veilgraph.deploy.submission import FOLDER, submission_files
from veilgraph.protocol.job import JobSettings

_REJOIN_S: Final = 120.0
_POLLS_PER_LOG: Final = 3
_SUBMITTED: Final = "SUBMITTED"
_COMPLETED: Final = "FINISHED:COMPLETED"
_ABORTED: Final = "FINISHED:ABORTED"
_ABNORMAL: Final = "FINISHED:ABNORMAL"
"""Also what a server says of jobs that it finds running as it begins (``guard.ended``)."""
_ENDED: Final = "ended"
"""Code of the error of a job that the engine ended without a party's word of why."""

Report = Callable[[str], None]


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
    """Submits a job and, if asked to, waits for its end.

    Args:
        kit: an administrator's.
        settings: the job; its ``data.holders`` are names.
        work: what to do.
        resume: go on with the run of this name.
        wait: return only when the job has ended.
        report: called with a line when something happens.
        retries: after a lost party or connection, go on with the run so many times; for ``wait`` only.
        connect_s: longest wait for the server, and for holders, or a dealer, that are not connected, before the job is
            submitted and, with ``wait``, before it begins.

    Returns:
        FLARE's id of the job.

    Raises:
        ConfigError: a party refused the job.
        LinkError: no connection, or a site is not connected.
        RunError: the job failed.
    """
    check_names(settings)
    for retry in range(retries + 1):
        try:
            return _submit(
                kit, settings, work, resume=resume, wait=wait, report=report, connect_s=connect_s, anew=retry > 0
            )
        except (PeerFailed, LinkTimeout, RunError) as error:
            if retry == retries or (isinstance(error, RunError) and error.code != _ENDED):
                raise
            report(f"{error}; going on")
            resume, connect_s = True, max(connect_s, _REJOIN_S)
    raise RunError(f"retries={retries} must be at least 0")


def _submit(
    kit: Kit,
    settings: JobSettings,
    work: SiteWork,
    *,
    resume: bool,
    wait: bool,
    report: Report,
    connect_s: float,
    anew: bool,
) -> str:
    with admin_session(kit, connect_s) as session:
        roles = kit.roles
        sites = sites_of(settings, roles)
        _await_sites(session, sites, roles, connect_s, anew=anew)
        with tempfile.TemporaryDirectory() as folder:
            submission = write_submission(Path(folder), settings, work, resume=resume, sites=sites)
            job_id = str(session.submit_job(str(submission)))
        report(f"submitted {settings.name} ({work}) as {job_id}; {roles}")
        if wait:
            _await_end(session, job_id, report, sites, roles, connect_s)
    return job_id


def check_names(settings: JobSettings) -> None:
    """Refuses a job that names files, or data.

    Raises:
        ConfigError: it does.
    """
    if not settings.data.is_apart:
        raise ConfigError(
            "data.holders: a submitted job names its holders and nothing of their files, as in "
            "data: {holders: [bank, shop]}"
        )


def write_submission(
    folder: Path, settings: JobSettings, work: SiteWork | Literal["check"], *, resume: bool, sites: Sequence[PartyId]
) -> Path:
    """Write a job below a folder as the sites accept it, and return the folder to submit.

    Raises:
        ConfigError: the job is too long, or a name in it is malformed.
    """
    submission = folder / FOLDER
    job = settings.model_dump(mode="json")
    for name, content in submission_files(job, work, resume=resume, sites=sites).items():
        path = submission / name
        private_folder(path.parent)
        write_whole(path, content)
    return submission


def _await_sites(session: Session, sites: tuple[PartyId, ...], roles: Roles, connect_s: float, *, anew: bool) -> None:
    """Waits for all sites; ``anew``: for a sign of life of each from now on, for a lost one was there just now."""
    began = time.monotonic()
    while lost := missing(session, sites, roles, time.monotonic() - began if anew else math.inf):
        if time.monotonic() > began + connect_s:
            raise not_connected(lost, roles)
        time.sleep(POLL_S)


def _await_end(
    session: Session, job_id: str, report: Report, sites: tuple[PartyId, ...], roles: Roles, connect_s: float
) -> None:
    """Waits until the job has ended.

    The engine would try for 40 minutes, at ever longer intervals, to begin a job of which a site is gone. Such a job is
    withdrawn, and `retries` submits it again when the site is back.
    """
    last, said, complete = "", "", time.monotonic()
    for poll in count():
        now = str(answered(lambda: session.get_job_meta(job_id)).get("status", ""))
        if now != last:
            report(f"{job_id[:8]}: {now.lower().replace('_', ' ')}")
            last = now
        if now.startswith(FINISHED):
            break
        if now == _SUBMITTED and poll % _POLLS_PER_LOG == 0:
            lost = missing(session, sites, roles)
            complete = complete if lost else time.monotonic()
            if time.monotonic() > complete + connect_s:
                session.abort_job(job_id)
                error = not_connected(lost, roles)
                raise LinkTimeout(f"job {job_id} is withdrawn: {error}", code=error.code, party=error.party)
        if now == RUNNING and poll % _POLLS_PER_LOG == 0:
            news = last_said(server_log(session, job_id))
            if news and news != said:
                said = news
                report(f"{job_id[:8]}: {said}")
        time.sleep(POLL_S)
    if now != _COMPLETED:
        raise _cause(session, job_id, now)


def _cause(session: Session, job_id: str, outcome: str) -> VeilgraphError:
    """Why a job failed, as the server's log tells it: a party's own error, or that a party failed."""
    if outcome == _ABORTED:
        return RunError(f"job {job_id} was stopped; go on with --resume")
    for error in reported(session, job_id):
        return error.told(f"{error}; go on with --resume") if isinstance(error, CONSEQUENCES) else error
    known = ": the server's site was started again, or a process of it did not come up" if outcome == _ABNORMAL else ""
    return RunError(
        f"job {job_id} ended: {outcome.removeprefix(FINISHED).lower()}{known}; see veilgraph net logs, and at each "
        "site the log of its job; go on with --resume",
        code=_ENDED,
    )
