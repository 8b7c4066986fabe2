"""Commands for jobs whose parties are all on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
import yaml

import veilgraph
from veilgraph.cli.app import (
    INTERRUPTED,
    Out,
    Overrides,
    Processes,
    command,
    fresh_path,
    messages,
    read_settings,
    results,
    say,
)
from veilgraph.cli.machine import MachinesOption, machine_counts
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole

if TYPE_CHECKING:
    from veilgraph.protocol.job import JobSettings
    from veilgraph.run.jobs import TrainResult

REPRODUCED: Final = Path("runs/reproduce")


@command("train", "veilgraph train jobs/digits.yaml --set model.rounds=2")
def train_command(
    job: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job to train.")] = None,
    out: Out = None,
    overrides: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was cut off, in place of a job.")
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            metavar="",
            help="With --resume: where a party has lost its checkpoints, begin again in place of what was trained.",
        ),
    ] = False,
    processes: Processes = False,
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
) -> None:
    """Train a job with all parties on this machine, or go on with a run that was cut off."""
    counts = machine_counts(machines)
    processes = processes or bool(counts)
    if resume is not None and job is None:
        if out is not None or overrides or private_seeds or record_views or view_passes is not None or profile:
            raise typer.BadParameter(
                "--resume goes on with the run's own job, seeds and directory: no --out, --set, --private-seeds, "
                "--record-views, --profile"
            )
        with _resumable(resume):
            _resume(resume, restart=restart, processes=processes, machines=counts)
    elif job is not None and resume is None:
        if restart:
            raise typer.BadParameter(
                "a job begins anew by itself; give --restart with --resume RUN", param_hint="--restart"
            )
        if view_passes is not None and not record_views:
            raise typer.BadParameter(
                "--view-passes is of what --record-views keeps; give both", param_hint="--view-passes"
            )
        settings = read_settings(job, overrides)
        path = out or fresh_path(settings.name)
        with _resumable(path):
            _train(
                settings,
                path,
                processes=processes,
                private_seeds=private_seeds,
                record_views=record_views,
                view_passes=view_passes,
                profile=profile,
                machines=counts,
            )
    else:
        raise typer.BadParameter("give either a job file or --resume RUN")


@command("predict", "veilgraph predict runs/digits --nodes 1,5,7 --out predictions.csv")
def predict_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a complete run.")],
    nodes: Annotated[str | None, typer.Option(metavar="1,5,7", help="Nodes to predict. Default: all.")] = None,
    nodes_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Nodes to predict, parted by commas, spaces or lines.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="C1,C5", help="Ids to predict, in place of nodes: for runs from tables, or horizontal."),
    ] = None,
    ids_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Ids to predict, one on each line.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="File to write. Default: print.")] = None,
    processes: Processes = False,
) -> None:
    """Predict classes and their probabilities with a trained run, through the same joint protocol.

    A run from tables reads them again: nodes added since training are predicted too. In the label holder's part of a
    run across organisations, or any holder's of a horizontal one, the newest joint inference is shown; make a new one
    with veilgraph submit --work predict.
    """
    chosen, wanted = _chosen_nodes(nodes, nodes_file), _chosen_ids(ids, ids_file)
    if chosen is not None and wanted is not None:
        raise typer.BadParameter("give nodes or ids, not both")
    from veilgraph.run.jobs import predict  # noqa: PLC0415

    with messages().status("predicting"):
        predictions = predict(run, chosen, ids=wanted, processes=processes)
    text = predictions.csv()
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    typer.echo(f"wrote {len(predictions.nodes)} predictions to {out}")


@command("check", "veilgraph check bank/party.yaml")
def check_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The job or the party file to check.")],
    overrides: Overrides = None,
) -> None:
    """Validate a job or a party file and its data and show what was understood; nothing is sent, trained or written."""
    if _is_party_file(file):
        if overrides:
            raise typer.BadParameter("--set is for jobs; a party file is edited", param_hint="--set")
        _check_party(file)
        return
    _check_job(file, overrides)


def _is_party_file(file: Path) -> bool:
    """Party files name their party at the top; what cannot be read is reported as a job."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506 - makes nothing but text
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return False
    return isinstance(content, dict) and "party" in content


def _check_party(file: Path) -> int:
    """Shows what a party file means; returns how many nodes its table has."""
    from veilgraph.protocol.party_settings import read_party_settings  # noqa: PLC0415
    from veilgraph.report.party_table import party_tables  # noqa: PLC0415
    from veilgraph.tables.describe import describe_party  # noqa: PLC0415

    settings = read_party_settings(file)
    with messages().status("reading the tables"):
        description = describe_party(settings, file.absolute().parent)
    for table in party_tables(description):
        results().print(table)
    typer.echo(f"{file} is a valid party file; take part with: veilgraph join KIT --party {file}")
    return description.nodes


