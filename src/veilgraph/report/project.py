"""The state of a project as a table for people."""

from __future__ import annotations

from rich.table import Table

from veilgraph.deploy.control import ProjectStatus


def project_table(status: ProjectStatus) -> Table:
    """The submitted jobs, newest first."""
    table = Table("job", "name", "status", "submitted")
    for job in status.jobs:
        table.add_row(job.job_id, job.name, job.status.lower().replace("_", " "), job.submitted)
    return table
