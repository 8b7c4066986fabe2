"""The command line: arguments in, tables and one-line errors out.

Commands import what they need when they run, so that ``--help`` and usage errors are quick.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, ParamSpec

import typer
import yaml
from rich.console import Console

from veilgraph import __version__
from veilgraph.core.errors import ConfigError, RunError, VeilgraphError

if TYPE_CHECKING:
    from veilgraph.core.config import JobSettings
    from veilgraph.paradigms.vertical import TrainResult

Parameters = ParamSpec("Parameters")

REPRODUCED: Final = Path("runs/reproduce")
_INTERRUPTED: Final = 130

app = typer.Typer(
    name="veilgraph",
    help="Train a graph neural network together across organisations that share customers but not data.",
    epilog="Start with: veilgraph demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting of the job; may be given several times."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Run directory to make. Default: runs/<job name>-<date>-<time>."),
]
Processes = Annotated[bool, typer.Option("--processes", metavar="", help="Run every party in a process of its own.")]


def main() -> None:
    """Entry point of the command ``veilgraph``."""
    app()


def _command(name: str, example: str) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Registers a command that reports its errors on one line and exits with 1."""

    def register(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
        @wraps(function)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            with _reported():
                function(*args, **kwargs)

        return app.command(name, epilog=f"Example: {example}")(run)

    return register


@contextmanager
def _reported() -> Iterator[None]:
    with warnings.catch_warnings():
        # Sparse CSR is all that is needed of it here, and tested; the user can do nothing about torch's notice.
        warnings.filterwarnings("ignore", message=".*[Ss]parse CSR tensor support.*", category=UserWarning)
        try:
            yield
        except VeilgraphError as error:
            _say(f"error: {error}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            _say("stopped")
            raise typer.Exit(_INTERRUPTED) from interrupt


@app.callback(invoke_without_command=True)
def _veilgraph(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"veilgraph {__version__}")
        raise typer.Exit


@_command("train", "veilgraph train jobs/digits.yaml --set model.rounds=2")
def train_command(
    job: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job to train.")] = None,
    out: Out = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was cut off, in place of a job.")
    ] = None,
    processes: Processes = False,
    private_seeds: Annotated[
        bool,
        typer.Option(
            "--private-seeds",
            metavar="",
            help="Every party draws its weights from a seed of its own; the run cannot be repeated from the job alone.",
        ),
    ] = False,
) -> None:
    """Train a job with all parties on this machine, or go on with a run that was cut off."""
    if resume is not None and job is None:
        if out is not None or overrides or private_seeds:
            raise typer.BadParameter(
                "--resume goes on with the run's own job, seeds and directory: no --out, --set, --private-seeds"
            )
        with _resumable(resume):
            _resume(resume, processes=processes)
    elif job is not None and resume is None:
        settings = _read(job, overrides)
        path = out or _fresh_path(settings.name)
        with _resumable(path):
            _train(settings, path, processes=processes, private_seeds=private_seeds)
    else:
        raise typer.BadParameter("give either a job file or --resume RUN")


@_command("predict", "veilgraph predict runs/digits --nodes 1,5,7 --out predictions.csv")
def predict_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a complete run.")],
    nodes: Annotated[str | None, typer.Option(metavar="1,5,7", help="Nodes to predict. Default: all.")] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Nodes to predict, parted by commas, spaces or lines.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="File to write. Default: print.")] = None,
    processes: Processes = False,
) -> None:
    """Predict classes and their probabilities with a trained run, through the same joint protocol."""
    chosen = _chosen_nodes(nodes, nodes_file)
    from veilgraph.paradigms.vertical import predict  # noqa: PLC0415

    with _messages().status("predicting"):
        predictions = predict(run, chosen, processes=processes)
    text = predictions.csv()
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    typer.echo(f"wrote {len(predictions.nodes)} predictions to {out}")


@_command("check", "veilgraph check jobs/digits.yaml")
def check_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to check.")],
    overrides: Overrides = None,
) -> None:
    """Validate a job and its data and show what each holder brings; nothing is trained or written."""
    settings = _read(job, overrides)
    from veilgraph.graph.datasets import load_parties  # noqa: PLC0415
    from veilgraph.report.tables import data_table  # noqa: PLC0415

    with _messages().status("reading the data"):
        graphs = load_parties(settings.data, settings.seed)
    _results().print(data_table(graphs))
    typer.echo(f"{job} is a valid job; train it with: veilgraph train {job}")


@_command("demo", "veilgraph demo --epochs 50")
def demo_command(
    out: Out = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs at most. Default: the job's.")] = None,
) -> None:
    """Train two holders of handwritten digits together, and compare with each alone and with pooled data."""
    from veilgraph.experiments.demo import demo_settings, run_demo  # noqa: PLC0415
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.report.tables import comparison_table, traffic_table  # noqa: PLC0415

    settings = demo_settings(epochs)
    path = out or _fresh_path(settings.name)
    with TrainingBars(_messages()) as bars:
        result = run_demo(settings, path, bars.stage)
    _draw(result.federated, result.references())
    caption = f"Alone without labels: lent {settings.data.label_party}'s. Pooled: all data in one place."
    _results().print(comparison_table(result.summaries(), caption))
    _results().print(traffic_table(result.federated.summary["sent_bytes"]))
    _say_where(path)


