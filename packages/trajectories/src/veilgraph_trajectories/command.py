"""The command that writes recordings as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from veilgraph.cli.app import command, data, override
from veilgraph.cli.data import show_exported
from veilgraph.cli.output import messages


@command("export-trajectories", "veilgraph data export-trajectories --out cameras --set cameras=2", data)
def export_command(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make.")],
    seed: Annotated[int, typer.Option(min=0, help="Of the recordings.")] = 0,
    table_format: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="Of the tables.")] = "csv",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of data.made, as cameras=2; may be given several times."
        ),
    ] = None,
) -> None:
    """Write recordings of people whom several cameras see as each camera's tables, with an averaging job."""
    from veilgraph.core.settings import settled  # noqa: PLC0415
    from veilgraph_trajectories.export import export_trajectories  # noqa: PLC0415
    from veilgraph_trajectories.settings import TrajectoriesSettings  # noqa: PLC0415

    with settled("trajectories"):
        settings = TrajectoriesSettings.model_validate(dict(map(override, changes or ())))
    with messages().status("writing tables"):
        files = export_trajectories(settings, out, seed, table_format)
    show_exported(files, out.glob("*.yaml"))
