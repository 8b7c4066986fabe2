"""The command that compares a run with each holder alone, and with all data in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import command, messages
from veilgraph.cli.showing import show_comparison


@command("compare", "veilgraph compare runs/digits")
def compare_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a complete run of all parties.")],
) -> None:
    """Train a run's network on each holder's data alone, and on all in one place, and show what working together gains.

    This needs all data on one machine, as nobody may have them: a study of public or simulated data.
    """
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.run.comparing import compare  # noqa: PLC0415
    from veilgraph.run.jobs import load_result  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    directory = RunDirectory.open(run)
    with TrainingBars(messages(), directory.settings.measures) as bars:
        compared = compare(directory, bars.stage)
    show_comparison(load_result(run), compared)
    typer.echo(f"curves  {run / 'curves.png'}")
