"""Commands that train with all parties on this machine: train, resume, compare, demo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from veilgraph.cli.app import (
    INTERRUPTED,
    Ledgers,
    LinkName,
    Out,
    Overrides,
    Processes,
    command,
    counts_by_party,
    ledgers_of,
    option,
    read_settings,
    refuse_given,
)
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path
from veilgraph.protocol.figures import CLASS_MEASURES, leak_words
from veilgraph.protocol.job import JobSettings

with deferred():
    from veilgraph.comparison import study
    from veilgraph.deploy.demo import run_network_demo
    from veilgraph.protocol.aligning import match_rates
    from veilgraph.report import comparison, ledgers, protection, tables
    from veilgraph.report.training import TrainingBars, alone_words, draw_curves
    from veilgraph.runtime.launch import jobs
    from veilgraph.runtime.launch.inputs import accepted_by_parties
    from veilgraph.runtime.store.results import Comparison, compare, judge_of
    from veilgraph.runtime.store.run_directory import RunDirectory
    from veilgraph.samples.shipped import demo_settings


def say_matches(settings: JobSettings) -> None:
    """Say, before anything is trained, how many of the holders' ids are common, where all tables are here."""
    if settings.data.from_tables and not settings.data.is_apart:
        accepted_by_parties(settings)  # else its one error would come after other words
    for said in match_rates(settings):
        say(said)


def show_result(result: jobs.TrainResult) -> None:
    """Draw a training's curves; print its scores, privacy cost and place; emit its summary."""
    settings, summary, said = RunDirectory.open(result.path).settings, result.summary, list[str]()
    draw(result, settings, {})
    results().print(tables.run_table(summary, settings.measures, judge_of(settings, summary)))
    if "privacy" in summary:
        results().print(ledgers.spent_table(summary["privacy"], settings))
        said += [ledgers.effect_of_releases(summary, settings), ledgers.life_note(summary["privacy"])]
    said += [_compared_labels(result, settings), *alone_words(summary, settings.measures)]
    if settings.measures.of == CLASS_MEASURES.of and summary.get("test_ap") is not None:
        said.append(leak_words({settings.name: summary.get("test_auc")}))
    for sentence in filter(None, said):
        echo(sentence)
    asked = "" if not settings.outcome.predicts_named else " --ids …" if settings.data.parties else " --nodes …"
    say_where(result.path, asked)
    emit({"run": result.path, "summary": summary})


def show_comparison(result: jobs.TrainResult, compared: Comparison) -> None:
    """Draw and print a run beside its network trained on each holder's data alone, and on all data pooled."""
    settings = RunDirectory.open(result.path).settings
    draw(result, settings, compared.references(settings.measures.main.name))
    lent = (
        f"Alone without labels: lent {settings.data.label_party}'s. "
        if settings.is_aligned
        else "A holder alone is judged on its own nodes; so is the line below it. "
    )
    said = f"{lent}Pooled: all data in one place."
    results().print(tables.comparison_table(compared.summaries(), said, settings.measures))
    main = settings.measures.main
    together, pooled = result.summary.get(f"test_{main.name}"), compared.references(main.name).get("pooled")
    if noted := _compared_labels(result, settings):
        echo(f"federated: {noted}\nthe others: all figures compare with true labels.")
    elif compared.judge:
        echo("pooled is judged on all holders' nodes: veilgraph compare JOB.yaml has all ways on the same ones")
    elif together is not None and pooled not in (None, together) and (together > (pooled or 0.0)) == main.rises:
        echo("federated is better than pooled, which is the same network on all data, and not the best there is")


def _compared_labels(result: jobs.TrainResult, settings: JobSettings) -> str:
    """Say which labels a run's figures compare with, if these are perturbed; else empty."""
    if settings.label_privacy is None:
        return ""
    classes = result.predictions.probabilities.shape[1]
    expected = protection.expected_true(settings, result.summary.get("test_accuracy"), classes)
    return f"{protection.compared_with(settings)} {expected}".rstrip()


def draw(result: jobs.TrainResult, settings: JobSettings, references: dict[str, float]) -> None:
    """Write a run's curves.png, with a line at each of the ``references``: name → main test figure."""
    draw_curves(
        result.metrics,
        result.path / "curves.png",
        references,
        title=settings.name,
        best_epoch=result.summary["best_epoch"],
        measures=settings.measures,
    )


def say_where(path: Path, asked: str = "") -> None:
    """Print where a run and its files are, and how to predict with the option ``asked``."""
    echo(f"run     {path}")
    echo(f"curves  {path / 'curves.png'}")
    if (trace := path / "trace.json").is_file():
        echo(f"trace   {trace}: load it in chrome://tracing or ui.perfetto.dev")
    echo(f"predict with: veilgraph predict {path}{asked}")


