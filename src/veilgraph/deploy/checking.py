"""An administrator asks every site of a job, before the job is submitted, whether it would take part."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nvflare.fuel.flare_api.api_spec import JobNotRunning
from nvflare.fuel.flare_api.flare_api import Session

from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.answers import read_answers
from veilgraph.deploy.failures import sites_of
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.presence import presences
from veilgraph.deploy.session import FINISHED, admin_session, answered, reported, server_log
from veilgraph.deploy.submission import CHECK
from veilgraph.deploy.submit import check_names, write_submission
from veilgraph.protocol.agreement import PROTOCOL_VERSION
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.site import Checked

WITHIN_S: Final = 120.0
_POLL_S: Final = 0.5
_NOT_ASKED: Final = "not-asked"
_SAME: Final = "install the same release of veilgraph at every party"

State = Literal["accepts", "refuses", "waits for approval", "not connected", "no answer"]


@dataclass(frozen=True)
class SiteCheck:
    """What is known of one site beforehand.

    Attributes:
        site: a holder, or who deals.
        state: what it would do.
        says: why, and the way out; empty where it accepts.
    """

    site: PartyId
    state: State
    says: str = ""


def check_sites(
    kit: Kit, settings: JobSettings, *, within_s: float = WITHIN_S, connect_s: float = 30.0
) -> tuple[SiteCheck, ...]:
    """Asks every site that is connected; nothing is aligned or trained, and nobody counts a job.

    Args:
        kit: an administrator's.
        settings: the job; its ``data.holders`` are names.
        within_s: longest wait for all answers.
        connect_s: longest wait for the server.

    Returns:
        The job's holders in its order, then who deals. The server hands the answers on, and could change them.

    Raises:
        ConfigError: the job names files, or somebody who is no holder of the project.
        LinkError: no connection.
        RunError: nobody could be asked.
    """
    check_names(settings)
    roles = kit.roles
    sites = sites_of(settings, roles)
    with admin_session(kit, connect_s) as session:
        found = answered(lambda: presences(session, roles))
        there = [site.name for site in found if site.name in sites and site.state == "connected"]
        parties = {site: site for site in sites} | ({SERVER: roles.server} if roles.dealer is None else {})
        asked = [party for party in parties if party in there or (party == SERVER and there)]
        answers = _ask(session, settings, there, asked, within_s) if there else {}
    return tuple(
        judged(name, settings, answers.get(party), within_s) if party in asked else _not_asked(name, party)
        for party, name in parties.items()
    )


def judged(name: PartyId, settings: JobSettings, checked: Checked | None, within_s: float) -> SiteCheck:
    """What an answer says of a site.

    Args:
        name: of the site.
        settings: the job that it was asked about.
        checked: its answer; None: none came.
        within_s: how long it was waited for.
    """
    if checked is None:
        says = f"none came within {within_s:g} s: look at veilgraph net logs there, or wait --within longer"
        return SiteCheck(name, "no answer", says)
    if against := _against(settings, checked):
        return SiteCheck(name, "refuses", against)
    if checked.waits:
        return SiteCheck(name, "waits for approval", "a person there approves each job: veilgraph net consent")
    return SiteCheck(name, "accepts")


def _against(settings: JobSettings, checked: Checked) -> str:
    """Why a site that has answered would not take part; empty where it would."""
    if checked.version != PROTOCOL_VERSION:
        return f"speaks protocol version {checked.version}, and here it is {PROTOCOL_VERSION}; {_SAME}"
    if checked.unsaid:
        return "its operator sees why in its log: veilgraph net logs --kit KIT"
    if checked.job != settings.hash() and not (checked.refuses and not checked.job):
        return f"reads other settings than it was asked about; {_SAME}"
    return checked.refuses


def _not_asked(name: PartyId, party: PartyId) -> SiteCheck:
    if party == SERVER:
        return SiteCheck(name, "no answer", "no site is connected, so that nobody was asked")
    return SiteCheck(name, "not connected", "start there: veilgraph net join KIT")


def _ask(
    session: Session, settings: JobSettings, there: Sequence[PartyId], asked: Sequence[PartyId], within_s: float
) -> Mapping[PartyId, Checked]:
    """Submits what asks, and ends it once all have answered or it has taken too long."""
    with tempfile.TemporaryDirectory() as folder:
        submission = write_submission(Path(folder), settings, CHECK, resume=False, sites=there)
        job_id = str(session.submit_job(str(submission)))
    deadline, outcome = time.monotonic() + within_s, ""
    answers: Mapping[PartyId, Checked] = {}
    try:
        while len(answers) < len(asked) and not outcome.startswith(FINISHED) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            outcome = str(answered(lambda: session.get_job_meta(job_id)).get("status", ""))
            answers = read_answers(server_log(session, job_id), asked)
    finally:
        if len(answers) < len(asked) and not outcome.startswith(FINISHED):
            with suppress(JobNotRunning):
                session.abort_job(job_id)
    if not answers and outcome.startswith(FINISHED):
        for error in reported(session, job_id):
            raise error
        ended = outcome.removeprefix(FINISHED).lower()
        raise RunError(f"nobody was asked: job {job_id} ended: {ended}; see veilgraph net logs", code=_NOT_ASKED)
    return answers
