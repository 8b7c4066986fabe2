"""What an administrator does from afar beside submitting: see how jobs are, read a log, stop a job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from nvflare.fuel.flare_api.flare_api import Session

from veilgraph.core.errors import RunError, error_of_json
from veilgraph.core.types import PartyId
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.presence import Presence, State, presences
from veilgraph.deploy.progress import epochs_said
from veilgraph.deploy.roles import Roles
from veilgraph.deploy.session import FINISHED, REPORTED, RUNNING, admin_session, last_said, server_log

_OURS: Final = " - veilgraph - "


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
    log = server_log(session, str(job.get("job_id", ""))) if job.get("status") == RUNNING else ""
    epoch, epochs = epochs_said(log)
    return JobStatus(
        str(job.get("job_id", "")),
        str(job.get("job_name", "")),
        str(job.get("status", "")),
        str(job.get("submit_time", ""))[:19],
        last_said(log),
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
    lines = REPORTED.sub(_shown, text).splitlines(keepends=True)
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
