"""What an administrator does from afar beside submitting: see how jobs are, read a log, stop a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, Literal

from veilgraph.core.errors import RunError, error_of_json
from veilgraph.core.types import PartyId
from veilgraph.deploy.asking import AdministratorConnection, administrator
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import JobReport
from veilgraph.deploy.roles import Roles

_OURS: Final = " - veilgraph - "
_REPORTED: Final = re.compile(r" - veilgraph - ERROR - (\{.*\})")
_ASK_S: Final = 5.0
_STATES: Final = ("failed", "ended", "stopped", "running", "done")
"""Of one job at several sites, the first of these is the job's."""

State = Literal["connected", "not connected"]


@dataclass(frozen=True)
class JobStatus:
    """One submitted job."""

    job_id: str
    name: str
    work: str
    status: str
    submitted: str
    says: str = ""
    """What who deals said last of how far it is, or what it waits for."""
    epoch: int | None = None
    """Of one that trains: the epoch that it has reached."""
    epochs: int | None = None
    """As many as there may be."""


@dataclass(frozen=True)
class ProjectStatus:
    """Which sites are there, who is who, and what was submitted, newest first."""

    sites: Mapping[PartyId, State]
    roles: Roles
    jobs: tuple[JobStatus, ...]

    @property
    def connected(self) -> tuple[PartyId, ...]:
        """Names of the sites that are connected."""
        return tuple(site for site, state in self.sites.items() if state == "connected")

    def record(self) -> dict[str, Any]:
        """All of it as JSON content: project, server, dealer, sites, jobs."""
        sites = [{"name": site, "state": state} for site, state in self.sites.items()]
        roles = self.roles.model_dump(mode="json", include={"project", "server", "dealer"})
        return {**roles, "sites": sites, "jobs": [asdict(job) for job in self.jobs]}


def status(kit: Kit) -> ProjectStatus:
    """Who is connected and which jobs there are; raises ``LinkError``: no connection."""
    sites = parties_of(kit.roles)
    with administrator(kit) as ops:
        said = ops.jobs(sites, _ASK_S)
    states: dict[PartyId, State] = {site: "connected" if site in said else "not connected" for site in sites}
    words: dict[str, list[JobReport]] = {}
    for each in chain.from_iterable(said.values()):
        words.setdefault(each.job, []).append(each)
    jobs = [_job_status(job_id, each) for job_id, each in words.items()]
    return ProjectStatus(states, kit.roles, tuple(sorted(jobs, key=lambda job: job.submitted, reverse=True)))


def parties_of(roles: Roles) -> tuple[PartyId, ...]:
    """Names in the certificates of all sites that take part in jobs: the holders, then who deals."""
    return (*roles.holders, roles.deals)


def _job_status(job_id: str, words: Sequence[JobReport]) -> JobStatus:
    """A job's status by what sites say of it; its state is the first of theirs in ``_STATES``."""
    state = min((each.state for each in words), key=_STATES.index)
    told = next((each for each in words if each.says), None)
    return JobStatus(
        job_id,
        next((each.name for each in words if each.name), ""),
        next((each.work for each in words if each.work), ""),
        state,
        f"{datetime.fromtimestamp(min(each.submitted for each in words), UTC):%Y-%m-%dT%H:%M:%S}",
        told.says if told and state == "running" else "",
        None if told is None else told.epoch,
        None if told is None else told.epochs,
    )


def logs(kit: Kit, job_id: str | None, *, everything: bool = False) -> str:
    """A job's log: for an administrator that of who deals, at a site its own; only our lines, or ``everything``.

    ``job_id``: how the id begins; None: the newest job. Raises ``RunError``: no such job or log; or ``LinkError``.
    """
    if kit.kind != "administrator":
        text = _read_own_log(kit, job_id)
    else:
        deals = kit.roles.deals
        with administrator(kit) as ops:
            asked = ops.ask([deals], _ASK_S, ask="log", about=_full_job_id(kit, ops, job_id))
        if deals not in asked:
            raise RunError(f"{deals} does not answer; start its site: veilgraph net join KIT")
        text = str(asked[deals].content.get("log", ""))
    lines = _REPORTED.sub(_readable_error, text).splitlines(keepends=True)
    return "".join(line for line in lines if everything or _OURS in line)


def _readable_error(reported: re.Match[str]) -> str:
    """Put an error's kind and words in place of its JSON in a line of a log."""
    error = error_of_json(reported[1])
    return reported[0] if error is None else reported[0].replace(reported[1], f"{type(error).__name__}: {error}")


def stop(kit: Kit, job_id: str | None) -> str:
    """Stop a running job (None: the newest of them) and return its id. ``RunError``: none runs; or ``LinkError``."""
    with administrator(kit) as ops:
        known = _full_job_id(kit, ops, job_id, running=job_id is None)
        answers = ops.ask(parties_of(kit.roles), _ASK_S, ask="stop", about=known)
        if all(answer.refuses for answer in answers.values()):
            raise RunError(f"job {known} does not run at any site; there is nothing to stop")
        return known


def _full_job_id(kit: Kit, ops: AdministratorConnection, job_id: str | None, *, running: bool = False) -> str:
    """The id of the one job of the project, or of those ``running`` at a site, that ``job_id`` names: ``_find_job``."""
    said = list(chain.from_iterable(ops.jobs(parties_of(kit.roles), _ASK_S).values()))
    times = {each.job: each.submitted for each in said if each.state == "running" or not running}
    if said and not times:
        raise RunError("no job runs at any site; there is nothing to stop")
    return _find_job(times, job_id)


def _read_own_log(kit: Kit, job_id: str | None) -> str:
    """The log of the one job here that ``job_id`` names, as ``_find_job``."""
    times = {path.parent.name: path.stat().st_mtime for path in kit.jobs.glob("*/log.txt")}
    return (kit.jobs / _find_job(times, job_id) / "log.txt").read_text(encoding="utf-8", errors="replace")


def _find_job(times: Mapping[str, float], job_id: str | None) -> str:
    """The whole id of the one job that begins so, or of the newest for None; ``RunError``: none, or several."""
    ids = [each for each in times if each == job_id] or [each for each in times if each.startswith(job_id or "")]
    if not ids or (job_id is not None and len(ids) > 1):
        wanted = "there is no job yet" if job_id is None else f"{job_id!r} names {len(ids)} jobs, not one"
        raise RunError(f"{wanted}; see veilgraph net status", key="job_id", value=job_id)
    return max(ids, key=times.__getitem__)