@_command("reproduce", "veilgraph reproduce table2 --datasets cora --seeds 1")
def reproduce_command(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="table2, table3 or table4 of the VFGNN paper; rounds; acm.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings per figure, each with a seed of its own.")] = 3,
    datasets: Annotated[
        str | None, typer.Option(metavar="cora,citeseer", help="Only these of the table's data sets.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the table and its trainings.")] = REPRODUCED,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", metavar="", help="Quicker: the protocols' plaintext twin in their place.")
    ] = False,
) -> None:
    """Train what a table of the paper reports and print it with this machine's figures beside the paper's.

    Called again after an interruption, or with more seeds, only what is missing is trained.
    """
    from veilgraph.experiments.paper_tables import reproduce  # noqa: PLC0415
    from veilgraph.report.progress import counted  # noqa: PLC0415

    names = None if datasets is None else [name.strip() for name in datasets.split(",")]
    engine: Literal["federated", "plaintext"] = "plaintext" if plaintext else "federated"
    with counted(_messages()) as progress:
        text = reproduce(table, seeds=seeds, datasets=names, out=out, progress=progress, engine=engine)
    typer.echo(text)


def _train(settings: JobSettings, path: Path, *, processes: bool, private_seeds: bool) -> None:
    from veilgraph.paradigms.vertical import train  # noqa: PLC0415
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415

    with TrainingBars(_messages()) as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        result = train(settings, path, processes=processes, private_seeds=private_seeds, progress=progress)
    _show(result)


def _resume(path: Path, *, processes: bool) -> None:
    from veilgraph.paradigms.run_directory import RunDirectory  # noqa: PLC0415
    from veilgraph.paradigms.vertical import resume  # noqa: PLC0415
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415

    settings = RunDirectory.open(path).settings
    with TrainingBars(_messages()) as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        result = resume(path, processes=processes, progress=progress)
    _show(result)


def _show(result: TrainResult) -> None:
    from veilgraph.report.tables import run_table  # noqa: PLC0415

    _draw(result, {})
    _results().print(run_table(result.summary))
    _say_where(result.path)


def _draw(result: TrainResult, references: dict[str, float]) -> None:
    from veilgraph.paradigms.run_directory import RunDirectory  # noqa: PLC0415
    from veilgraph.report.curves import draw_curves  # noqa: PLC0415

    draw_curves(
        result.metrics,
        result.path / "curves.png",
        references,
        title=RunDirectory.open(result.path).settings.name,
        best_epoch=result.summary["best_epoch"],
    )


def _say_where(path: Path) -> None:
    typer.echo(f"run     {path}")
    typer.echo(f"curves  {path / 'curves.png'}")
    typer.echo(f"predict with: veilgraph predict {path}")


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Tells how to go on with a run that the user interrupts."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        begun = (path / "job.yaml").is_file()
        _say(f"stopped; go on with: veilgraph train --resume {path}" if begun else "stopped before the run began")
        raise typer.Exit(_INTERRUPTED) from interrupt


def _read(job: Path, overrides: Sequence[str] | None) -> JobSettings:
    from veilgraph.core.config import read_job  # noqa: PLC0415
    from veilgraph.experiments.shipped import with_overrides  # noqa: PLC0415

    settings = read_job(job)
    return with_overrides(settings, dict(map(_override, overrides))) if overrides else settings


def _override(text: str) -> tuple[str, object]:
    """``a.b=value`` → key and value; the value is YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE, as in model.rounds=2", param_hint="--set")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{text!r}: the value is not YAML", param_hint="--set") from error


def _chosen_nodes(nodes: str | None, nodes_file: Path | None) -> list[int] | None:
    if nodes is not None and nodes_file is not None:
        raise typer.BadParameter("give --nodes or --nodes-file, not both")
    if nodes is not None:
        return _numbers(nodes, "--nodes")
    if nodes_file is None:
        return None
    try:
        text = nodes_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{nodes_file}: cannot be read ({error}); give a text file of node numbers") from error
    return _numbers(text, "--nodes-file")


def _numbers(text: str, option: str) -> list[int]:
    words = text.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdigit())), None)
    if wrong is not None:
        raise typer.BadParameter(f"{wrong!r} is not a node number; give numbers as in 1,5,7", param_hint=option)
    if not words:
        raise typer.BadParameter("there is no node in it; give numbers as in 1,5,7", param_hint=option)
    return [int(word) for word in words]


def _fresh_path(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _messages() -> Console:
    return Console(stderr=True)


def _results() -> Console:
    return Console(file=sys.stdout)


def _say(message: str) -> None:
    typer.echo(f"veilgraph: {' '.join(message.split())}", err=True)


if __name__ == "__main__":
    main()
