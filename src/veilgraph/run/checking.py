"""Whether a site would take part in a job, said before the job is submitted: nothing is sent but the answer.

The answer is what the site's first ``HELLO`` of the job would say, and whether anything stands against it that is its
own, such as a fault of a table. What that is stays in the site's log. Of the tables is read what the party file says,
whatever the job: that one bit is the same for every job, so that asking again with other settings tells no more.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from veilgraph.core.errors import ConfigError, DataError, VeilgraphError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.agreement import PROTOCOL_VERSION, one_line
from veilgraph.protocol.aligning import split_by_labels
from veilgraph.protocol.consent import Consent
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import REASON_CHARACTERS, joined
from veilgraph.protocol.organisation import Organisation
from veilgraph.run.preparing import kept_identity
from veilgraph.run.run_directory import RunDirectory
from veilgraph.run.site import occupied, own_organisation, requested
from veilgraph.tables.describe import describe_party

_NO_CHECKS: Final = "limits.allow_check=false: it says nothing of jobs that are not submitted"

log = logging.getLogger("veilgraph")


class Checked(BaseModel):
    """What a site says; as ``Hello``, but read leniently, for it may be of another release."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: Annotated[int, Field(ge=0, le=2**32)]
    """Of the protocol."""
    job: Annotated[str, Field(max_length=128, pattern=r"^[0-9a-z]*$")] = ""
    """SHA-256 of the settings as the site read them; empty where it could not, or where it answers no checks."""
    refuses: Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(one_line)] = ""
    """Why the site would refuse the job at once; empty when it would not."""
    waits: bool = False
    """Whether a person there would have to approve it."""
    unsaid: bool = False
    """Whether something stands against it that the site's own log alone says."""

    @classmethod
    def withheld(cls) -> Self:
        """Of a site whose own log alone says what stands against the job."""
        return cls(version=PROTOCOL_VERSION, unsaid=True)


def check_here(
    runs: Path,
    settings: JobSettings,
    party: PartyId,
    *,
    party_file: Path | None,
    job_id: str,
    consent: Path,
) -> Checked:
    """Holds a job to a party's limits, consent and runs, and its tables to their own rules; no job is counted or begun.

    Args:
        runs: folder of this party's runs.
        settings: the job; its ``data.holders`` are names.
        party: a holder or the server.
        party_file: the holder's own; None at the server.
        job_id: the engine's, of what asks.
        consent: folder in which a holder counts its jobs.
    """
    try:
        if not settings.data.is_apart or party not in (*settings.data.names, SERVER):
            raise ConfigError(f"data.holders: across organisations a job names its holders, {party} among them")
        refuses, waits = "", False
        if party == SERVER:
            refuses = occupied(runs / settings.name, settings, "train", resume=False)
        else:
            own = own_organisation(party, party_file)
            if not own.settings.limits.allow_check:
                return Checked(version=PROTOCOL_VERSION, refuses=_NO_CHECKS)
            refuses = _refusal(runs, settings, own, job_id, consent)
            waits = own.settings.consent.approval == "ask" and not refuses
            if not refuses:
                _check_tables(settings, own)
    except VeilgraphError as error:
        log.warning("would not take part in %s: %s: %s", settings.name, type(error).__name__, error)
        return Checked.withheld()
    log.info("would %s in %s%s", "take no part" if refuses else "take part", settings.name, refuses and f": {refuses}")
    return Checked(version=PROTOCOL_VERSION, job=settings.hash(), refuses=refuses, waits=waits)


def _refusal(runs: Path, settings: JobSettings, own: Organisation, job_id: str, consent: Path) -> str:
    """Why a holder would refuse the job before anything of its data was sent; empty when it would not."""
    path, counted = runs / settings.name, own.settings.consent
    reasons = [
        occupied(path, settings, "train", resume=False),
        refusal_of(own, settings) or "",
        split_by_labels(settings, own.settings),
    ]
    if counted.limited:
        request = requested(job_id, settings, "train", resume=False)
        aligns = settings.is_aligned and not _is_aligned(path, own.settings.party)
        reasons.append(Consent(counted, consent, request, runs).against(aligns=aligns))
    return joined(reasons)


def _is_aligned(path: Path, party: PartyId) -> bool:
    """Whether a run that is here has been aligned, so that a training of it begins without."""
    return (path / "job.yaml").is_file() and bool(kept_identity(RunDirectory.open(path).party(party)))


def _check_tables(settings: JobSettings, own: Organisation) -> None:
    """Reads a holder's tables by its party file; of the job only who has the labels is asked.

    Raises:
        DataError: the tables break a rule, or the job wants labels of them that they do not have.
    """
    nodes, party = own.settings.nodes, own.settings.party
    released = settings.noise.label_release
    labelled = settings.data.label_party if released is None else released.holder
    if settings.is_aligned and party == labelled and nodes.label is None:
        raise DataError(
            f"nodes.label: the job has the labels at {party}, whose party file names none; name their column, or have "
            "the job name another label holder",
            key="nodes.label",
            party=party,
        )
    describe_party(own.settings, own.folder)