MachinesOption = Annotated[
    list[str] | None,
    option(
        "Number of processes that share this holder's local part, as machines of its own would; implies --processes.",
        "PARTY=COUNT",
        name="--machines",
    ),
]


@command("train", "veilgraph train jobs/digits.yaml --set model.rounds=2", json=True)
def train_command(
    job: Path,
    out: Out = None,
    overrides: Overrides = None,
    processes: Processes = False,
    link: LinkName = None,
    private_seeds: bool = False,
    record_views: bool = False,
    view_passes: Annotated[int | None, option(min=0)] = None,
    profile: bool = False,
    machines: MachinesOption = None,
    ledgers: Ledgers = None,
    begin_with: Path | None = None,
) -> None:
    """Train a job with all parties on this machine.

    Options:
        JOB.yaml (job): The job to train.
        --private-seeds: Every party draws its weights from a seed of its own; the run cannot be repeated from the job
            alone.
        --record-views: Every party keeps all messages, for veilgraph audit. They take as much disk as the traffic.
        --view-passes: With --record-views: passes to keep, besides the newest; 0: all. Default: 50, with privacy all.
        --profile: Write RUN/trace.json: when each party computes, sends and waits; for chrome://tracing or Perfetto.
        --begin-with RUN: Averaging: begin with that run's weights, whoever its holders were.
    """
    if view_passes is not None and not record_views:
        raise typer.BadParameter("--view-passes is of what --record-views keeps; give both", param_hint="--view-passes")
    options, named, settings = _options(processes, link, machines), ledgers_of(ledgers), read_settings(job, overrides)
    path = out or fresh_path(settings.name)
    say_matches(settings)
    with _resumable(path), _progress(settings) as progress:
        result = jobs.train(
            settings,
            path,
            ledgers=named,
            options=replace(options, progress=progress),
            private_seeds=private_seeds,
            record_views=record_views,
            view_passes=view_passes,
            profile=profile,
            begin_with=begin_with,
        )
    show_result(result)


@command("resume", "veilgraph resume runs/digits", json=True)
def resume_command(
    run: Path,
    restart: bool = False,
    processes: Processes = False,
    link: LinkName = None,
    machines: MachinesOption = None,
) -> None:
    """Go on with a run, with its own job and seeds, to the result that it would have had.

    A run that veilgraph data align made is trained; of a complete one the result is shown.

    Options:
        RUN (run): Directory of a run that was cut off, or only aligned.
        --restart: Where a party has lost checkpoints, go back to common ones, or begin again.
    """
    options = _options(processes, link, machines)
    with _resumable(run), _progress(RunDirectory.open(run).settings) as progress:
        result = jobs.resume(run, restart=restart, options=replace(options, progress=progress))
    show_result(result)


def _options(processes: bool, link: str | None, machines: list[str] | None) -> jobs.RunOptions:
    counts = counts_by_party(machines, "--machines", "PARTY=COUNT, as in A=2")
    return jobs.RunOptions(processes=processes or bool(counts), link=link, machines=counts)


def _training_bars(settings: JobSettings) -> TrainingBars:
    return TrainingBars(messages(), settings.measures)


@contextmanager
def _progress(settings: JobSettings) -> Iterator[jobs.Progress]:
    with _training_bars(settings) as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        yield progress


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Turn an interrupt in the block into a line that says how to resume the run, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        begun = (path / "job.yaml").is_file()
        say(f"stopped; go on with: veilgraph resume {path}" if begun else "stopped before the run began")
        raise typer.Exit(INTERRUPTED) from interrupt


