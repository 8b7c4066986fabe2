"""What FLARE starts in a job's process: an executor at each holder and at a dealer apart, a controller at the server.

Both run the same role code as everywhere else; a job carries settings only. They come from whoever submitted the job
and are validated like any stranger's file.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from nvflare.apis.controller_spec import Client, ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from veilgraph.core.errors import ConfigError, LinkError, VeilgraphError
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.deploy.answers import ANSWER, check_part, put_answer, read_answer
from veilgraph.deploy.failures import CONSEQUENCES, Failure, error_of, errors_of, sites_of
from veilgraph.deploy.guard.ended import ended_first
from veilgraph.deploy.guard.hooks import installed
from veilgraph.deploy.kit import ITS_LOG_SAYS, Kit
from veilgraph.deploy.progress import DONE
from veilgraph.deploy.revocation import accept_newer
from veilgraph.deploy.roles import Roles
from veilgraph.deploy.submission import CHECK, TASK, decode_request
from veilgraph.link.channel import ChannelContext
from veilgraph.link.flare import FlareLink
from veilgraph.link.view import RecordedLink
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.processes import keep_freed_memory, share_cores
from veilgraph.runtime.launch.site import SITE_WORKS, Checked, SiteWork, take_part
from veilgraph.runtime.store.run_directory import RunDirectory

ABORT_POLL_S: Final = 0.5
_STOPPED: Final = "the job was stopped: by an administrator, or because a party was lost"
CAUSE_S: Final = 5.0
FAILURE: Final = "veilgraph_failure"

log = logging.getLogger("veilgraph")


class PartyExecutor(Executor):  # type: ignore[misc]
    """A site's part of a job: one data holder's or, where that is no part of the server, the dealer's.

    Args:
        request: the job, as ``encode_request`` wrote it.

    Raises:
        ConfigError: it is no request.
    """

    def __init__(self, request: str) -> None:
        super().__init__()
        self._job, self._work, self._resume = decode_request(request)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Does this site's part from beginning to end; FLARE calls it once."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        if self._work == CHECK:
            return make_reply(ReturnCode.OK, headers={ANSWER: _checked(self._job, fl_ctx).model_dump_json()})
        failure = run_part(self._job, self._work, self._resume, fl_ctx, lambda: bool(abort_signal.triggered))
        if failure is None:
            return make_reply(ReturnCode.OK)
        return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers={FAILURE: failure.model_dump_json()})


class ServerController(Controller):  # type: ignore[misc]
    """The server's part of a job; where another site deals, that is to start the sites' and to wait for their end.

    Arguments as ``PartyExecutor``.
    """

    def __init__(self, request: str) -> None:
        super().__init__()
        self._job, self._work, self._resume = decode_request(request)
        self._unfinished: set[str] = set()
        self._failures: dict[str, Failure] = {}
        self._first_failed = math.inf

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Starts every site's part, does the server's own, if it has any, and waits for the others to end theirs."""
        try:
            roles = _kit(fl_ctx).roles
            sites = sites_of(parse_job(self._job), roles)
        except VeilgraphError as error:
            _failed(error)
            self._end([ConfigError(f"{SERVER} failed; its own log says why", code=ITS_LOG_SAYS)], fl_ctx)
            return
        if self._work == CHECK:  # whom the engine has started a process for: others are not there
            there = {client.name for client in fl_ctx.get_engine().get_clients()}
            sites = tuple(site for site in sites if site in there)
        self._unfinished = set(sites)
        task = Task(name=TASK, data=Shareable(), result_received_cb=self._finished)
        self.broadcast(task, fl_ctx, targets=list(sites), min_responses=len(sites))
        if self._work == CHECK:
            if roles.dealer is None:
                put_answer(SERVER, _checked(self._job, fl_ctx))
            while self._unfinished and not abort_signal.triggered:
                threading.Event().wait(ABORT_POLL_S)
            return
        if roles.dealer is not None:
            log.info("%s; its log says how far the job is", roles)
        elif not self._do_own_part(roles, abort_signal, fl_ctx):
            return
        while self._unfinished and not abort_signal.triggered and not self._is_over():
            if roles.dealer is None and not all(failure.is_consequence for failure in list(self._failures.values())):
                break
            threading.Event().wait(ABORT_POLL_S)
        ended = ended_first(Path(fl_ctx.get_workspace().get_root_dir()), _job_id(fl_ctx))
        self._end(errors_of(dict(self._failures), sites, roles, ended), fl_ctx)

    def _end(self, errors: Sequence[VeilgraphError], fl_ctx: FLContext) -> None:
        """Ends the job with these errors, if any, and tells administrators of them."""
        for each in errors:
            log.info("failed %s", each.to_json())
        if errors:
            self.system_panic(str(errors[0]), fl_ctx)

    def _do_own_part(self, roles: Roles, abort_signal: Signal, fl_ctx: FLContext) -> bool:
        """Does the server's part; False where it failed by itself. That it lost a party is one word among others'."""
        over = threading.Event()

        def stopped() -> bool:
            if self._is_over():
                over.set()
            return bool(abort_signal.triggered) or over.is_set()

        failure = run_part(self._job, self._work, self._resume, fl_ctx, stopped, unsaid=CONSEQUENCES)
        if failure is not None and not failure.is_consequence:
            self._end([error_of(roles.deals, failure, roles)], fl_ctx)
            return False
        if failure is not None and not over.is_set():
            self._fails(roles.deals, failure)
        return True

    def _fails(self, site: PartyId, failure: Failure) -> None:
        self._failures[site] = failure
        self._first_failed = min(self._first_failed, time.monotonic())

    def _is_over(self) -> bool:
        """Whether a site has failed, and the others had time to say what they know: the first may not know why."""
        return time.monotonic() >= self._first_failed + CAUSE_S

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to clean up: the run's own code does."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A result that comes after the end is of no use."""

    def _finished(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        name = client_task.client.name
        result = client_task.result
        if self._work == CHECK:
            put_answer(name, read_answer(None if result is None else result.get_header(ANSWER)))
            self._unfinished.discard(name)
            return
        self._unfinished.discard(name)
        if result is None or result.get_return_code() != ReturnCode.OK:
            self._fails(name, Failure.read(None if result is None else result.get_header(FAILURE)))


def run_part(
    job: dict[str, Any],
    work: str,
    resume: bool,
    fl_ctx: FLContext,
    stopped: Callable[[], bool],
    unsaid: tuple[type[VeilgraphError], ...] = (),
) -> Failure | None:
    """Runs this site's part; returns what others may know of the error it failed with.

    Args:
        job: settings, as in a job file.
        work: one of ``SITE_WORKS``.
        resume: go on with a run that was cut off.
        fl_ctx: of the engine.
        stopped: whether the job was stopped from outside.
        unsaid: errors that the caller puts into the log, not this.
    """
    keep_freed_memory()
    if "OMP_NUM_THREADS" not in os.environ:  # else several parties share this machine, as in the demonstration
        share_cores(1)
    kit = None
    try:
        settings, kit, party = _part_of(job, fl_ctx)
        with _link(settings, kit, party, fl_ctx, stopped) as link:
            take_part(
                kit.runs_now(),
                settings,
                party,
                _work(work),
                link,
                link,
                party_file=kit.party_file(),
                resume=resume,
                restarts=kit.restarts(),
                allows_audit=kit.allows_audit(),
                auditor=_audit,
                identity=kit.identity(),
                names=kit.certified_names(),
                job_id=_job_id(fl_ctx),
                consent=kit.consent,
                learning=kit.learning,
                seen=kit.marks,
            )
    except VeilgraphError as error:
        if not isinstance(error, unsaid):
            _failed(error)
        return Failure.of(error, None if kit is None else kit.party)
    except Exception as error:
        log.exception("%s failed", "the site" if kit is None else kit.name)
        return Failure(kind=type(error).__name__)
    log.info(DONE)
    return None


def _checked(job: dict[str, Any], fl_ctx: FLContext) -> Checked:
    checked = check_part(partial(_part_of, job, fl_ctx), _job_id(fl_ctx))
    log.info(DONE)
    return checked


def _part_of(job: dict[str, Any], fl_ctx: FLContext) -> tuple[JobSettings, Kit, PartyId]:
    """The job, this site's kit, and which party it is.

    Raises:
        VeilgraphError: the job or the kit cannot be used, the process is not guarded, or the site is no party.
    """
    if not installed():
        raise ConfigError("this process is not guarded; start the site with: veilgraph net join KIT")
    settings, kit = parse_job(job), _kit(fl_ctx)
    party = kit.party
    if party is None:
        raise ConfigError(f"{kit.name} takes no part in jobs: {kit.roles}; submit with the same release")
    return settings, kit, party


def _audit(run: RunDirectory, party: PartyId, link: Link) -> None:
    from veilgraph.audit.across import audit_across  # noqa: PLC0415  (what attacks need is slow to load)

    audit_across(run, party, link)


def _failed(error: VeilgraphError) -> None:
    """Puts a party's own error into its own log; ``guard.commands`` keeps the server's from administrators."""
    log.error("%s", error.to_json())


def _work(name: str) -> SiteWork:
    if name not in SITE_WORKS:
        raise ConfigError(f"work={name!r} is not one of {', '.join(SITE_WORKS)}; submit with the same release")
    return SITE_WORKS[name]


def _kit(fl_ctx: FLContext) -> Kit:
    return Kit.open(Path(fl_ctx.get_workspace().get_root_dir()))


def _job_id(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_prop(FLContextKey.CURRENT_RUN) or fl_ctx.get_job_id())


@contextmanager
def _link(
    settings: JobSettings,
    kit: Kit,
    party: PartyId,
    fl_ctx: FLContext,
    stopped: Callable[[], bool],
) -> Iterator[RecordedLink]:
    """This party's sealed link, its traffic counted; it ends when the job is stopped."""
    job_id = _job_id(fl_ctx)
    holders, roles = settings.data.names, kit.roles
    parties = (*holders, SERVER)
    sites_of(settings, roles)
    if party not in parties:
        raise ConfigError(f"{party} is not one of the job's holders {', '.join(holders)}; name it under data.holders")
    cell = fl_ctx.get_engine().get_cell().core_cell
    at = {SERVER: roles.dealer or SERVER}
    addresses = {peer: f"{at.get(peer, peer)}.{job_id}" for peer in parties if peer != party}
    session = ChannelContext(job_id, parties, settings.hash())
    identity = kit.identity()
    known = b"" if identity.revoked is None else identity.revoked.pem
    take = partial(take_list, kit)
    wire = FlareLink(party, cell, addresses, identity, session, settings.timeout_s, extra=known, on_extra=take)
    done = threading.Event()
    watcher = threading.Thread(target=_end_when_stopped, args=(wire, stopped, done), daemon=True)
    watcher.start()
    try:
        link = RecordedLink(wire)
        yield link
        link.close()
    except BaseException as error:
        wire.stop(type(error).__name__)
        raise
    finally:
        done.set()


def take_list(kit: Kit, peer: PartyId, shown: bytes) -> None:
    """Keeps a newer list of revoked certificates that a peer has: handshakes are held to it from the next job on.

    Raises:
        LinkError: it is not one, or it cannot be kept here; the session with the peer ends.
    """
    try:
        if shown and accept_newer(kit.path, shown):
            log.info("the newer list of revoked certificates came from %s", peer)
    except LinkError:
        raise
    except VeilgraphError as error:
        raise LinkError(f"the list of revoked certificates that {peer} has cannot be kept here: {error}") from error


def _end_when_stopped(wire: FlareLink, stopped: Callable[[], bool], done: threading.Event) -> None:
    while not done.wait(ABORT_POLL_S):
        if stopped():
            wire.abort(_STOPPED)
            return
