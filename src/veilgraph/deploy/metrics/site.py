"""A site of ``veilgraph net join``, watched: from its kit's files and its processes, and from nothing else."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from prometheus_client.core import CounterMetricFamily, Metric

from veilgraph.core.errors import VeilgraphError
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.metrics.exposed import Monitored, build, gauge, gauges
from veilgraph.deploy.progress import STATES, SiteJob, SiteJobs, drift_of, epsilon_of, site_processes, traffic_of
from veilgraph.deploy.revocation import installed_list
from veilgraph.deploy.site_process import STUCK_S, SiteWatch
from veilgraph.protocol.consent import all_waiting


class WatchedSite(Monitored):
    """Metrics and readiness of a site."""

    def __init__(self, kit: Kit, runs: Path, watch: SiteWatch) -> None:
        self._kit, self._runs, self._watch = kit, runs, watch
        self._jobs = SiteJobs(kit)

    def collect(self) -> Iterable[Metric]:
        """All metrics; docs/guides/operations.md says what each tells."""
        watch, processes = self._watch, site_processes(self._kit)
        jobs = self._jobs.now(processes)
        yield build(self._kit.kind)
        yield from gauge("connected", "1 while the site is connected with the broker.", watch.is_up)
        words = "How often the broker was started again, at the server."
        yield CounterMetricFamily("veilgraph_site_restarts", words, watch.restarts)
        yield from gauge("site_processes", "Processes of the site and its jobs.", len(processes))
        memory = sum(each.resident_bytes for each in processes)
        yield from gauge("site_resident_memory_bytes", "Memory of the site and its jobs.", memory)
        count: dict[str, float] = {state: sum(job.state == state for job in jobs) for state in STATES}
        yield gauges("jobs", "Jobs that the kit has, by state.", "state", count)
        yield from gauge("jobs_waiting_for_approval", "Jobs that wait for a person here.", self._count_waiting())
        yield from _running_job(jobs)
        yield from self._newest_job(jobs)
        yield from self._expiry_times()
        yield from self._disk_space()

    def ready(self) -> tuple[bool, str]:
        """Whether jobs can be run: the site is connected."""
        return (True, "ready") if self._watch.is_up else (False, "not ready: no connection with the broker")

    def alive(self) -> tuple[bool, str]:
        """Whether ``join`` has looked after its site in the last ``STUCK_S`` seconds, and a word for it."""
        stuck = time.monotonic() - self._watch.looked > STUCK_S
        return (False, "stuck") if stuck else (True, "alive")

    def _count_waiting(self) -> int | None:
        return len(all_waiting(self._kit.consent)) if self._kit.kind == "holder" else None

    def _newest_job(self, jobs: tuple[SiteJob, ...]) -> Iterator[Metric]:
        begun = next(iter(jobs), None)
        if begun is None:
            return
        if (traffic := traffic_of(self._kit, begun)) is not None:
            words = "Bytes that crossed the wire in the newest job's session, as last noted."
            yield gauges("job_bytes", words, "direction", traffic)
        spent = epsilon_of(self._kit, begun)
        yield from gauge("job_epsilon_spent", "Total epsilon in this site's ledger of the newest job's run.", spent)
        if (drift := drift_of(self._kit, begun)) is not None:
            words = "Columns and relations of this site that have moved since training, by the newest prediction."
            yield from gauge("job_drifted", words, drift[0])
            yield from gauge("job_drift_index", "The largest population stability index among these.", drift[1])

    def _expiry_times(self) -> Iterator[Metric]:
        kept = {"": ("site's", self._kit.certified), "broker_": ("site's broker's", self._kit.broker)}
        for name, (whose, own) in kept.items():
            with suppress(OSError, ValueError):
                ends = x509.load_pem_x509_certificate(own.certificate.read_bytes()).not_valid_after_utc
                words = f"When this {whose} certificate expires, in seconds since 1970."
                yield from gauge(f"{name}certificate_expiry_timestamp_seconds", words, ends.timestamp())
        with suppress(VeilgraphError):
            if (revoked := installed_list(self._kit.path)) is not None:
                words = "When there should be a newer list of revoked certificates, in seconds since 1970."
                yield from gauge("revocation_list_due_timestamp_seconds", words, revoked.next_update.timestamp())

    def _disk_space(self) -> Iterator[Metric]:
        with suppress(OSError):
            disk = shutil.disk_usage(self._runs if self._runs.exists() else self._kit.path)
            yield from gauge("disk_free_bytes", "Free room where the runs are.", disk.free)
            yield from gauge("disk_size_bytes", "Size of the file system where the runs are.", disk.total)


def _running_job(jobs: tuple[SiteJob, ...]) -> Iterator[Metric]:
    job = next((job for job in jobs if job.state == "running"), None)
    if job is None:
        return
    yield from gauge("job_epoch", "Epoch that the running job has reached.", job.epoch)
    yield from gauge("job_epochs", "Epochs that the running job may have.", job.epochs)
    yield from gauge("job_quiet_seconds", "Seconds since the running job last said anything.", job.quiet_s)
