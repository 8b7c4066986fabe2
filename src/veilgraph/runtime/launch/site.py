"""One party's part of a job on its own machine, its learning seed, and the check of a job before it is submitted.

A party has a secret for life. Of it, the job and its tables it makes a mark, which tells others only whether these are
those of an earlier run. Its seed follows from the secret and from the marks of all parties: it comes again only where
no party has changed anything, and then it repeats what was computed before. Masks, shares, keys and noise never follow
from it.

The answer to a check is what the site's first ``HELLO`` of the job would say, and one bit: whether anything of its own
stands against it, such as a fault of a table. The details stay in the site's log. The tables are held to the party file
alone, so that the bit is the same for every job, and asking again with other settings tells no more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from veilgraph.core.errors import ConfigError, DataError, VeilgraphError
from veilgraph.core.randomness import private_seed, seed_of
from veilgraph.core.secrets import derive_key, kept_secret
from veilgraph.core.settings import config_errors
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.acceptance import agree_on_job, refusal_of
from veilgraph.protocol.agreement import PROTOCOL_VERSION, one_line
from veilgraph.protocol.aligning import split_by_labels
from veilgraph.protocol.consent import Consent, JobRequest
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.limits import REASON_CHARACTERS, joined
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.session.party import Auditor, SessionSpec, run_party
from veilgraph.runtime.session.preparation import kept_identity
from veilgraph.runtime.store.results import summarise
from veilgraph.runtime.store.run_directory import RunDirectory, view_size
from veilgraph.runtime.store.session_log import installed_software, record_software
from veilgraph.tables.describe import describe_party


def learning_secret(folder: Path) -> bytes:
    """The party's secret for life, drawn from the operating system at its first job; errors as ``kept_secret``."""
    return kept_secret(folder / "secret", "jobs that were run before give other results when they are repeated")


def repeat_mark(secret: bytes, job: JobSettings, organisation: Organisation | None) -> str:
    """Derive a mark from a party's secret, a job (not its name) and its tables: 64 hex digits, or "" for new draws.

    It is "" with ``seed: fresh``, and in jobs that add noise: the same values under other noise would say more of them.
    So too where sums may lack holders: over other survivors the same values would show a single holder's. Raises
    ``DataError`` where a table cannot be read.
    """
    if (
        adds_noise(job)
        or job.passes.tolerates_dropouts
        or (organisation is not None and organisation.settings.seed == "fresh")
    ):
        return ""
    tables = "" if organisation is None else organisation.digest()
    return derive_key(secret, f"mark/{_hash_without_name(job)}/{tables}").hex()


def learning_seed(
    secret: bytes, job: JobSettings, organisation: Organisation | None, marks: Mapping[PartyId, str]
) -> int:
    """The party's seed for a run: the job's if ``seed: job``, random if a mark is "", else of secret, job and marks."""
    if organisation is not None and organisation.settings.seed == "job":
        return job.seed
    if not all(marks.values()):
        return private_seed()
    return seed_of(derive_key(secret, f"seed/{_hash_without_name(job)}/{json.dumps(list(marks.items()))}"))


def _hash_without_name(job: JobSettings) -> str:
    return job.model_copy(update={"name": ""}).hash()


SiteWork = Literal["align", "train", "predict", "answer", "audit"]
LAST_JOB_S: Final = 30.0
"""Longest wait for this site's process of the job before, which may be inside a long computation when another party
was lost and the job is gone on with: the engine ends it within 15 seconds."""
SITE_WORKS: Final[dict[str, SiteWork]] = {work: work for work in get_args(SiteWork)}


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

    The work is to align only; to train, aligned first if need be; to predict for the tables as they are now; to answer
    from the shares that a prediction kept; or to audit what was trained. ``recorder`` counts what crosses ``link``, and
    may be ``link`` itself.

    A holder has a ``party_file``, which says whether the job may begin again, or be audited; the server has
    ``restarts`` and ``allows_audit``. ``identity`` signs records; ``names`` has those in certificates, where they are
    others. ``job_id`` is the engine's. Folders: ``consent``, in which a holder counts its jobs; ``learning``, with the
    secret of its seeds; ``seen``, of its lifetime ledger, by default its account's.

    Raises ``VeilgraphError``: a party refuses the job, at every party alike; or something failed.
    """
    if not settings.data.is_apart:
        raise ConfigError(
            "data.holders: across organisations a job names its holders, as in data: {holders: [bank, shop]}; every "
            "holder brings its own party file"
        )
    organisation = None
    if party != SERVER:
        request = consent_request(job_id, settings, work, resume=resume)
        read = own_organisation(party, party_file)
        organisation = replace(read, consent=Consent(read.settings.consent, consent, request, runs))
        allows_audit, restarts = read.settings.limits.allow_audit, read.settings.limits.restart
    path = runs / settings.name
    refuses = [why_occupied(path, settings, work, resume=resume)]
    if party != SERVER:
        refuses.append(settings.passes.lacks)
    if work == "audit" and not allows_audit:
        of_server = "the server joined without --allow-audit: it answers no audit"
        of_holder = "limits.allow_audit=false: set it in the party file before training, or submit no audit"
        refuses.append(of_server if party == SERVER else of_holder)
    secret = learning_secret(learning)
    stated: dict[str, Any] = {"work": work, "resume": resume, "software": installed_software()}
    if work in ("align", "train"):
        stated["mark"] = repeat_mark(secret, settings, organisation)
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
        part = SessionSpec(
            run,
            party,
            "resume" if work == "train" and store.epochs() else work,
            organisation=organisation,
            machines=None if organisation is None else organisation.settings.machines,
            restarts=restarts,
            identity=identity,
            names=names,
            auditor=auditor,
            marks=seen,
        )
        run_party(part, link, recorder)
        if work == "train" and party in settings.duties.scoring:
            summarise(run, [party], party)


def own_organisation(party: PartyId, party_file: Path | None) -> Organisation:
    """Read a holder's party file; raises ``ConfigError`` where its site joined without one."""
    if party_file is None:
        raise ConfigError(f"{party} has no party file; join again with: veilgraph net join KIT --party party.yaml")
    return Organisation.read(party_file, party)


