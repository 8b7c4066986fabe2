"""The command that chooses settings of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import INTERRUPTED, Ledgers, Overrides, command, ledgers_of, option, read_settings
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.core.deferred import deferred
from veilgraph.core.files import fresh_path

with deferred():
    from veilgraph.report.training import TrainingBars
    from veilgraph_tuning import trying
    from veilgraph_tuning.alone import tune_alone
    from veilgraph_tuning.report import draw_trials, failures, trials_table
    from veilgraph_tuning.space import read_choice


@command(
    "tune",
    "veilgraph tune jobs/digits.yaml --trials 20 --vary model.dim=16,64 --vary train.learning_rate=0.001..0.1",
    json=True,
)
def tune_command(
    job: Path,
    out: Path | None = None,
    trials: Annotated[int, option(min=1)] = 20,
    seeds: Annotated[int, option(min=1)] = 1,
    vary: list[str] | None = None,
    alone: bool = False,
    party: Path | None = None,
    ledgers: Ledgers = None,
    overrides: Overrides = None,
) -> None:
    """Choose settings of a job by what they reach on its validation nodes, with all parties on this machine.

    Test nodes are not looked at. A tuning that was cut off goes on in its directory, and more --trials add to it.

    Options:
        JOB.yaml (job): The job to begin from.
        --out DIR: Directory to make, or of a tuning to go on with. Default: runs/<job name>-tuning-<date>-<time>.
        --trials: Trials in all; the first is the job as it is.
        --seeds: Seeds over whose mean settings are judged.
        --vary KEY=CHOICE: A setting to vary, with LOW..HIGH, 'LOW..HIGH log' or A,B,C; may be given several times.
            Default: what the paradigm says is worth it.
        --alone: Of the label holder's network on its own data alone, for compare --alone.
        --party party.yaml: With --alone: the label holder's party file, to tune at home.
    """
    if alone and ledgers:
        raise typer.BadParameter("nothing is published by a label holder alone; leave it out", param_hint="--ledger")
    if party is not None and not alone:
        raise typer.BadParameter("is for the label holder alone; add --alone, or leave it out", param_hint="--party")
    settings, named = read_settings(job, overrides), ledgers_of(ledgers)
    space = dict(map(read_choice, vary)) if vary else None
    path = out or fresh_path(f"{settings.name}-tuning")
    try:
        with TrainingBars(messages(), settings.measures) as bars:
            if alone:
                found = tune_alone(
                    settings, path, trials=trials, seeds=seeds, space=space, party=party, stage=bars.stage
                )
            else:
                found = trying.tune(
                    settings, path, trials=trials, seeds=seeds, space=space, ledgers=named, stage=bars.stage
                )
    except KeyboardInterrupt as interrupt:
        say(f"stopped; go on with the same command and --out {path}")
        raise typer.Exit(INTERRUPTED) from interrupt
    draw_trials(found, path / "trials.png")
    results().print(trials_table(found))
    for why, numbers in failures(found).items():
        say(f"failed: trial {', '.join(map(str, numbers))}: {why}")
    echo(f"trials  {path / 'trials.png'}")
    best = path / trying.BEST
    echo(f"job     {best}")
    echo(f"compare with: veilgraph compare {job} --alone {best}" if alone else f"train with: veilgraph train {best}")
    emit({"directory": path, "job": best, "figure": found.figure, "best": found.ranked(), "trials": found.trials})
