"""A party's process of a job: ``python -m veilgraph.deploy.part KIT JOB-FOLDER``, which the site's supervisor starts.

The request in the folder was verified by the supervisor, and is validated here like any stranger's file. How the part
ended is in the folder's ``outcome.json``; everything that it says is in its log, which stays at the site.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, LinkError, VeilgraphError
from veilgraph.core.text import PrintableRecords
from veilgraph.core.threads import run_and_leave
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.deploy.failures import Failure, sites_of
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.progress import ANSWERING, DONE, Outcome
from veilgraph.deploy.request import Request, stored_request
from veilgraph.deploy.revocation import accept_newer
from veilgraph.deploy.site_process import GRACE_S, end_with_parent
from veilgraph.link.channel import ChannelContext

with deferred():  # PyTorch, imported in a fifth less time
    from veilgraph.link.nats import NatsLink
    from veilgraph.link.view import RecordedLink
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.job_file import parse_job
    from veilgraph.runtime.launch import site
    from veilgraph.runtime.launch.processes import keep_freed_memory, share_cores
    from veilgraph.runtime.launch.site import CheckAnswer, check_here, take_part
    from veilgraph.runtime.store.run_directory import RunDirectory

_STOPPED: Final = "the job was stopped: by an administrator, or because the site was"

log = logging.getLogger("veilgraph")


def main() -> None:
    """Run this site's part of the job in ``sys.argv`` (KIT, JOB-FOLDER), or a check of it; write its outcome."""
    kit, folder = Kit.open(Path(sys.argv[1])), Path(sys.argv[2])
    os.umask(0o077)
    end_with_parent(GRACE_S)
    _log_to_standard_output()
    keep_freed_memory()
    if "OMP_NUM_THREADS" not in os.environ:  # else several parties share this machine, as in the demonstration
        share_cores(1)
    request = stored_request(folder / "request")
    if request.work == "check":
        Outcome(checked=checked(request, kit).model_dump()).write(folder)
    else:
        Outcome(failure=_run(request, kit)).write(folder)


def _run(request: Request, kit: Kit) -> Failure | None:
    """Runs this site's part; returns what others may know of the error that it failed with."""
    try:
        settings, party = _settings_and_party(request, kit)
        with _open_link(request, settings, kit, party) as link:
            take_part(
                kit.site.runs,
                settings,
                party,
                site.SITE_WORKS[request.work],
                link,
                link,
                party_file=kit.site.party_file,
                resume=request.resume,
                restarts=kit.site.restarts,
                allows_audit=kit.site.allows_audit,
                auditor=_audit,
                identity=kit.identity(),
                names=kit.certified_names(),
                job_id=request.id,
                consent=kit.consent,
                learning=kit.learning,
                seen=kit.marks,
            )
    except VeilgraphError as error:
        log.error("%s", error.to_json())
        return Failure.of(error, kit.party)
    except Exception as error:
        log.exception("%s failed", kit.name)
        return Failure(kind=type(error).__name__)
    log.info(ANSWERING if request.work == "answer" and party == SERVER else DONE)
    return None


def checked(request: Request, kit: Kit) -> CheckAnswer:
    """Whether this site would take part in a job; of an error it says no more than that there is one."""
    try:
        settings, party = _settings_and_party(request, kit)
        kit.identity()  # with which it would sign
        runs, party_file, consent = kit.site.runs, kit.site.party_file, kit.consent
        found = check_here(runs, settings, party, party_file=party_file, job_id=request.id, consent=consent)
    except VeilgraphError as error:
        log.warning("would take part in no job: %s: %s", type(error).__name__, error)
        return CheckAnswer.withheld()
    except Exception:
        log.exception("the check failed")
        return CheckAnswer.withheld()
    log.info(DONE)
    return found


def _settings_and_party(request: Request, kit: Kit) -> tuple[JobSettings, PartyId]:
    """Parse the request's job; return it, and which party of it this site is; ``ConfigError``: none."""
    settings = parse_job(request.job or {})
    sites_of(settings, kit.roles)
    party = kit.party
    if party is None:
        raise ConfigError(f"{kit.name} takes no part in jobs: {kit.roles}; submit with the same release")
    if party not in (*settings.data.names, SERVER):
        names = ", ".join(settings.data.names)
        raise ConfigError(f"{party} is not one of the job's holders {names}; name it under data.holders")
    return settings, party


@contextmanager
def _open_link(request: Request, settings: JobSettings, kit: Kit, party: PartyId) -> Iterator[RecordedLink]:
    """Yield a link to the job's other parties through the brokers, which SIGTERM aborts."""
    parties, certified = (*settings.data.names, SERVER), kit.certified_names()
    identity = kit.identity()
    wire = NatsLink(
        party,
        kit.brokers(),
        {peer: certified.get(peer, peer) for peer in parties if peer != party},
        identity,
        ChannelContext(request.id, parties, settings.hash()),
        settings.timeout_s,
        own_name=certified.get(party, party),
        extra=identity.revocation_list_pem,
        on_extra=partial(accept_revocation_list, kit),
    )
    stopping = threading.Event()

    def stop() -> None:
        stopping.wait()
        wire.abort(_STOPPED)

    threading.Thread(target=stop, name="stop", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        link = RecordedLink(wire)
        yield link
        link.close()
    except BaseException as error:
        wire.stop(type(error).__name__)
        raise


def accept_revocation_list(kit: Kit, peer: PartyId, shown: bytes) -> None:
    """Keeps a newer list of revoked certificates that a peer has, for handshakes of the next job; or ``LinkError``."""
    try:
        if shown and accept_newer(kit.path, shown):
            log.info("the newer list of revoked certificates came from %s", peer)
    except LinkError:
        raise
    except VeilgraphError as error:
        raise LinkError(f"the list of revoked certificates that {peer} has cannot be kept here: {error}") from error


def _audit(run: RunDirectory, party: PartyId, link: Link) -> None:
    from veilgraph.audit.across import audit_across  # noqa: PLC0415  (what attacks need is slow to load)

    audit_across(run, party, link)


def _log_to_standard_output() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    handler.addFilter(PrintableRecords())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    run_and_leave(main)