def _check_job(job: Path, overrides: Sequence[str] | None) -> None:
    from veilgraph.protocol.limits import delta_in_doubt, delta_too_large  # noqa: PLC0415
    from veilgraph.protocol.paradigm import PARADIGMS  # noqa: PLC0415

    settings = read_settings(job, overrides)
    if settings.data.from_tables:
        PARADIGMS[settings.paradigm].check_tables(settings)
        nodes = [_check_party(path) for path in (settings.data.parties or {}).values() if path is not None]
        if said := delta_in_doubt(settings, min(nodes, default=None)):
            typer.echo(said)
        typer.echo(f"{job} is a valid job")
        return
    from veilgraph.report.tables import data_table  # noqa: PLC0415

    with messages().status("reading the data"):
        graphs = PARADIGMS[settings.paradigm].load(settings).graphs
    if settings.is_aligned and (refused := delta_too_large(settings, graphs[0].common)):
        raise ConfigError(f"every holder refuses the job: {refused}")
    results().print(data_table(graphs, aligned=settings.is_aligned))
    typer.echo(f"{job} is a valid job; train it with: veilgraph train {job}")


@command("align", "veilgraph align job.yaml --out runs/aligned")
def align_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job whose data.parties names party files.")],
    out: Out = None,
    overrides: Overrides = None,
    processes: Processes = False,
) -> None:
    """Find the nodes that all holders have in common, privately, and build every party's graph; trains nothing.

    A horizontal job has the tables read and their columns compared. veilgraph train does either by itself; across
    organisations it is veilgraph submit --work align.
    """
    settings = read_settings(job, overrides)
    from veilgraph.run.jobs import align  # noqa: PLC0415

    path = out or fresh_path(settings.name)
    with messages().status("aligning"):
        found = align(settings, path, processes=processes)
    common = found.pop("", None)
    of_which = "" if common is None else f", of which {common} are common to all holders"
    for holder, count in found.items():
        typer.echo(f"{holder:24} {count} nodes{of_which}")
    typer.echo(f"train with: veilgraph train --resume {path}")


@command("report", "veilgraph report runs/digits")
def report_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, whole or one organisation's part.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="The page. Default: RUN/report.html.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="Check that the records are those that were signed; no page.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --verify: the project's root certificate. Default: the run's own copy."
        ),
    ] = None,
) -> None:
    """Show what each party sent to whom, why it may leave the party, and what privacy it has cost; and write a page.

    The page is one HTML file that loads nothing: the job in words, who learned what, curves and scores, traffic,
    privacy ledgers, and the audit if there was one.

    With --verify nothing is written: every line of the records, and every signature and countersignature, is checked.
    Exits with 1 at the first that is not as it was signed, and names the file and the line.
    """
    if verify:
        if out is not None:
            raise typer.BadParameter("--verify writes no page; leave one of the two out", param_hint="--out")
        _verify(run, root)
        return
    if root is not None:
        raise typer.BadParameter("is for --verify; give both, or leave it out", param_hint="--root")
    from veilgraph.report.budget import read_spent, spent_table  # noqa: PLC0415
    from veilgraph.report.disclosures import disclosure_table, read_disclosures, reasons_table  # noqa: PLC0415
    from veilgraph.report.page.assemble import PAGE, write_page  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    if out is not None and out.suffix != ".html":
        raise typer.BadParameter(f"{out} must end in .html", param_hint="--out")
    directory, page = RunDirectory.open(run), out or run / PAGE
    with messages().status("writing the page"):
        write_page(directory, page)
    records = [record for file in sorted(run.glob("parties/*/disclosures.jsonl")) for record in read_disclosures(file)]
    if records:
        results().print(disclosure_table(records))
        results().print(reasons_table(records))
    else:
        typer.echo("nothing is on record as sent in this run yet")
    if spent := read_spent(directory):
        results().print(spent_table(spent, directory.settings))
    typer.echo(f"page    {page}")


def _verify(run: Path, root: Path | None) -> None:
    from veilgraph.link.identity import load_roots  # noqa: PLC0415
    from veilgraph.report.evidence import evidence_table  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415
    from veilgraph.run.verifying import verify  # noqa: PLC0415

    roots = () if root is None else load_roots(root)
    results().print(evidence_table(verify(RunDirectory.open(run), roots)))


@command("demo", "veilgraph demo --epochs 50")
def demo_command(
    out: Out = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs at most. Default: the job's.")] = None,
) -> None:
    """Train two holders of handwritten digits together, and compare with each alone and with pooled data."""
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.report.tables import comparison_table, traffic_table  # noqa: PLC0415
    from veilgraph.samples.demo import demo_settings, run_demo  # noqa: PLC0415

    settings = demo_settings(epochs)
    path = out or fresh_path(settings.name)
    with TrainingBars(messages()) as bars:
        result = run_demo(settings, path, bars.stage)
    _draw(result.federated, result.references())
    caption = f"Alone without labels: lent {settings.data.label_party}'s. Pooled: all data in one place."
    results().print(comparison_table(result.summaries(), caption))
    results().print(traffic_table(result.federated.summary["sent_bytes"]))
    _say_where(path)


