"""What an administrator does from afar: submit a job, see how it is, read the server's log of it, stop it.

A submitted job is settings: no code, no data. Every site checks it against its own policy and its own party file.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    JobNotFound,
    JobNotRunning,
    NoConnection,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from veilgraph.core.errors import (
    ConfigError,
    LinkError,
    LinkTimeout,
    PeerFailed,
    RunError,
    VeilgraphError,
    error_of_json,
)
from veilgraph.core.files import private_folder, write_whole
from veilgraph.core.types import PartyId
from veilgraph.deploy.failures import CONSEQUENCES, sites_of
from veilgraph.deploy.guard.hooks import install_for_administrators
from veilgraph.deploy.key_file import view_with_key
from veilgraph.deploy.kit import ALLOWED_CLASSES, CHECK, ITS_LOG_SAYS, TASK, Kit, SiteWork
from veilgraph.deploy.presence import Presence, State, presences
from veilgraph.deploy.progress import CHECKS, epochs_said
from veilgraph.deploy.quiet import no_logs, no_prints
from veilgraph.deploy.roles import Roles
from veilgraph.protocol.job import JobSettings

Answer = TypeVar("Answer")

_SITE, _SERVER = ALLOWED_CLASSES
_POLL_S: Final = 1.0
UNANSWERED_S: Final = 60.0
"""So long a question to a server that does not answer is asked again: it may be busy, and its jobs go on."""
_REJOIN_S: Final = 120.0
_POLLS_PER_LOG: Final = 3
_SUBMITTED: Final = "SUBMITTED"
_RUNNING: Final = "RUNNING"
FINISHED: Final = "FINISHED:"
"""How the status of a job begins that has ended."""
_COMPLETED: Final = "FINISHED:COMPLETED"
_ABORTED: Final = "FINISHED:ABORTED"
_ABNORMAL: Final = "FINISHED:ABNORMAL"
"""Also what a server says of jobs that it finds running as it begins (``guard.ended``)."""
_ENDED: Final = "ended"
"""Code of the error of a job that the engine ended without a party's word of why."""
_APP: Final = "veilgraph"
_OURS: Final = " - veilgraph - "
_SAID: Final = re.compile(r" - veilgraph - INFO - (?!answer of )(.*)")
"""Answers to a check are for who asked."""
_REPORTED: Final = re.compile(r" - veilgraph - ERROR - (?:\[[^]]*\]: )?(\{.*\})")

Report = Callable[[str], None]


@dataclass(frozen=True)
class JobStatus:
    """One submitted job."""

    job_id: str
    name: str
    status: str
    submitted: str
    says: str = ""
    """Of one that runs: what the server said last of how far it is, or what it waits for."""
    epoch: int | None = None
    """Of one that trains: the epoch that it has reached, where the server deals; its log says no epoch otherwise."""
    epochs: int | None = None
    """As many as there may be."""


@dataclass(frozen=True)
class ProjectStatus:
    """Which sites are there, who is who, and what was submitted, newest first."""

    sites: tuple[Presence, ...]
    roles: Roles
    jobs: tuple[JobStatus, ...]

    @property
    def connected(self) -> tuple[PartyId, ...]:
        """Names of the sites that are."""
        return self._named("connected")

    @property
    def lost(self) -> tuple[PartyId, ...]:
        """Names of the sites that were connected within ten minutes, and have fallen silent or left."""
        return self._named("lost")

    def _named(self, state: State) -> tuple[PartyId, ...]:
        return tuple(site.name for site in self.sites if site.state == state)

    def record(self) -> dict[str, Any]:
        """All of it, for other programs."""
        sites = [{"name": site.name, "state": site.state, "heard_s": site.heard_s} for site in self.sites]
        roles = self.roles.model_dump(mode="json", include={"project", "server", "dealer"})
        return {**roles, "sites": sites, "jobs": [asdict(job) for job in self.jobs]}


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
            write_submission(Path(folder), settings, work, resume=resume, sites=sites)
            job_id = str(session.submit_job(folder))
        report(f"submitted {settings.name} ({work}) as {job_id}; {roles}")
        if wait:
            _await_end(session, job_id, report, sites, roles, connect_s)
    return job_id


def status(kit: Kit, connect_s: float = 30.0) -> ProjectStatus:
    """Who is connected and which jobs there are.

    Raises:
        LinkError: no connection.
    """
    with admin_session(kit, connect_s) as session:
        jobs = [_status(session, job) for job in session.list_jobs()]
        newest_first = tuple(sorted(jobs, key=lambda job: job.submitted, reverse=True))
        return ProjectStatus(presences(session, kit.roles), kit.roles, newest_first)


