"""What a site says of its failed part of a job, and what the server makes of what all of them say.

A party says the kind of its error and, where it lost another party, which; the rest is in its own log. Who deals also
says the whole error where all parties have the same one, made of their first messages (``AGREED``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field

from veilgraph.core.errors import KINDS, ConfigError, LinkTimeout, PeerFailed, VeilgraphError, error_of_json
from veilgraph.core.settings import Exact
from veilgraph.core.types import SERVER, PartyId
from veilgraph.deploy.kit import ITS_LOG_SAYS
from veilgraph.deploy.roles import Roles
from veilgraph.protocol.job import JobSettings

CONSEQUENCES: Final = (PeerFailed, LinkTimeout)
"""Errors of a party that another one's failure ended."""
AGREED: Final = frozenset({"refused", "version", "other-job", "other-work", "other-alignment", "restart"})
"""Codes of errors that ``protocol.agreement`` raises at every party alike, from what all parties told all others."""
_TOO_FEW: Final = "too-few"  # code of the error that a sum lacks holders, who were lost, or failed by themselves
_SILENT: Final = "silent"  # code of the error that a party gave no sign of life, which each that waited finds itself
LOST: Final = "lost"
"""Code of the error that a site was lost."""
_MOST_CHARACTERS: Final = 8192


class Failure(Exact):
    """What a site tells others of the error that ended its part of a job."""

    kind: Annotated[str, Field(max_length=64)] = ""
    """Of the error."""
    lost: Annotated[str, Field(max_length=256)] = ""
    """The party that it lost, where that was it."""
    error: Annotated[str, Field(max_length=_MOST_CHARACTERS)] = ""
    """The whole error as JSON, from who deals alone, where its code is in ``AGREED``."""

    @property
    def is_consequence(self) -> bool:
        """Whether another one's failure ended it; so too where it says nothing of why."""
        return not self.kind or issubclass(KINDS.get(self.kind, VeilgraphError), CONSEQUENCES)

    @property
    def is_timeout(self) -> bool:
        """Whether it waited in vain for another one."""
        return issubclass(KINDS.get(self.kind, VeilgraphError), LinkTimeout)

    @classmethod
    def of(cls, error: VeilgraphError, party: PartyId | None) -> Self:
        """Make what others are told of the error with which ``party`` ended."""
        lost = error.party or "" if isinstance(error, CONSEQUENCES) and error.party != party else ""
        whole = error.to_json() if party == SERVER and error.code in AGREED else ""
        kind = PeerFailed if error.code == _TOO_FEW else LinkTimeout if error.code == _SILENT else type(error)
        return cls(kind=kind.__name__, lost=lost, error=whole if len(whole) <= _MOST_CHARACTERS else "")


def sites_of(job: JobSettings, roles: Roles) -> tuple[PartyId, ...]:
    """The certificate names of a job's holders, in its order, then of who deals; ``ConfigError``: no holder here."""
    strangers = [name for name in job.data.names if name not in roles.holders]
    if strangers:
        raise ConfigError(
            f"data.holders={list(job.data.names)}: {', '.join(strangers)} is no holder of project {roles.project!r}; "
            f"its holders are {', '.join(roles.holders)}, and {roles}; who came since is in the "
            "authority's roles.json: veilgraph cert install KIT roles.json",
            party=strangers[0],
        )
    return (*job.data.names, roles.deals)


def error_of(site: PartyId, failure: Failure, roles: Roles) -> VeilgraphError:
    """The error of a failed site for administrators: whole if all parties have the same, else its kind alone."""
    whole = error_of_json(failure.error) if site == roles.deals else None
    if whole is not None and whole.code in AGREED:
        return whole
    kind = KINDS.get(failure.kind, PeerFailed)
    return kind(f"{site} failed; its own log says why", code=ITS_LOG_SAYS, party=site)


def errors_of(
    failures: Mapping[PartyId, Failure], sites: tuple[PartyId, ...], roles: Roles, ended: PartyId | None = None
) -> list[VeilgraphError]:
    """The errors of a failed job for administrators, by what its failed sites said; ``sites`` are all of the job.

    ``ended`` is the site whose process was the first to end without a word. The errors are those of sites that failed
    by themselves, a whole one first. Without any they name a lost site: ``ended``, else one that others miss and that
    said nothing, else those that failed and miss nobody, first those that others miss, else those that most others
    waited for in vain, or miss. Such a site may have come late, and say that it lost those that had given it up.
    """
    causes = {site for site, failure in failures.items() if not failure.is_consequence}
    at = {SERVER: roles.deals}
    missing = [(at.get(failure.lost, failure.lost), site, failure.is_timeout) for site, failure in failures.items()]
    missing = [each for each in missing if each[0] in sites]  # a site may say that it lost any name at all
    missed = {lost: site for lost, site, _ in missing}
    count = Counter(lost for lost, *_ in missing)
    silent = [site for site in sites if site not in failures and site in missed]
    if not causes and ended in sites and ended not in failures:
        words = "its process of the job ended without a word; look at its site's log, and at what else its machine says"
        return [PeerFailed(f"{_site_words(ended, roles)}: {words}", code=LOST, party=ended)]
    if not causes and silent:
        return [_lost_error(site, missed[site], roles) for site in silent]
    alone = {site for site, failure in failures.items() if not failure.lost}
    named = causes or alone & missed.keys() or alone
    waited = {lost: site for lost, site, is_timeout in missing if is_timeout}
    if not named:
        among = [site for site in sites if site in (waited or missed)]
        most = [site for site in among if count[site] == max(count[each] for each in among)]
        if waited or len(most) == 1:
            return [_lost_error(site, (waited or missed)[site], roles) for site in most]
    named = named or set(failures)
    errors = (error_of(site, failure, roles) for site, failure in failures.items() if site in named)
    return sorted(errors, key=lambda error: error.code not in AGREED)


def _lost_error(site: PartyId, by: PartyId, roles: Roles) -> PeerFailed:
    joins = "veilgraph net join KIT" + ("" if site == roles.dealer else " --party party.yaml")
    return PeerFailed(
        f"{by} lost {_site_words(site, roles)}: is its site running? Start it there: {joins}", code=LOST, party=site
    )


def _site_words(site: PartyId, roles: Roles) -> str:
    return f"{site}, which deals (party {SERVER})" if site == roles.dealer else site
