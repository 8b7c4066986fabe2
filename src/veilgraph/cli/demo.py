"""Commands that need nothing of one's own: demo, reproduce."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

import veilgraph
from veilgraph.cli.app import Out, command
from veilgraph.cli.output import echo, messages, results
from veilgraph.cli.showing import say_where, show_comparison
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path

REPRODUCED: Final = Path("runs/reproduce")


@command("demo", "veilgraph demo payments", json=True)
def demo_command(
    what: Annotated[
        Literal["digits", "payments"],
        typer.Argument(help="Handwritten digits, or a bank, a shop and a telecom that look for the bank's launderers."),
    ] = "digits",
    out: Out = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs at most. Default: the job's.")] = None,
) -> None:
    """Train holders together on data that is at hand, and compare with each alone and with all data in one place.

    digits: two holders of handwritten digits, each with half of the columns. payments: a bank that looks for launderers
    among its customers, and a shop and a telecom that know most of them too, in a made-up world.
    """
    from veilgraph.report.progress import TrainingBars  # noqa: PLC0415
    from veilgraph.report.tables import traffic_table  # noqa: PLC0415
    from veilgraph.run.comparing import compare  # noqa: PLC0415
    from veilgraph.run.jobs import train  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415
    from veilgraph.samples.demo import demo_settings  # noqa: PLC0415

    settings = demo_settings(what, epochs)
    path = out or fresh_path(settings.name)
    with TrainingBars(messages(), settings.measures) as bars:
        with bars.stage("federated", settings.train.epochs) as progress:
            result = train(settings, path, progress=progress)
        compared = compare(RunDirectory.open(path), bars.stage)
    show_comparison(result, compared)
    results().print(traffic_table(result.summary["sent_bytes"]))
    main = settings.measures.main
    together, others = result.summary.get(f"test_{main.name}"), compared.references(main.name)
    beside = ", ".join(f"{main.shown(value)} {name}" for name, value in others.items())
    echo(f"Together the holders reach a test {main.title} of {main.shown(together)}, beside {beside}.")
    say_where(path)
    tell({"run": path, "trainings": compared.summaries()})


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
            help="table2 … table5, table2-network, q3 (VFGNN), sapgnn-table4, sapgnn-figure4, lpgnn-table, "
            "lpgnn-lastfm, lpgnn-labels, lpgnn-mae, attack-strength, audit-views; rounds, acm, private-totals, "
            "private-units.",
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
    echo(text)
