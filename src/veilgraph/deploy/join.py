"""Runs a participant's long-lived site: what takes requests and starts jobs and, at the server, the broker."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph.core.files import check_private, locked
from veilgraph.core.text import Event, Level, Report
from veilgraph.core.threads import stopped_by_signals
from veilgraph.core.types import SERVER
from veilgraph.deploy.broker import BrokerProcess
from veilgraph.deploy.https import Page
from veilgraph.deploy.key_file import PASSPHRASE_VARIABLE
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.deploy.metrics.door import Address, serve_metrics
from veilgraph.deploy.progress import SiteJob, SiteJobs, State
from veilgraph.deploy.site_process import SiteWatch, await_earlier_processes, lock_kit, parent_environment
from veilgraph.deploy.supervisor import Site, Supervisor, subscribe_to_requests
from veilgraph.protocol.consent import all_waiting
from veilgraph.protocol.party_settings import read_party_settings

_POLL_S: Final = 0.2
_JOIN_S: Final = 20.0
_NEWS_S: Final = 2.0
_LEVELS: Final[dict[State, Level]] = {"failed": "error", "stopped": "warning", "ended": "error"}
"""Of how a job ended, where that is not well."""


def join(
    kit: Kit,
    party_file: Path | None,
    runs: Path | None,
    *,
    report: Report,
    connect_s: float = 60.0,
    current_list: bool = False,
    restarts: bool = False,
    allows_audit: bool = False,
    metrics: Address | None = None,
) -> None:
    """Runs the site until it is told to stop (SIGINT, SIGTERM).

    Args:
        kit: of the server, the dealer or a holder.
        party_file: the holder's own.
        runs: where to keep runs; default: in the kit.
        report: called with a line when something happens that a person wants to know.
        connect_s: longest wait for the first connection with the server.
        current_list: take part only with a list of revoked certificates that is not past its time.
        restarts: the dealer's leave to begin a training again, in place of what it has of it.
        allows_audit: the dealer's leave to keep what it sends and receives, and to answer audits.
        metrics: where to say how the site is, to who asks; None: nowhere.

    Raises:
        ModuleNotFoundError: what metrics need is not installed.
        ConfigError: the kit or the party file cannot be used.
        DataError: the kit is damaged, or its passphrase another.
        LinkTimeout: no connection in time.
        RunError: the site is running already, or others than its owner may use the kit or the folder of runs.
    """
    if metrics is not None:
        import_module("prometheus_client")
    _check_kit(kit, party_file)
    for option, limit, given in (("--restart", "restart", restarts), ("--allow-audit", "allow_audit", allows_audit)):
        if given and kit.party != SERVER:
            instead = (
                f"write limits.{limit}: true into its party file"
                if kit.kind == "holder"
                else f"{kit.roles.deals} deals: join there with it"
            )
            raise ConfigError(f"{option} is the leave of who deals, and this kit is {kit.name}'s: {instead}")
    runs = runs or kit.runs
    watch, stopped = SiteWatch(), threading.Event()
    with ExitStack() as stack:
        stack.enter_context(locked(kit.path, f"{kit.path} is in use: its site is running already; stop that first"))
        kit.key_file.close()  # a killed site left a link, and check_private refuses links
        for folder in (kit.path, runs):
            if folder.exists():
                check_private(folder)
        stack.enter_context(kit.key_file.opened(kit.passphrase))
        stack.enter_context(stopped_by_signals(stopped.set))
        stack.enter_context(serve_metrics(metrics, partial(_metrics_pages, kit, runs, watch), report))
        leave = {"current_list": current_list, "restarts": restarts, "allows_audit": allows_audit}
        kit.prepare(SiteFile(party_file=party_file, runs=runs, **leave))
        if kit.kind != "broker":  # it is no participant, and meets none
            _check_identity(kit, report)
        if await_earlier_processes(kit, stopped, watch.look, report):
            with lock_kit(kit) as held:
                _take_part(kit, stopped, held, watch, report, connect_s)
        report(Event("left", f"{kit.name} has left"))


def _take_part(
    kit: Kit, stopped: threading.Event, held: int, watch: SiteWatch, report: Report, connect_s: float
) -> None:
    """Runs the server's broker and, at a party, the supervisor, until the site is told to stop."""
    with ExitStack() as stack:
        broker = None
        if kit.has_broker:
            broker = BrokerProcess(kit.path / "broker", lambda: kit.broker_configuration(datetime.now(UTC)))
            broker.start([held])
            stack.callback(broker.stop)
        # A site that only relays is not asked anything.
        attendance = None if kit.party is None else _RequestHandler(kit, held, report)
        if attendance is not None:
            stack.callback(attendance.stop)
        elif broker is not None:
            watch.is_up = True
            report(Event("connected", f"{kit.name} is connected; {kit.roles}"))
        deadline, asked, jobs = time.monotonic() + connect_s, frozenset[str](), JobNews(kit)
        looked = time.monotonic()
        while not stopped.wait(_POLL_S):
            watch.look()
            if broker is not None and time.monotonic() - looked > _NEWS_S:
                looked = time.monotonic()
                if not broker.runs():
                    watch.restarts += 1
                    words = f"{kit.name}: the broker has ended; starting it again; see {broker.log}"
                    report(Event("restarting", words, level="error"))
                    broker.start([held])
            if attendance is not None:
                watch.is_up = attendance.connected
                if not attendance.was_connected and time.monotonic() > deadline:
                    raise attendance.failure(connect_s)
            asked = report_waiting_jobs(kit, asked, report)
            jobs.tell(report)
        watch.is_up = False


