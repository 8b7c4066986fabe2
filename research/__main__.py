"""Reproduce the papers' tables: ``python -m research table2 --datasets cora --seeds 1``, in a checkout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from research.paper_tables import reproduce
from veilgraph.cli.app import reported
from veilgraph.cli.output import echo, messages

REPRODUCED: Final = Path("runs/reproduce")
app = typer.Typer(name="research", pretty_exceptions_enable=False)


@contextmanager
def counted(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """One bar for many trainings; the block gets the function that takes (what is being done, done, in all)."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    task = bar.add_task("")

    def progress(what: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


@app.command(epilog="Example: python -m research table2 --datasets cora --seeds 1")
def reproduce_command(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="table2, table3, table4, table2-network, q3 (VFGNN), sapgnn-table4, sapgnn-figure4, lpgnn-table, "
            "lpgnn-lastfm, lpgnn-labels, lpgnn-mae, attack-strength, audit-views; rounds, acm.",
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
    names = None if datasets is None else [name.strip() for name in datasets.split(",")]
    engine: Literal["federated", "plaintext"] = "plaintext" if plaintext else "federated"
    with reported(), counted(messages()) as progress:
        text = reproduce(table, seeds=seeds, datasets=names, rows=rows, out=out, progress=progress, engine=engine)
    echo(text)


if __name__ == "__main__":
    app()
