"""Organisations that do a job together, each in a folder of its own, in threads of one process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.launch.site import SiteWork, take_part
from veilgraph.runtime.session.party import Auditor


def apart(
    folder: Path,
    parties: Mapping[PartyId, Path],
    settings: JobSettings,
    work: SiteWork | Mapping[PartyId, SiteWork] = "train",
    *,
    resume: bool | Mapping[PartyId, bool] = False,
    server: bool = False,
    audited: bool = False,
    auditor: Auditor | None = None,
    identities: Mapping[PartyId, Identity] | None = None,
) -> dict[PartyId, Path]:
    """Every party does its part; returns where its run is.

    Args:
        folder: of all sites.
        parties: holder → its party file.
        settings: the job.
        work: what is submitted, to all or party by party.
        resume: as submitted, to all or party by party.
        server: the server's leave to begin again.
        audited: its leave to audit, for which it keeps what it sees.
        auditor: as the engine gives it.
        identities: with which they sign, if at all.
    """
    folders = {party: folder / f"site {party}" for party in (*parties, SERVER)}

    def program(party: PartyId) -> Callable[[Link], None]:
        def take(link: Link) -> None:
            recorder = RecordedLink(link)
            take_part(
                folders[party],
                settings,
                party,
                work if isinstance(work, str) else work[party],
                recorder,
                recorder,
                party_file=parties.get(party),
                resume=resume if isinstance(resume, bool) else resume[party],
                restarts=server,
                allows_audit=audited,
                auditor=auditor,
                identity=None if identities is None else identities[party],
                names={} if identities is None else {SERVER: identities[party].server_name},
                job_id=uuid4().hex,
                consent=folder / f"consent of {party}",
                learning=folder / f"learning-of-{party}",
            )

        return take

    run_threads({party: program(party) for party in folders}, settings.timeout_s, lambda: None)
    return {party: site / settings.name for party, site in folders.items()}