def _status(session: Session, job: Mapping[str, Any]) -> JobStatus:
    log = server_log(session, str(job.get("job_id", ""))) if job.get("status") == _RUNNING else ""
    epoch, epochs = epochs_said(log)
    return JobStatus(
        str(job.get("job_id", "")),
        str(job.get("job_name", "")),
        str(job.get("status", "")),
        str(job.get("submit_time", ""))[:19],
        _last_said(log),
        epoch,
        epochs,
    )


def logs(kit: Kit, job_id: str | None, *, everything: bool = False, connect_s: float = 30.0) -> str:
    """A job's log: at an administrator the server's, at a holder or the server its own.

    Args:
        kit: whose log to read.
        job_id: default: the newest job.
        everything: with what the engine says.
        connect_s: longest wait for the server.

    Raises:
        RunError: there is no such job or no log of it.
        LinkError: no connection.
    """
    if kit.kind != "administrator":
        text = _own_log(kit, job_id)
    else:
        with admin_session(kit, connect_s) as session:
            text = server_log(session, _known(session, job_id))
    lines = _REPORTED.sub(_shown, text).splitlines(keepends=True)
    return "".join(line for line in lines if everything or _OURS in line)


def _shown(reported: re.Match[str]) -> str:
    """A line with an error as a person reads it."""
    error = error_of_json(reported[1])
    return reported[0] if error is None else reported[0].replace(reported[1], f"{type(error).__name__}: {error}")


def stop(kit: Kit, job_id: str | None, connect_s: float = 30.0) -> str:
    """Stops a running job; its parties keep their checkpoints. Returns its id.

    Raises:
        RunError: it does not exist or does not run.
        LinkError: no connection.
    """
    with admin_session(kit, connect_s) as session:
        known = _known(session, job_id)
        if str(session.get_job_meta(known).get("status", "")).startswith(FINISHED):
            raise RunError(f"job {known} has ended already; there is nothing to stop")
        session.abort_job(known)
        return known


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


@contextmanager
def admin_session(kit: Kit, connect_s: float) -> Iterator[Session]:
    """A session with the server; FLARE's errors become ours."""
    if kit.kind != "administrator":
        raise ConfigError(f"{kit.path} is the kit of {kit.name}; give an administrator's")
    install_for_administrators()
    settings = kit.startup_settings()["admin"]
    address = f"{settings['host']}:{settings['port']}"
    session = None
    try:
        with no_logs(), view_with_key(kit.path, kit.key_file, kit.passphrase) as view:
            try:
                with no_prints():
                    session = new_secure_session(kit.name, str(view), timeout=connect_s)
                yield session
            finally:
                if session is not None:
                    with no_prints():
                        session.close()
    except (NoConnection, FLCommunicationError, TimeoutError, ConnectionError) as error:
        raise LinkTimeout(f"{kit.name} cannot reach the server at {address}: is it running? ({error})") from error
    except (AuthenticationError, AuthorizationError) as error:
        raise LinkError(f"{kit.name} is not let in by the server at {address}: {error}") from error
    except (JobNotFound, JobNotRunning, InvalidJobDefinition) as error:
        raise RunError(str(error)) from error
    except InternalError as error:
        raise RunError(f"the server at {address} reports: {error}") from error


def answered(ask: Callable[[], Answer]) -> Answer:
    """What the server answers to a question that changes nothing there, asked again while none comes.

    Args:
        ask: asks once.

    Raises:
        NoConnection: there was no answer for ``UNANSWERED_S``.
    """
    deadline = time.monotonic() + UNANSWERED_S
    while True:
        try:
            return ask()
        except NoConnection:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def _await_sites(session: Session, sites: tuple[PartyId, ...], roles: Roles, connect_s: float, *, anew: bool) -> None:
    """Waits for all sites; ``anew``: for a sign of life of each from now on, for a lost one was there just now."""
    began = time.monotonic()
    while missing := _missing(session, sites, roles, time.monotonic() - began if anew else math.inf):
        if time.monotonic() > began + connect_s:
            raise not_connected(missing, roles)
        time.sleep(_POLL_S)


