"""The state of a project as a table for people."""

from __future__ import annotations

from rich.table import Table

from veilgraph.deploy.control import ProjectStatus


def project_table(status: ProjectStatus) -> Table:
    """The submitted jobs, newest first."""
    table = Table()
    for heading in ("job", "name", "status", "submitted", "newest"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "job")
    for job in status.jobs:
        table.add_row(job.job_id, job.name, job.status.lower().replace("_", " "), job.submitted, job.says)
    return table
