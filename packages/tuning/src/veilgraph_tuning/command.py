"""The command that chooses settings of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import INTERRUPTED, Ledgers, Overrides, command, ledgers_of, read_settings
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.core.files import fresh_path


@command(
    "tune",
    "veilgraph tune jobs/digits.yaml --trials 20 --vary model.dim=16,64 --vary train.learning_rate=0.001..0.1",
    json=True,
)
def tune_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to begin from.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory to make, or of a tuning to go on with. Default: runs/<job name>-tuning-<date>-<time>.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials in all; the first is the job as it is.")] = 20,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that settings are judged by the mean of.")] = 1,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=CHOICE",
            help="A setting to vary, with LOW..HIGH, 'LOW..HIGH log' or A,B,C; may be given several times. Default: "
            "what the paradigm says is worth it.",
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Of the label holder's network on its own data alone, for compare --alone.")
    ] = False,
    party: Annotated[
        Path | None,
        typer.Option(metavar="party.yaml", help="With --alone: the label holder's party file, to tune at home."),
    ] = None,
    ledgers: Ledgers = None,
    overrides: Overrides = None,
) -> None:
    """Choose settings of a job by what they reach on its validation nodes, with all parties on this machine.

    Test nodes are not looked at. A tuning that was cut off goes on in its directory, and more --trials add to it.
    """
    if alone and ledgers:
        raise typer.BadParameter("nothing is published by a label holder alone; leave it out", param_hint="--ledger")
    if party is not None and not alone:
        raise typer.BadParameter("is for the label holder alone; add --alone, or leave it out", param_hint="--party")
    settings, named = read_settings(job, overrides), ledgers_of(ledgers)
    from veilgraph.report.training import TrainingBars  # noqa: PLC0415
    from veilgraph_tuning.alone import tune_alone  # noqa: PLC0415
    from veilgraph_tuning.report import draw_trials, failures, trials_table  # noqa: PLC0415
    from veilgraph_tuning.space import read_choice  # noqa: PLC0415
    from veilgraph_tuning.trying import BEST, tune  # noqa: PLC0415

    space = dict(map(read_choice, vary)) if vary else None
    path = out or fresh_path(f"{settings.name}-tuning")
    try:
        with TrainingBars(messages(), settings.measures) as bars:
            if alone:
                found = tune_alone(
                    settings, path, trials=trials, seeds=seeds, space=space, party=party, stage=bars.stage
                )
            else:
                found = tune(settings, path, trials=trials, seeds=seeds, space=space, ledgers=named, stage=bars.stage)
    except KeyboardInterrupt as interrupt:
        say(f"stopped; go on with the same command and --out {path}")
        raise typer.Exit(INTERRUPTED) from interrupt
    draw_trials(found, path / "trials.png")
    results().print(trials_table(found))
    for why, numbers in failures(found).items():
        say(f"failed: trial {', '.join(map(str, numbers))}: {why}")
    echo(f"trials  {path / 'trials.png'}")
    echo(f"job     {path / BEST}")
    if alone:
        echo(f"compare with: veilgraph compare {job} --alone {path / BEST}")
    else:
        echo(f"train with: veilgraph train {path / BEST}")
    emit(
        {"directory": path, "job": path / BEST, "figure": found.figure, "best": found.ranked(), "trials": found.trials}
    )