def _missing(session: Session, sites: tuple[PartyId, ...], roles: Roles, heard_s: float = math.inf) -> list[PartyId]:
    """Those that are not connected, or that the server has not heard of for so long."""
    return [
        site.name
        for site in answered(lambda: presences(session, roles))
        if site.name in sites and (site.state != "connected" or (site.heard_s or 0.0) > heard_s)
    ]


def not_connected(missing: Sequence[PartyId], roles: Roles) -> LinkError:
    """Who has not joined, and what to start there."""
    holders = [site for site in missing if site != roles.dealer]
    ways = [f"{', '.join(holders)}; start there: veilgraph net join KIT --party party.yaml"] if holders else []
    if roles.dealer in missing:
        ways.append(f"{roles.dealer}, which deals; start there: veilgraph net join KIT")
    return LinkError(f"not connected: {'; and '.join(ways)}", code="not-connected", party=missing[0])


def write_submission(
    folder: Path, settings: JobSettings, work: SiteWork | Literal["check"], *, resume: bool, sites: Sequence[PartyId]
) -> None:
    """Writes a job into a folder as the engine takes it: settings, which of our classes run them, and at which sites
    beside the server. All of them are needed but for a check, which asks those that it can.
    """
    needed = [] if work == CHECK else list(sites)
    arguments = {"job": settings.model_dump(mode="json"), "work": work, "resume": resume}
    files: dict[str, dict[str, Any]] = {
        "meta.json": {
            "name": settings.name + (CHECKS if work == CHECK else ""),
            "resource_spec": {},
            "deploy_map": {_APP: ["server", *sites]},
            "min_clients": max(1, len(needed)),
            "mandatory_clients": needed,
        },
        f"{_APP}/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [{"id": "veilgraph", "path": _SERVER, "args": arguments}],
            "components": [],
        },
        f"{_APP}/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": _SITE, "args": arguments}}],
            "components": [],
        },
    }
    for name, content in files.items():
        path = folder / name
        private_folder(path.parent)
        write_whole(path, json.dumps(content, indent=2).encode())


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
            missing = _missing(session, sites, roles)
            complete = complete if missing else time.monotonic()
            if time.monotonic() > complete + connect_s:
                session.abort_job(job_id)
                error = not_connected(missing, roles)
                raise LinkTimeout(f"job {job_id} is withdrawn: {error}", code=error.code, party=error.party)
        if now == _RUNNING and poll % _POLLS_PER_LOG == 0:
            news = _said(session, job_id)
            if news and news != said:
                said = news
                report(f"{job_id[:8]}: {said}")
        time.sleep(_POLL_S)
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


def reported(session: Session, job_id: str) -> list[VeilgraphError]:
    """The errors in the server's log of a job.

    What the server knows itself comes first, for it says most; then whose log says why; that a party was lost is what
    follows.
    """
    found = filter(None, map(error_of_json, _REPORTED.findall(server_log(session, job_id))))
    return sorted(found, key=lambda error: (isinstance(error, CONSEQUENCES), error.code == ITS_LOG_SAYS))


def _said(session: Session, job_id: str) -> str:
    """What the server's part of a job said last; nothing where it is too young for that."""
    return _last_said(server_log(session, job_id))


def _last_said(log: str) -> str:
    return "".join(_SAID.findall(log)[-1:])


def server_log(session: Session, job_id: str) -> str:
    """The server's log of a job as it is now; empty where there is none yet."""
    return str(answered(lambda: session.get_job_logs(job_id)).get("logs", {}).get("server", ""))


def _known(session: Session, job_id: str | None) -> str:
    """The whole id for the beginning of one; the newest job for None."""
    jobs = sorted(session.list_jobs(), key=lambda job: str(job.get("submit_time", "")), reverse=True)
    ids = [str(job["job_id"]) for job in jobs if str(job["job_id"]).startswith(job_id or "")]
    if not ids or (job_id is not None and len(ids) > 1 and job_id not in ids):
        wanted = "no job was submitted yet" if job_id is None else f"{job_id!r} names {len(ids)} jobs, not one"
        raise RunError(f"{wanted}; see veilgraph net status")
    return ids[0] if job_id is None or job_id not in ids else job_id


def _own_log(kit: Kit, job_id: str | None) -> str:
    """The newest job's log in a site's own kit."""
    found = sorted(kit.path.glob(f"{job_id or ''}*/log.txt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise RunError(f"{kit.path}: no log of job {job_id or '(any)'} is here; see veilgraph net status")
    return found[-1].read_text(encoding="utf-8", errors="replace")