def _paper_tables() -> Callable[..., str]:
    """What makes the papers' tables: it lies beside the sources of a checkout, and is not in what pip installs.

    Raises:
        ConfigError: it is not there.
    """
    checkout = str(Path(veilgraph.__file__).parents[2])
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    try:
        found: Callable[..., str] = import_module("research.paper_tables").reproduce
    except ModuleNotFoundError as error:
        if error.name not in ("research", "research.paper_tables"):
            raise
        raise ConfigError(
            f"reproduce: {checkout} has no folder research; the papers' tables are in the project's repository and not "
            "in the installed package: clone it, and call veilgraph there after make demo"
        ) from error
    return found


@command("reproduce", "veilgraph reproduce table2 --datasets cora --seeds 1")
def reproduce_command(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="table2 … table5, q3 (VFGNN), sapgnn-table4, sapgnn-figure4, lpgnn-table, lpgnn-labels, "
            "lpgnn-mae, attack-strength, audit-views; rounds, acm, private-totals, private-units.",
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Trainings per figure, each with a seed of its own.")] = 3,
    datasets: Annotated[
        str | None, typer.Option(metavar="cora,citeseer", help="Only these of the table's data sets.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only rows with this in their name, as in --rows SAPGNN.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the table and its trainings.")] = REPRODUCED,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", metavar="", help="Quicker: the protocols' plaintext twin in their place.")
    ] = False,
) -> None:
    """Train what a table of the paper reports and print it with this machine's figures beside the paper's.

    Called again after an interruption, or with more seeds, only what is missing is trained.
    """
    reproduce = _paper_tables()
    from veilgraph.report.progress import counted  # noqa: PLC0415

    names = None if datasets is None else [name.strip() for name in datasets.split(",")]
    engine: Literal["federated", "plaintext"] = "plaintext" if plaintext else "federated"
    with counted(messages()) as progress:
        text = reproduce(table, seeds=seeds, datasets=names, rows=rows, out=out, progress=progress, engine=engine)
    typer.echo(text)


def _train(
    settings: JobSettings,
    path: Path,
    *,
    processes: bool,
    private_seeds: bool,
    record_views: bool,
    view_passes: int | None,
    profile: bool,
    machines: dict[str, int],
) -> None:
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.run.jobs import train  # noqa: PLC0415

    with TrainingBars(messages()) as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        result = train(
            settings,
            path,
            processes=processes,
            private_seeds=private_seeds,
            record_views=record_views,
            view_passes=view_passes,
            profile=profile,
            machines=machines,
            progress=progress,
        )
    _show(result)


def _resume(path: Path, *, restart: bool, processes: bool, machines: dict[str, int]) -> None:
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.run.jobs import resume  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    settings = RunDirectory.open(path).settings
    with TrainingBars(messages()) as bars, bars.stage(settings.name, settings.train.epochs) as progress:
        result = resume(path, restart=restart, processes=processes, machines=machines, progress=progress)
    _show(result)


def _show(result: TrainResult) -> None:
    from veilgraph.report.budget import spent_table, worth  # noqa: PLC0415
    from veilgraph.report.tables import run_table  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    _draw(result, {})
    results().print(run_table(result.summary))
    if "privacy" in result.summary:
        settings = RunDirectory.open(result.path).settings
        results().print(spent_table(result.summary["privacy"], settings))
        if said := worth(result.summary, settings):
            typer.echo(said)
    _say_where(result.path)


def _draw(result: TrainResult, references: dict[str, float]) -> None:
    from veilgraph.report.curves import draw_curves  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

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
    if (trace := path / "trace.json").is_file():
        typer.echo(f"trace   {trace}: load it in chrome://tracing or ui.perfetto.dev")
    typer.echo(f"predict with: veilgraph predict {path}")


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """Tells how to go on with a run that the user interrupts."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        begun = (path / "job.yaml").is_file()
        say(f"stopped; go on with: veilgraph train --resume {path}" if begun else "stopped before the run began")
        raise typer.Exit(INTERRUPTED) from interrupt


def _chosen_ids(ids: str | None, ids_file: Path | None) -> list[str] | None:
    if ids is not None and ids_file is not None:
        raise typer.BadParameter("give --ids or --ids-file, not both")
    if ids is not None:
        return [text for text in ids.split(",") if text]
    if ids_file is None:
        return None
    try:
        return [line for line in ids_file.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{ids_file}: cannot be read ({error}); give a text file with one id on each line") from error


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
