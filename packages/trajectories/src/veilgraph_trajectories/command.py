"""The command that writes recordings as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from veilgraph.cli.app import command, data, option, override
from veilgraph.cli.data import show_exported
from veilgraph.cli.output import messages
from veilgraph.core.deferred import deferred
from veilgraph.core.settings import config_errors

with deferred():
    from veilgraph_trajectories.export import export_trajectories
    from veilgraph_trajectories.settings import TrajectoriesSettings


@command("export-trajectories", "veilgraph data export-trajectories --out cameras --set cameras=2", data)
def export_command(
    out: Path,
    seed: Annotated[int, option(min=0)] = 0,
    table_format: Literal["csv", "parquet"] = "csv",
    changes: list[str] | None = None,
) -> None:
    """Write recordings of people whom several cameras see as each camera's tables, with an averaging job.

    Options:
        --out DIR: Folder to make.
        --seed: Of the recordings.
        --format (table_format): Of the tables.
        --set KEY=VALUE (changes): A setting of data.made, as cameras=2; may be given several times.
    """
    with config_errors("trajectories"):
        settings = TrajectoriesSettings.model_validate(dict(map(override, changes or ())))
    with messages().status("writing tables"):
        files = export_trajectories(settings, out, seed, table_format)
    show_exported(files, out.glob("*.yaml"))
