"""The command that compares a run, or a job, with what its parts reach."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import INTERRUPTED, Overrides, command, read_settings, refuse_given
from veilgraph.cli.output import echo, messages, results, say
from veilgraph.cli.showing import say_matches, show_comparison
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path


@command("compare", "veilgraph compare jobs/digits.yaml --seeds 3", json=True, further=True)
def compare_command(
    context: typer.Context,
    what: Annotated[
        Path,
        typer.Argument(metavar="JOB.yaml|RUN", help="A job file, or the directory of a complete run of all parties."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Of a job: directory to make, or of a comparison to go on with. Default: runs/<job "
            "name>-comparison-<date>-<time>.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Of a job: trainings of each way, the job's seed and those after.")
    ] = 1,
    recall_at: Annotated[
        float, typer.Option(help="Of a job: share of the test nodes that are looked at, for the recall among them.")
    ] = 0.05,
    party: Annotated[
        Path | None,
        typer.Option(
            metavar="party.yaml",
            help="Of a job: the label holder's party file. What it reaches at home, from its own tables alone.",
        ),
    ] = None,
    alone: Annotated[
        Path | None,
        typer.Option(
            metavar="JOB.yaml",
            help="Of a job: a job of the same data; also the label holder's network alone with its settings.",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Is it worth it? A job beside its label holder alone, plain models, sealed, and all data in one place.

    All are judged on the same test nodes, with intervals. A comparison that was cut off goes on in its directory. With
    all holders' data on one machine it is a study; with --party the label holder compares at home, and nobody is told.

    Of a run: its network on each holder's data alone, and on all in one place.
    """
    if context.args:
        runs = " ".join((str(what), *context.args))
        raise typer.BadParameter(
            f"{len(context.args) + 1} are given, and one job or one run is compared with its alternatives; several "
            f"finished runs are beside each other on the page of: veilgraph report {runs}",
            param_hint="JOB.yaml|RUN",
        )
    if what.is_dir():
        refuse_given(
            context,
            ["out", "seeds", "recall_at", "party", "alone", "overrides"],
            f"is of a job alone, and {what} is a run's directory; leave it out, or give the job file",
        )
        _compare_run(what)
        return
    settings = read_settings(what, overrides)
    from veilgraph.comparison.study import FOUND, compare_job  # noqa: PLC0415
    from veilgraph.report.comparison import above_pooled, leak, row_words, study_table, verdict  # noqa: PLC0415
    from veilgraph.report.page.compared import write_comparison  # noqa: PLC0415
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415

    if settings.data.is_apart and party is None:
        raise ConfigError(
            f"data.holders={', '.join(settings.data.names)}: these are across organisations, and their data not here; "
            "give the label holder's party file (--party), or every holder's (data.parties) for a simulation"
        )
    say_matches(settings)
    path = out or fresh_path(f"{settings.name}-comparison")
    try:
        with TrainingBars(messages(), settings.measures) as bars:
            study = compare_job(
                settings,
                path,
                seeds=seeds,
                alarms=recall_at,
                party=party,
                alone=None if alone is None else read_settings(alone, None),
                stage=bars.stage,
                row=lambda name, found: bars.say(row_words(name, found)),
                at=bars.at,
            )
    except KeyboardInterrupt as interrupt:
        say(f"stopped; go on with the same command and --out {path}")
        raise typer.Exit(INTERRUPTED) from interrupt
    results().print(study_table(study))
    job, aucs = settings.paradigm, {line.name: line.figures["auc"].value for line in study.lines}
    for said in filter(None, (verdict(study), above_pooled(job, aucs), leak(study))):
        echo(said)
    echo(f"figures {path / FOUND}")
    echo(f"page    {write_comparison(path)}")
    tell({"directory": path, **study.record(), "verdict": verdict(study)})


def _compare_run(run: Path) -> None:
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.run.comparing import compare  # noqa: PLC0415
    from veilgraph.run.jobs import load_result  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    directory = RunDirectory.open(run)
    with TrainingBars(messages(), directory.settings.measures) as bars:
        compared = compare(directory, bars.stage)
    show_comparison(load_result(run), compared)
    echo(f"curves  {run / 'curves.png'}")
    tell({"run": run, "trainings": compared.summaries()})
