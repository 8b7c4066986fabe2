"""One party's part of a job on its own machine, whatever wire carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import ValidationError

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import unsettled
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.acceptance import agree_on_job
from veilgraph.protocol.consent import Consent, JobRequest
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.run.part import Auditor, Part, Work
from veilgraph.run.party import run_party
from veilgraph.run.repeating import learning_secret, learning_seed, mark
from veilgraph.run.run_directory import PartyStore, RunDirectory, view_size
from veilgraph.run.software import installed_software, record_software
from veilgraph.run.summary import summarise

SiteWork = Literal["align", "train", "predict", "audit"]
LAST_JOB_S: Final = 30.0
"""Longest wait for this site's process of the job before, which may be inside a long computation when another party
was lost and the job is gone on with: the engine ends it within 15 seconds."""
SITE_WORKS: Final[dict[str, SiteWork]] = {
    "align": "align",
    "train": "train",
    "predict": "predict",
    "audit": "audit",
}


def take_part(
    runs: Path,
    settings: JobSettings,
    party: PartyId,
    work: SiteWork,
    link: Link,
    recorder: RecordedLink,
    *,
    party_file: Path | None,
    resume: bool,
    restarts: bool = False,
    allows_audit: bool = False,
    auditor: Auditor | None = None,
    identity: Identity | None = None,
    names: Mapping[PartyId, str] = MappingProxyType({}),
    job_id: str,
    consent: Path,
    learning: Path,
    seen: Path | None = None,
) -> None:
    """Agrees on the job with the other parties, then does this party's part of it in ``runs/<name of the job>``.

    Args:
        runs: folder of this party's runs.
        settings: the job; its ``data.holders`` are names.
        party: a holder or the server.
        work: align (or collect) only; train, aligned first if need be; predict for the tables as they are now; or
            audit what was trained.
        link: to the other parties.
        recorder: counts what crosses ``link``; it may be ``link`` itself.
        party_file: the holder's own; None at the server.
        resume: go on with a run that was cut off.
        restarts: the server's leave to begin again where the parties cannot go on; a holder's is in its party file.
        allows_audit: the server's leave to audit, and so to keep what it sends and receives; a holder's is in its
            party file.
        auditor: audits.
        identity: with which the party signs its records; None where the parties have no certificates.
        names: party → the name in its certificate, where that is another one, as the server's is.
        job_id: the engine's, of what was submitted.
        consent: folder in which a holder counts its jobs.
        learning: folder in which the party keeps the secret that its seeds follow from.
        seen: folder of what it has seen of its lifetime ledger; None: its account's.

    Raises:
        VeilgraphError: a party refuses the job, at every party alike; or something failed.
    """
    if not settings.data.is_apart:
        raise ConfigError(
            "data.holders: across organisations a job names its holders, as in data: {holders: [bank, shop]}; every "
            "holder brings its own party file"
        )
    organisation = None
    if party != SERVER:
        request = requested(job_id, settings, work, resume=resume)
        read = own_organisation(party, party_file)
        organisation = replace(read, consent=Consent(read.settings.consent, consent, request, runs))
    path = runs / settings.name
    allows_audit = allows_audit if organisation is None else organisation.settings.limits.allow_audit
    refuses = [occupied(path, settings, work, resume=resume), _unaudited(party, work, allows=allows_audit)]
    secret = learning_secret(learning)
    stated: dict[str, Any] = {"work": work, "resume": resume, "software": installed_software()}
    if work in ("align", "train"):
        stated["mark"] = mark(secret, settings, organisation)
    hellos = agree_on_job(link, settings, party, organisation, "; ".join(filter(None, refuses)), stated)
    run = RunDirectory.open(path) if (path / "job.yaml").is_file() else RunDirectory.create(path, settings)
    with run.lock(LAST_JOB_S):
        store = run.party(party)
        record_software(store.path, work, {name: hello.software for name, hello in hellos.items()})
        if not store.has_seed():
            marks = {name: hello.mark for name, hello in hellos.items()}
            store.save_seed(learning_seed(secret, settings, organisation, marks))
        if allows_audit and work == "train" and store.view_size() is None:
            store.record_views(view_size(settings))
        own = None if organisation is None else organisation.settings
        part = Part(
            run,
            party,
            _work(work, store),
            organisation=organisation,
            machines=None if organisation is None else organisation.machines,
            restarts=restarts if own is None else own.limits.restart,
            identity=identity,
            names=names,
            auditor=auditor,
            marks=seen,
        )
        run_party(part, link, recorder)
        if work == "train" and party in settings.duties.scoring:
            summarise(run, [party], party)


def own_organisation(party: PartyId, party_file: Path | None) -> Organisation:
    """What a holder brings, of the party file that its site joined with.

    Raises:
        ConfigError: it joined without one, or the file breaks a rule.
    """
    if party_file is None:
        raise ConfigError(f"{party} has no party file; join again with: veilgraph net join KIT --party party.yaml")
    return Organisation.read(party_file, party)


def requested(job_id: str, settings: JobSettings, work: SiteWork, *, resume: bool) -> JobRequest:
    """What a submitted job asks of this party.

    Raises:
        ConfigError: the engine's id of the job is none.
    """
    try:
        return JobRequest(job=job_id, work=work, resume=resume, settings=settings)
    except ValidationError as error:
        raise unsettled(error, "the engine's id of the job", "; submit it anew") from error


def _work(work: SiteWork, store: PartyStore) -> Work:
    return "resume" if work == "train" and store.epochs() else work


def _unaudited(party: PartyId, work: SiteWork, *, allows: bool) -> str:
    """Why the party takes part in no audit; empty when it does, or it is none."""
    if work != "audit" or allows:
        return ""
    if party == SERVER:
        return "the server joined without --allow-audit: it answers no audit"
    return "limits.allow_audit=false: set it in the party file before training, or submit no audit"


def occupied(path: Path, settings: JobSettings, work: SiteWork, *, resume: bool) -> str:
    """Why the run directory here cannot be used for this work; empty when it can."""
    exists = (path / "job.yaml").is_file()
    same = exists and RunDirectory.open(path).settings.hash() == settings.hash()
    if work in ("predict", "audit"):
        trained = same and RunDirectory(path).trained()
        return "" if trained else f"no trained run {settings.name!r} of this job is here; train it first"
    if not exists:
        return ""
    if not same:
        return f"a run {settings.name!r} of another job is here; give the job another name"
    if RunDirectory(path).trained() or RunDirectory(path).begun():
        return "" if resume else f"a run {settings.name!r} is here; submit with --resume, or give the job another name"
    return ""
