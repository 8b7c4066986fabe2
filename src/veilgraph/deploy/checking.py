"""An administrator asks every site of a job, before the job is submitted, whether it would take part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from veilgraph.core.types import PartyId
from veilgraph.deploy.asking import AdministratorConnection, administrator
from veilgraph.deploy.failures import sites_of
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.submit import check_names
from veilgraph.protocol.agreement import PROTOCOL_VERSION
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.site import CheckAnswer

WITHIN_S: Final = 120.0
_POLL_S: Final = 0.5
_ASK_S: Final = 5.0
_SAME: Final = "install the same release of veilgraph at every party"

State = Literal["accepts", "refuses", "waits for approval", "not connected", "no answer"]


@dataclass(frozen=True)
class SiteCheck:
    """Whether one site would take part in a job, and what it says of that."""

    site: PartyId
    state: State
    says: str = ""


def check_sites(kit: Kit, settings: JobSettings, *, within_s: float = WITHIN_S) -> tuple[SiteCheck, ...]:
    """Ask every connected site whether it would take part in a job, which is not begun and counts for nobody.

    Gives the job's holders in its order, then who deals; each has signed its answer. Raises ``ConfigError``: the job
    names files, or somebody who is no holder of the project; ``LinkError``: no connection.
    """
    check_names(settings)
    roles = kit.roles
    sites = sites_of(settings, roles)
    with administrator(kit) as ops:
        said = ops.jobs(sites, _ASK_S)
        there = [site for site in sites if site in said]
        answers = _ask_sites(ops, settings, there, within_s) if there else {}
    return tuple(
        site_check_of(site, settings, answers.get(site), within_s)
        if site in there
        else SiteCheck(site, "not connected", "start there: veilgraph net join KIT")
        for site in sites
    )


def site_check_of(name: PartyId, settings: JobSettings, checked: CheckAnswer | None, within_s: float) -> SiteCheck:
    """Turn a site's answer (None: none came within ``within_s`` seconds) into what is reported of the site."""
    if checked is None:
        says = f"none came within {within_s:g} s: look at veilgraph net logs there, or wait --within longer"
        return SiteCheck(name, "no answer", says)
    if against := _against(settings, checked):
        return SiteCheck(name, "refuses", against)
    if checked.waits:
        return SiteCheck(name, "waits for approval", "a person there approves each job: veilgraph net consent")
    return SiteCheck(name, "accepts")


def _against(settings: JobSettings, checked: CheckAnswer) -> str:
    """Why a site that has answered would not take part; empty where it would."""
    if checked.version != PROTOCOL_VERSION:
        return f"speaks protocol version {checked.version}, and here it is {PROTOCOL_VERSION}; {_SAME}"
    if checked.unsaid:
        return "its operator sees why in its log: veilgraph net logs --kit KIT"
    if checked.job != settings.hash() and not (checked.refuses and not checked.job):
        return f"reads other settings than it was asked about; {_SAME}"
    return checked.refuses


def _ask_sites(
    ops: AdministratorConnection, settings: JobSettings, there: Sequence[PartyId], within_s: float
) -> dict[PartyId, CheckAnswer]:
    """Has every site look at the job, and waits until all have answered or it has taken too long."""
    job, deadline = settings.model_dump(mode="json"), time.monotonic() + within_s
    begun = ops.ask(there, _ASK_S, ask="run", job=job, work="check")
    answers = {site: CheckAnswer.withheld() for site, answer in begun.items() if answer.refuses}
    while begun and len(answers) < len(begun) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        job_id = next(iter(begun.values())).request
        for site, words in ops.jobs(list(begun), _ASK_S).items():
            word = next((each for each in words if each.job == job_id), None)
            if word is None or word.state != "running":
                answers.setdefault(site, read_checked(None if word is None else word.checked))
    return answers


def read_checked(checked: object) -> CheckAnswer:
    """Parse a site's answer to a check; one that is missing or malformed becomes ``Checked.withheld()``."""
    try:
        return CheckAnswer.model_validate(checked)
    except ValidationError:
        return CheckAnswer.withheld()