@command("compare", "veilgraph compare jobs/digits.yaml --seeds 3", json=True, further=True)
def compare_command(
    context: typer.Context,
    what: Path,
    out: Path | None = None,
    seeds: Annotated[int, option(min=1)] = 1,
    recall_at: float = 0.05,
    party: Path | None = None,
    alone: Path | None = None,
    overrides: Overrides = None,
) -> None:
    """Is it worth it? A job beside its label holder alone, plain models, sealed, and all data in one place.

    All are judged on the same test nodes, with intervals. A comparison that was cut off goes on in its directory. With
    all holders' data on one machine it is a study; with --party the label holder compares at home, and nobody is told.

    Of a run: its network on each holder's data alone, and on all in one place.

    Options:
        JOB.yaml|RUN (what): A job file, or the directory of a complete run of all parties.
        --out DIR: Of a job: directory to make, or of a comparison to go on with. Default: runs/<job
            name>-comparison-<date>-<time>.
        --seeds: Of a job: trainings of each way, the job's seed and those after.
        --recall-at: Of a job: share of the test nodes that somebody can look into; the recall is that among them.
        --party party.yaml: Of a job: the label holder's party file. What it reaches at home, from its own tables alone.
        --alone JOB.yaml: Of a job: a job of the same data; also the label holder's network alone with its settings.
    """
    if context.args:
        runs = " ".join((str(what), *context.args))
        raise typer.BadParameter(
            f"{len(context.args) + 1} are given, and compare takes one job or one run. To see finished runs side by "
            f"side: veilgraph report {runs}",
            param_hint="JOB.yaml|RUN",
        )
    if what.is_dir():
        refuse_given(
            context,
            ["out", "seeds", "recall_at", "party", "alone", "overrides"],
            f"is of a job alone, and {what} is a run's directory; leave it out, or give the job file",
        )
        _compare_with_baselines(what)
        return
    settings = read_settings(what, overrides)

    if settings.data.is_apart and party is None:
        raise ConfigError(
            f"data.holders={', '.join(settings.data.names)}: these are organisations, and their data are not here; "
            "give the label holder's party file (--party), or every holder's (data.parties) for a simulation"
        )
    say_matches(settings)
    path = out or fresh_path(f"{settings.name}-comparison")
    try:
        with _training_bars(settings) as bars:
            found = study.compare_job(
                settings,
                path,
                seeds=seeds,
                alarms=recall_at,
                party=party,
                alone=None if alone is None else read_settings(alone, None),
                stage=bars.stage,
                row=lambda name, found: bars.say(comparison.row_words(name, found)),
                at=bars.at,
            )
    except KeyboardInterrupt as interrupt:
        say(f"stopped; go on with the same command and --out {path}")
        raise typer.Exit(INTERRUPTED) from interrupt
    compared = comparison.read_comparison(path)
    verdict = comparison.verdict(compared)
    results().print(comparison.study_table(compared))
    for said in (verdict, *comparison.remarks(compared)):
        echo(said)
    echo(f"figures {path / study.FOUND}")
    echo(f"page    {comparison.write_comparison(path)}")
    emit({"directory": path, **found.model_dump(mode="json"), "verdict": verdict})


def _compare_with_baselines(run: Path) -> None:
    directory = RunDirectory.open(run)
    with _training_bars(directory.settings) as bars:
        compared = compare(directory, bars.stage)
    show_comparison(jobs.load_result(run), compared)
    echo(f"curves  {run / 'curves.png'}")
    emit({"run": run, "trainings": compared.summaries()})


@command("demo", "veilgraph demo payments", json=True)
def demo_command(
    what: Literal["digits", "payments", "banks", "network"] = "digits",
    out: Out = None,
    epochs: Annotated[int | None, option(min=1)] = None,
) -> None:
    """Train holders together on data that is at hand, and compare with each alone and with all data in one place.

    digits: two holders of handwritten digits, each with half of the columns. payments: a bank that looks for launderers
    among its customers, and a shop and a telecom that know most of them too, in a made-up world. banks: three that look
    each among its own, by a model over the payments between all of them, of which nothing is opened. network: three
    organisations with tables of their own, as separate processes over mutual TLS on this machine; nothing is compared.

    Options:
        (what): Handwritten digits; a bank, a shop and a telecom that look for the bank's launderers; three banks whose
            customers pay each other; or three organisations as separate processes.
        --epochs: Epochs at most. Default: the job's; network: 60.
    """
    if what == "network":
        _train_over_network(out or fresh_path("net-demo"), 60 if epochs is None else epochs)
        return

    settings = demo_settings(what, epochs)
    path = out or fresh_path(settings.name)
    with _training_bars(settings) as bars:
        with bars.stage("federated", settings.train.epochs) as progress:
            result = jobs.train(settings, path, options=jobs.RunOptions(progress=progress))
        compared = compare(RunDirectory.open(path), bars.stage)
    show_comparison(result, compared)
    results().print(tables.traffic_table(result.summary["sent_bytes"]))
    main, key = settings.measures.main, f"test_{settings.measures.main.name}"
    together, others = result.summary.get(key), compared.references(main.name)
    beside = ", ".join(f"{main.shown(value)} {name}" for name, value in others.items())
    if compared.here:
        own = ", ".join(f"{party} {main.shown(found.get(key))}" for party, found in compared.here.items())
        echo(f"With the others each holder reaches a test {main.title} on its own nodes of {own}, beside {beside}.")
    else:
        echo(f"Together the holders reach a test {main.title} of {main.shown(together)}, beside {beside}.")
    say_where(path)
    emit({"run": path, "trainings": compared.summaries()})


def _train_over_network(out: Path, epochs: int) -> None:
    run = run_network_demo(out, say, epochs)
    result = jobs.load_result(run)
    results().print(tables.run_table(result.summary))
    echo(f"the label holder's part of the run: {run}")
    echo(f"what it sent to whom: veilgraph report {run}")
    echo(f"its predictions: veilgraph predict {run}")
    emit({"run": run, "summary": result.summary})
