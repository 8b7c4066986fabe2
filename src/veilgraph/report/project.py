"""The state of a project as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from veilgraph.deploy.checking import SiteCheck
from veilgraph.deploy.control import ProjectStatus
from veilgraph.deploy.progress import SiteJob


def site_table(status: ProjectStatus) -> Table:
    """Every site beside the server, and when that last heard of it."""
    table = Table()
    for heading in ("site", "is", "last heard of"):
        table.add_column(heading)
    for site in status.sites:
        heard = "not within ten minutes" if site.heard_s is None else f"{site.heard_s:.0f} s ago"
        table.add_row(site.name, site.state, heard)
    return table


def project_table(status: ProjectStatus) -> Table:
    """The submitted jobs, newest first."""
    table = Table()
    for heading in ("job", "name", "status", "submitted", "newest"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "job")
    for job in status.jobs:
        table.add_row(job.job_id, job.name, job.status.lower().replace("_", " "), job.submitted, job.says)
    return table


def checked_table(sites: Sequence[SiteCheck]) -> Table:
    """What every site of a job would do."""
    table = Table()
    for heading in ("site", "would", "why"):
        table.add_column(heading, overflow="fold")
    for site in sites:
        table.add_row(site.site, site.state, site.says)
    return table


def own_jobs_table(jobs: Sequence[SiteJob]) -> Table:
    """A site's own jobs, newest first."""
    table = Table()
    for heading in ("job", "name", "is", "epoch", "silent for"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "job")
    for job in jobs:
        of = "" if job.epochs is None else f" of {job.epochs}"
        epoch = "" if job.epoch is None else f"{job.epoch}{of}"
        quiet = "" if job.quiet_s is None or job.state != "running" else f"{job.quiet_s:.0f} s"
        table.add_row(job.job_id, job.name, job.state, epoch, quiet)
    return table
