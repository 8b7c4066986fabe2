"""What a site says when it is asked whether it would take part in a job, on its way through the server's log.

What asks is itself a submitted job, signed by an administrator as every job is: a site takes nothing from outside that
it would not take otherwise.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection
from typing import Final

from pydantic import ValidationError

from veilgraph.core.errors import VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.deploy.failures import sites_of
from veilgraph.deploy.kit import Kit
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.site import Checked, check_here

ANSWER: Final = "veilgraph_check"
"""Header of a site's reply."""
_MOST_CHARACTERS: Final = 8192
_ANSWERED: Final = re.compile(r"^\S+ \S+ - veilgraph - INFO - answer of (\S{1,253}): (\{.*\})$", re.MULTILINE)

log = logging.getLogger("veilgraph")


def check_part(part: Callable[[], tuple[JobSettings, Kit, PartyId]], job_id: str) -> Checked:
    """Whether this site would take part in a job; of an error it says no more than that there is one.

    Args:
        part: gives the job, this site's kit, and which party it is.
        job_id: the engine's, of what asks.
    """
    try:
        settings, kit, party = part()
        sites_of(settings, kit.roles)
        kit.identity()  # with which it would sign
        runs, party_file, consent = kit.runs_now(), kit.party_file(), kit.consent
        return check_here(runs, settings, party, party_file=party_file, job_id=job_id, consent=consent)
    except VeilgraphError as error:
        log.warning("would take part in no job: %s: %s", type(error).__name__, error)
    except Exception:
        log.exception("the check failed")
    return Checked.withheld()


def read_answer(text: object) -> Checked:
    """As a site sent it; where it is none, as of one that says nothing: a release without checks has no answer."""
    try:
        if isinstance(text, str) and len(text) <= _MOST_CHARACTERS:
            return Checked.model_validate_json(text)
    except ValidationError:
        pass
    return Checked.withheld()


def put_answer(site: PartyId, checked: Checked) -> None:
    """Puts a site's answer into the server's log of the job: one line of ASCII, whatever text is in it."""
    log.info("answer of %s: %s", site, json.dumps(checked.model_dump()))


def read_answers(text: str, asked: Collection[PartyId]) -> dict[PartyId, Checked]:
    """The answers in the server's log of those that were asked, the first of each; what is none is left out.

    Args:
        text: of the log.
        asked: whose answers are wanted.
    """
    found: dict[PartyId, Checked] = {}
    for site, content in _ANSWERED.findall(text):
        if site in asked and site not in found:
            found[site] = read_answer(content)
    return found
