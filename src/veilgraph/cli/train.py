"""Commands that train with all parties on this machine: train, resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilgraph.cli.app import (
    INTERRUPTED,
    Ledgers,
    LinkName,
    Out,
    Overrides,
    Processes,
    command,
    ledgers_of,
    read_settings,
)
from veilgraph.cli.output import messages, say
from veilgraph.cli.showing import say_matches, show_result
from veilgraph.core.files import fresh_path

if TYPE_CHECKING:
    from veilgraph.protocol.job import JobSettings
    from veilgraph.run.jobs import Progress


MachinesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--machines",
        metavar="PARTY=COUNT",
        help="So many processes share this holder's local part, as machines of its own would; implies --processes.",
    ),
]


@command("train", "veilgraph train jobs/digits.yaml --set model.rounds=2", json=True)
def train_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to train.")],
    out: Out = None,
    overrides: Overrides = None,
    processes: Processes = False,
    link: LinkName = None,
    private_seeds: Annotated[
        bool,
        typer.Option(
            "--private-seeds",
            metavar="",
            help="Every party draws its weights from a seed of its own; the run cannot be repeated from the job alone.",
        ),
    ] = False,
    record_views: Annotated[
        bool,
        typer.Option(
            "--record-views",
            metavar="",
            help="Every party keeps what it sends and receives, for veilgraph audit; as large as that traffic.",
        ),
    ] = False,
    view_passes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --record-views: of how many passes, and the newest; 0: all. Default: 50; all with privacy.",
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            metavar="",
            help="Write RUN/trace.json: when each party computes, sends and waits; for chrome://tracing or Perfetto.",
        ),
    ] = False,
    machines: MachinesOption = None,
    ledgers: Ledgers = None,
    begin_with: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Averaging: begin with that run's weights, whoever its holders were."),
    ] = None,
) -> None:
    """Train a job with all parties on this machine."""
    if view_passes is not None and not record_views:
        raise typer.BadParameter("--view-passes is of what --record-views keeps; give both", param_hint="--view-passes")
    counts, named, settings = _machine_counts(machines), ledgers_of(ledgers), read_settings(job, overrides)
    path = out or fresh_path(settings.name)
    from veilgraph.run.jobs import train  # noqa: PLC0415

    say_matches(settings)
    with _resumable(path), _progress(settings) as progress:
        result = train(
            settings,
            path,
            ledgers=named,
            processes=processes or bool(counts),
            link=link,
            private_seeds=private_seeds,
            record_views=record_views,
            view_passes=view_passes,
            profile=profile,
            machines=counts,
            begin_with=begin_with,
            progress=progress,
        )
    show_result(result)


@command("resume", "veilgraph resume runs/digits", json=True)
def resume_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run that was cut off, or only aligned.")],
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            metavar="",
            help="Where a party has lost checkpoints, go back or begin again in place of what was trained.",
        ),
    ] = False,
    processes: Processes = False,
    link: LinkName = None,
    machines: MachinesOption = None,
) -> None:
    """Go on with a run, with its own job and seeds, to the result that it would have had.

    A run that veilgraph data align made is trained; of a complete one the result is shown.
    """
    counts = _machine_counts(machines)
    from veilgraph.run.jobs import resume  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    settings = RunDirectory.open(run).settings
    with _resumable(run), _progress(settings) as progress:
        result = resume(
            run,
            restart=restart,
            processes=processes or bool(counts),
            link=link,
            machines=counts,
            progress=progress,
        )
    show_result(result)


@contextmanager
def _progress(settings: JobSettings) -> Iterator[Progress]:
    """Shows a training's epochs."""
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415

    shown = TrainingBars(messages(), settings.measures)
    with shown as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        yield progress


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Tells how to go on with a run that the user interrupts."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        begun = (path / "job.yaml").is_file()
        say(f"stopped; go on with: veilgraph resume {path}" if begun else "stopped before the run began")
        raise typer.Exit(INTERRUPTED) from interrupt


def _machine_counts(texts: list[str] | None) -> dict[str, int]:
    """What ``--machines`` says: holder → number of processes."""
    counts: dict[str, int] = {}
    for text in texts or ():
        name, _, count = text.rpartition("=")
        if not name or not (count.isascii() and count.isdigit()):
            raise typer.BadParameter(f"{text!r} is not PARTY=COUNT, as in A=2", param_hint="--machines")
        counts[name] = int(count)
    return counts