def consent_request(job_id: str, settings: JobSettings, work: SiteWork, *, resume: bool) -> JobRequest:
    """Make the request on which a holder's consent is decided; raises ``ConfigError`` where ``job_id`` is malformed."""
    with config_errors("the engine's id of the job", "; submit it anew"):
        return JobRequest(job=job_id, work=work, resume=resume, settings=settings)


def why_occupied(path: Path, settings: JobSettings, work: SiteWork, *, resume: bool) -> str:
    """Why the run directory here cannot be used for this work; empty when it can."""
    exists = (path / "job.yaml").is_file()
    same = exists and RunDirectory.open(path).settings.hash() == settings.hash()
    if work == "answer" and not settings.outcome.keeps_shares:
        return "online=false: the job opens predictions at once, and keeps no shares; submit --work predict"
    if work in ("predict", "answer", "audit"):
        trained = same and RunDirectory(path).trained()
        other = ", but one of other settings: submit the very job that was trained, or" if exists and not same else ";"
        return "" if trained else f"no trained run {settings.name!r} of this job is here{other} train it first"
    if not exists:
        return ""
    if not same:
        return f"a run {settings.name!r} of another job is here; give the job another name"
    if RunDirectory(path).trained() or RunDirectory(path).begun():
        return "" if resume else f"a run {settings.name!r} is here; submit with --resume, or give the job another name"
    return ""


log = logging.getLogger("veilgraph")


class CheckAnswer(BaseModel):
    """A site's answer to a check, like a ``Hello``; unknown fields are ignored, for it may be of another release."""

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
        """The answer of a site that has something against the job, and says what in its own log alone."""
        return cls(version=PROTOCOL_VERSION, unsaid=True)


def check_here(
    runs: Path, settings: JobSettings, party: PartyId, *, party_file: Path | None, job_id: str, consent: Path
) -> CheckAnswer:
    """Check a job against a party's limits, consent and runs, and read its tables; no job is counted or begun."""
    try:
        if not settings.data.is_apart or party not in (*settings.data.names, SERVER):
            raise ConfigError(f"data.holders: across organisations a job names its holders, {party} among them")
        refuses, waits = "", False
        if party == SERVER:
            refuses = why_occupied(runs / settings.name, settings, "train", resume=False)
        else:
            own = own_organisation(party, party_file)
            if not own.settings.limits.allow_check:
                silent = "limits.allow_check=false: it says nothing of jobs that are not submitted"
                return CheckAnswer(version=PROTOCOL_VERSION, refuses=silent)
            refuses = _refusal(runs, settings, own, job_id, consent)
            waits = own.settings.consent.approval == "ask" and not refuses
            if not refuses:
                _check_tables(settings, own)
    except VeilgraphError as error:
        log.warning("would not take part in %s: %s: %s", settings.name, type(error).__name__, error)
        return CheckAnswer.withheld()
    log.info("would %s in %s%s", "take no part" if refuses else "take part", settings.name, refuses and f": {refuses}")
    return CheckAnswer(version=PROTOCOL_VERSION, job=settings.hash(), refuses=refuses, waits=waits)


def _refusal(runs: Path, settings: JobSettings, own: Organisation, job_id: str, consent: Path) -> str:
    """Why a holder would refuse the job before anything of its data was sent; empty when it would not."""
    path, counted = runs / settings.name, own.settings.consent
    reasons = [
        why_occupied(path, settings, "train", resume=False),
        settings.passes.lacks,
        refusal_of(own, settings) or "",
        split_by_labels(settings, own.settings),
    ]
    if counted.limited:
        request = consent_request(job_id, settings, "train", resume=False)
        is_here = (path / "job.yaml").is_file()  # a run that has been aligned begins its training without
        aligned = is_here and kept_identity(RunDirectory.open(path).party(own.settings.party))
        aligns = settings.is_aligned and not aligned
        reasons.append(Consent(counted, consent, request, runs).against(aligns=aligns))
    return joined(reasons)


def _check_tables(settings: JobSettings, own: Organisation) -> None:
    """Read a holder's tables; raises ``DataError``: one breaks a rule, or the job expects labels and it names none."""
    nodes, party = own.settings.nodes, own.settings.party
    released = settings.noise.label_release
    labelled = settings.data.label_party if released is None else released.holder
    if settings.is_aligned and party == labelled and nodes.label is None:
        raise DataError(
            f"nodes.label: the job has the labels at {party}, whose party file names none; name their column, or have "
            "the job name another label holder",
            party=party,
        )
    describe_party(own.settings, own.folder)
