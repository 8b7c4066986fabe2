"""Runs a participant's long-lived site: FLARE's own program in a process of its own, watched and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout, RunError
from veilgraph.core.files import check_private, locked
from veilgraph.core.text import Event, Level
from veilgraph.core.types import SERVER
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.metrics.address import Address
from veilgraph.deploy.metrics.door import serving
from veilgraph.deploy.metrics.watch import SiteWatch
from veilgraph.deploy.progress import SiteJob, SiteJobs, State
from veilgraph.deploy.site_process import last_ended, program_of, site_log, site_process
from veilgraph.protocol.consent import all_waiting
from veilgraph.protocol.party_settings import read_party_settings

_READY: Final = {"server": "Server started", "holder": "Successfully registered client"}
"""By the role of the site's program in the engine."""
_POLL_S: Final = 0.2
_RESTARTS: Final = 5
_CALM_S: Final = 60.0
_TAIL_BYTES: Final = 4096
_NEWS_S: Final = 2.0
_LEVELS: Final[dict[State, Level]] = {"failed": "error", "stopped": "warning"}
"""Of how a job ended, where that is not well."""

Report = Callable[[str], None]


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
        ModuleNotFoundError: FLARE, or what metrics need, is not installed.
        ConfigError: the kit or the party file cannot be used.
        DataError: the kit is damaged, or its passphrase another.
        LinkTimeout: no connection in time.
        RunError: the site is running already, its process ends again and again, or others than its owner may use the
            kit or the folder of runs.
    """
    if find_spec("nvflare") is None:  # the site's process would end, again and again
        raise ModuleNotFoundError("No module named 'nvflare'", name="nvflare")
    if metrics is not None:
        import_module("prometheus_client")
    _check(kit, party_file)
    for option, limit, given in (("--restart", "restart", restarts), ("--allow-audit", "allow_audit", allows_audit)):
        if given and kit.party != SERVER:
            instead = (
                f"write limits.{limit}: true into its party file"
                if kit.kind == "holder"
                else f"{kit.roles.deals} deals: join there with it"
            )
            raise ConfigError(f"{option} is the leave of who deals, and this kit is {kit.name}'s: {instead}")
    runs = runs or kit.runs
    alone = locked(kit.path, f"{kit.path} is in use: its site is running already; stop that first")
    watch = SiteWatch()
    with (
        alone,
        _private(kit, runs),
        kit.key_file.opened(kit.passphrase),
        _stop_on_signals() as stopped,
        _watched(kit, runs, watch, metrics, report),
    ):
        kit.prepare(party_file, runs, current_list=current_list, restarts=restarts, allows_audit=allows_audit)
        _check_identity(kit, report)
        started: list[float] = []
        asked = frozenset[str]()
        jobs = JobNews(kit)
        while last_ended(kit, stopped, watch.look, report):
            started = [moment for moment in started if time.monotonic() - moment < _CALM_S]
            if len(started) >= _RESTARTS:
                raise RunError(
                    f"{kit.name}: the site ended {_RESTARTS} times in {_CALM_S:g} s, last with: {_last_line(kit)}; see "
                    f"{site_log(kit)}"
                )
            started.append(time.monotonic())
            logged = site_log(kit).stat().st_size if site_log(kit).exists() else 0
            with site_process(kit) as process:
                if not _wait_ready(kit, process, stopped, connect_s, logged, watch):
                    watch.restarts += not stopped.is_set()
                    continue
                watch.is_up = True
                report(Event("connected", f"{kit.name} is connected; {kit.roles}; runs are kept in {kit.runs_now()}"))
                while process.poll() is None and not stopped.wait(_POLL_S):
                    watch.look()
                    asked = tell_waiting(kit, asked, report)
                    jobs.tell(report)
                watch.is_up = False
            if not stopped.is_set():
                watch.restarts += 1
                code = process.returncode
                words = f"{kit.name}: the site's process ended with code {code}; starting it again"
                report(Event("restarting", words, level="error", code=code))
        report(Event("left", f"{kit.name} has left"))


@contextmanager
def _watched(kit: Kit, runs: Path, watch: SiteWatch, metrics: Address | None, report: Report) -> Iterator[None]:
    """Says how the site is to who asks at an address, if it was given one."""
    if metrics is None:
        yield
        return
    from veilgraph.deploy.metrics.exposed import METRICS, pages  # noqa: PLC0415  (an extra that a site can do without)
    from veilgraph.deploy.metrics.site import WatchedSite  # noqa: PLC0415

    with serving(metrics, pages(WatchedSite(kit, runs, watch))) as address:
        report(Event("metrics", f"metrics at http://{address}{METRICS}", address=str(address)))
        yield


@contextmanager
def _private(kit: Kit, runs: Path) -> Iterator[None]:
    """Refuses a kit or a folder of runs that others may use; what a killed site left of an opened key is removed."""
    kit.key_file.close()
    for folder in (kit.path, runs):
        if folder.exists():
            check_private(folder)
    yield


def _check(kit: Kit, party_file: Path | None) -> None:
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
    """Whether others will believe this kit's certificate, as far as can be told from here."""
    identity, message, now = kit.identity(), b"this kit's own certificate", datetime.now(UTC)
    identity.verify_peer(kit.party or kit.name, identity.certificate_pem, identity.sign(message), message, now)
    if identity.revoked is not None and now > identity.revoked.next_update:
        words = (
            f"the list of revoked certificates should have been renewed on {identity.revoked.next_update:%Y-%m-%d}; it "
            "still counts: ask the authority for a newer one"
        )
        report(Event("list-overdue", words, level="warning"))


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_ready(
    kit: Kit,
    process: subprocess.Popen[bytes],
    stopped: threading.Event,
    connect_s: float,
    logged: int,
    watch: SiteWatch,
) -> bool:
    """Whether the site came up; False when its process ended or it was told to stop. Reads the log from ``logged``."""
    deadline = time.monotonic() + connect_s
    while process.poll() is None and not stopped.wait(_POLL_S):
        watch.look()
        with site_log(kit).open("rb") as log:
            log.seek(logged)
            text = log.read().decode(errors="replace")
        if _READY[program_of(kit)] in text:
            return True
        refusal = _refusal(text)
        if refusal is not None:
            raise LinkError(f"{kit.name} cannot join: {refusal}; see {site_log(kit)}")
        if time.monotonic() > deadline:
            raise LinkTimeout(
                f"{kit.name} could not connect in {connect_s:g} s; is the server running, and its host and port "
                f"reachable from here? See {site_log(kit)}"
            )
    return False


