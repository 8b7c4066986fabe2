"""The command that compares a run, or a job, with what its parts reach.

Commands that need nothing of one's own: demo, reproduce.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from veilgraph.cli.app import INTERRUPTED, Out, Overrides, argument, command, option, read_settings, refuse_given
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.cli.train import say_matches, say_where, show_comparison
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path

_NETWORK_EPOCHS: Final = 60


@command("compare", "veilgraph compare jobs/digits.yaml --seeds 3", json=True, further=True)
def compare_command(
    context: typer.Context,
    what: Annotated[Path, argument("A job file, or the directory of a complete run of all parties.", "JOB.yaml|RUN")],
    out: Annotated[
        Path | None,
        option(
            "Of a job: directory to make, or of a comparison to go on with. Default: runs/<job "
            "name>-comparison-<date>-<time>.",
            "DIR",
        ),
    ] = None,
    seeds: Annotated[int, option("Of a job: trainings of each way, the job's seed and those after.", min=1)] = 1,
    recall_at: Annotated[
        float, option("Of a job: share of the test nodes that are looked at, for the recall among them.")
    ] = 0.05,
    party: Annotated[
        Path | None,
        option(
            "Of a job: the label holder's party file. What it reaches at home, from its own tables alone.", "party.yaml"
        ),
    ] = None,
    alone: Annotated[
        Path | None,
        option(
            "Of a job: a job of the same data; also the label holder's network alone with its settings.", "JOB.yaml"
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
    from veilgraph.comparison.study import FOUND, compare_job
    from veilgraph.report.comparison import (
        read_comparison,
        remarks,
        row_words,
        study_table,
        verdict,
        write_comparison,
    )
    from veilgraph.report.progress import TrainingBars

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
    found = read_comparison(path)
    results().print(study_table(found))
    for said in (verdict(found), *remarks(found)):
        echo(said)
    echo(f"figures {path / FOUND}")
    echo(f"page    {write_comparison(path)}")
    emit({"directory": path, **study.model_dump(mode="json"), "verdict": verdict(found)})


def _compare_run(run: Path) -> None:
    from veilgraph.report.progress import TrainingBars
    from veilgraph.runtime.launch.jobs import load_result
    from veilgraph.runtime.store.results import compare
    from veilgraph.runtime.store.run_directory import RunDirectory

    directory = RunDirectory.open(run)
    with TrainingBars(messages(), directory.settings.measures) as bars:
        compared = compare(directory, bars.stage)
    show_comparison(load_result(run), compared)
    echo(f"curves  {run / 'curves.png'}")
    emit({"run": run, "trainings": compared.summaries()})


@command("demo", "veilgraph demo payments", json=True)
def demo_command(
    what: Annotated[
        Literal["digits", "payments", "network"],
        argument(
            "Handwritten digits; a bank, a shop and a telecom that look for the bank's launderers; or three "
            "organisations as separate processes."
        ),
    ] = "digits",
    out: Out = None,
    epochs: Annotated[int | None, option("Epochs at most. Default: the job's; network: 60.", min=1)] = None,
) -> None:
    """Train holders together on data that is at hand, and compare with each alone and with all data in one place.

    digits: two holders of handwritten digits, each with half of the columns. payments: a bank that looks for launderers
    among its customers, and a shop and a telecom that know most of them too, in a made-up world. network: three
    organisations with tables of their own, as separate processes over mutual TLS on this machine; nothing is compared.
    """
    if what == "network":
        _network_demo(out or fresh_path("net-demo"), _NETWORK_EPOCHS if epochs is None else epochs)
        return
    from veilgraph.report.progress import TrainingBars
    from veilgraph.report.tables import traffic_table
    from veilgraph.runtime.launch.jobs import RunOptions, train
    from veilgraph.runtime.store.results import compare
    from veilgraph.runtime.store.run_directory import RunDirectory
    from veilgraph.samples.shipped import demo_settings

    settings = demo_settings(what, epochs)
    path = out or fresh_path(settings.name)
    with TrainingBars(messages(), settings.measures) as bars:
        with bars.stage("federated", settings.train.epochs) as progress:
            result = train(settings, path, options=RunOptions(progress=progress))
        compared = compare(RunDirectory.open(path), bars.stage)
    show_comparison(result, compared)
    results().print(traffic_table(result.summary["sent_bytes"]))
    main = settings.measures.main
    together, others = result.summary.get(f"test_{main.name}"), compared.references(main.name)
    beside = ", ".join(f"{main.shown(value)} {name}" for name, value in others.items())
    echo(f"Together the holders reach a test {main.title} of {main.shown(together)}, beside {beside}.")
    say_where(path)
    emit({"run": path, "trainings": compared.summaries()})


def _network_demo(out: Path, epochs: int) -> None:
    from veilgraph.deploy.demo import run_network_demo
    from veilgraph.report.tables import run_table
    from veilgraph.runtime.launch.jobs import load_result

    run = run_network_demo(out, say, epochs)
    result = load_result(run)
    results().print(run_table(result.summary))
    echo(f"the label holder's part of the run: {run}")
    echo(f"what it sent to whom: veilgraph report {run}")
    echo(f"its predictions: veilgraph predict {run}")
    emit({"run": run, "summary": result.summary})