class _RequestHandler:
    """Takes requests from the broker in a thread, and has the site's supervisor answer them."""

    def __init__(self, kit: Kit, held: int, report: Report) -> None:
        self._kit, self._report = kit, report
        self.connected = self.was_connected = False
        self._trouble = ""
        environment = {name: value for name, value in os.environ.items() if name != PASSPHRASE_VARIABLE}
        site = Site(
            kit.certified_name,
            kit.roles.project,
            kit.jobs,
            kit.trust,
            kit.identity,
            lambda folder: [sys.executable, "-u", "-m", "veilgraph.deploy.part", str(kit.path), str(folder)],
            tells_log=kit.party == SERVER,
        )
        self._supervisor = Supervisor(site, environment | dict(parent_environment()), [held])
        self._requests = subscribe_to_requests(
            self._supervisor, kit.certified_name, kit.brokers(), self._report_connection
        )
        self._thread = threading.Thread(target=self._requests.run, name="requests", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._requests.close()
        self._thread.join(_JOIN_S)
        self._supervisor.close()

    def failure(self, connect_s: float) -> LinkError:
        """The error of a site that never connected: of its certificates, or a timeout."""
        name = self._kit.name
        for sign in ("CERTIFICATE_VERIFY_FAILED", "alert", "Authorization Violation", "authentication"):
            if sign.lower() in self._trouble.lower():
                return LinkError(
                    f"{name} cannot join: the certificates are not of one project, were revoked, or have "
                    f"expired ({self._trouble})"
                )
        return LinkTimeout(
            f"{name} could not connect in {connect_s:g} s; is the server running, and its host and port reachable from "
            f"here? ({self._trouble})"
        )

    def _report_connection(self, trouble: str) -> None:
        """Note and report whether the connection is up, up again, or lost by ``trouble``."""
        kit, self._trouble, self.connected = self._kit, trouble, not trouble
        if self.connected and not self.was_connected:
            self._report(Event("connected", f"{kit.name} is connected; {kit.roles}; runs are kept in {kit.site.runs}"))
        elif self.was_connected:
            words = f"{kit.name} is connected again" if self.connected else f"{kit.name} lost the broker: {trouble}"
            self._report(Event("reconnected" if self.connected else "lost", words, level="warning"))
        self.was_connected |= self.connected


def _metrics_pages(kit: Kit, runs: Path, watch: SiteWatch) -> Mapping[str, Callable[[], Page]]:
    from veilgraph.deploy.metrics.exposed import pages  # noqa: PLC0415  (an extra that a site can do without)
    from veilgraph.deploy.metrics.site import WatchedSite  # noqa: PLC0415

    return pages(WatchedSite(kit, runs, watch))


def _check_kit(kit: Kit, party_file: Path | None) -> None:
    """Raise ``ConfigError`` for an administrator's kit, or a party file that is missing, needless or another's."""
    if kit.kind == "administrator":
        raise ConfigError(
            f"{kit.path} is an administrator's kit: it submits jobs; join with a holder's, the dealer's or the server's"
        )
    if kit.kind != "holder":
        if party_file is not None:
            raise ConfigError(f"--party: the {kit.kind} has no data and takes no party file; leave it out")
        return
    if party_file is None:
        raise ConfigError(f"--party is missing: {kit.name} brings its tables; give its party file")
    party = read_party_settings(party_file).party
    if party != kit.name:
        raise ConfigError(f"{party_file}: party={party!r}, and the kit is {kit.name}'s; give that holder's party file")


def _check_identity(kit: Kit, report: Report) -> None:
    """Verify this kit's certificate as a peer would; report a list of revoked certificates that is overdue."""
    identity, message, now = kit.identity(), b"this kit's own certificate", datetime.now(UTC)
    identity.verify_peer(kit.party or kit.name, identity.certificate_pem, identity.sign(message), message, now)
    if identity.revoked is not None and now > identity.revoked.next_update:
        words = (
            f"the list of revoked certificates should have been renewed on {identity.revoked.next_update:%Y-%m-%d}; it "
            "still counts: ask the authority for a newer one"
        )
        report(Event("list-overdue", words, level="warning"))


def report_waiting_jobs(kit: Kit, told: frozenset[str], report: Report) -> frozenset[str]:
    """Report jobs that wait for a person's approval and are not in ``told``; return the numbers of all that wait."""
    found = all_waiting(kit.consent)
    for each in found:
        if each.asked not in told:
            job = each.request
            words = (
                f"{job.settings.name} ({job.work}) waits for approval: "
                f"veilgraph net consent approve {job.job} --kit {kit.path}"
            )
            report(Event("waiting-for-approval", words, level="warning", job=job.job))
    return frozenset(each.asked for each in found)


class JobNews:
    """Reports when a job of this site begins and how it ends, but not jobs that were there at the first look."""

    def __init__(self, kit: Kit, every_s: float = _NEWS_S) -> None:
        self._jobs, self._every_s, self._looked = SiteJobs(kit), every_s, -every_s
        self._known: dict[str, SiteJob] | None = None

    def tell(self, report: Report) -> None:
        """Report jobs that began or ended since the last look; look at most every ``every_s`` seconds."""
        if time.monotonic() - self._looked < self._every_s:
            return
        self._looked = time.monotonic()
        found = {job.job_id: job for job in self._jobs.now()}
        for job in reversed(found.values() if self._known is not None else ()):
            before = (self._known or {}).get(job.job_id)
            if before is None or before.state != job.state:
                level = _LEVELS.get(job.state, "info")
                words = f"job {job.job_id} ({job.title or 'unknown'}): {job.state}"
                report(Event(f"job-{job.state}", words, level=level, job=job.job_id))
        self._known = found