def tell_waiting(kit: Kit, told: frozenset[str], report: Report) -> frozenset[str]:
    """Says which jobs wait for a person, each once; returns the numbers of the questions."""
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
    """Says when a job of this site begins and how it ends; of what was there before nothing.

    Args:
        kit: of the site.
        every_s: seconds between one look and the next.
    """

    def __init__(self, kit: Kit, every_s: float = _NEWS_S) -> None:
        self._jobs, self._every_s, self._looked = SiteJobs(kit), every_s, -every_s
        self._known: dict[str, SiteJob] | None = None

    def tell(self, report: Report) -> None:
        """Says what is new."""
        if time.monotonic() - self._looked < self._every_s:
            return
        self._looked = time.monotonic()
        found = {job.job_id: job for job in self._jobs.now()}
        for job in reversed(found.values() if self._known is not None else ()):
            before = (self._known or {}).get(job.job_id)
            if job.state != "submitted" and (before is None or before.state != job.state):
                level = _LEVELS.get(job.state, "info")
                report(
                    Event(
                        f"job-{job.state}", f"job {job.job_id} ({job.name}): {job.state}", level=level, job=job.job_id
                    )
                )
        self._known = found


def _refusal(text: str) -> str | None:
    """Why the server's side or our own refuses the connection for good, if the log says so."""
    causes = {
        "CERTIFICATE_VERIFY_FAILED": "the certificates are not of one project, or have expired",
        "certificate verify failed": "the certificates are not of one project, or have expired",
        "CERTIFICATE_EXPIRED": "a certificate has expired",
    }
    return next((cause for sign, cause in causes.items() if sign in text), None)


def _last_line(kit: Kit) -> str:
    """What the site's process said last."""
    with site_log(kit).open("rb") as log:
        log.seek(-min(_TAIL_BYTES, log.seek(0, os.SEEK_END)), os.SEEK_END)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "nothing"
