"""The command that predicts with a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import LinkName, Processes, command
from veilgraph.cli.output import echo, messages
from veilgraph.cli.telling import tell
from veilgraph.core.csv_cells import text_of_cell
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole


@command("predict", "veilgraph predict runs/digits --nodes 1,5,7 --out predictions.csv", json=True)
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
    ids_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ids to predict, one on each line, as in predictions.csv.")
    ] = None,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask",
            metavar="",
            help="Across organisations, with named_nodes: name these for the next joint inference, and show nothing.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="File to write. Default: print.")] = None,
    processes: Processes = False,
    link: LinkName = None,
) -> None:
    """Predict classes and their probabilities with a trained run, through the same joint protocol.

    A run from tables reads them again: nodes added since training are predicted too. In the label holder's part of a
    run across organisations, or any holder's of a horizontal one, the newest joint inference is shown; make a new one
    with veilgraph net submit --work predict. A sealed job with named_nodes predicts no nodes but those named here, of
    which the others learn the number; across organisations the label holder names them first, with --ask.
    """
    chosen, wanted = _chosen_nodes(nodes, nodes_file), _chosen_ids(ids, ids_file)
    if chosen is not None and wanted is not None:
        raise typer.BadParameter("give nodes or ids, not both")
    if ask:
        from veilgraph.run.naming import name_ahead  # noqa: PLC0415

        count = name_ahead(run, chosen, ids=wanted)
        tell({"named": count})
        echo(f"{count} named for the next joint inference; make it with: veilgraph net submit --work predict")
        return
    from veilgraph.run.jobs import predict  # noqa: PLC0415

    with messages().status("predicting"):
        predictions = predict(run, chosen, ids=wanted, processes=processes, link=link)
    tell(
        {
            "run": run,
            "model_version": predictions.model_version,
            "made_at": predictions.made_at,
            "predictions": predictions.records(),
            "file": out,
        }
    )
    text = predictions.csv()
    if out is None:
        echo(text, nl=False)
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    echo(f"wrote {len(predictions.nodes)} predictions to {out}")


def _chosen_ids(ids: str | None, ids_file: Path | None) -> list[str] | None:
    if ids is not None and ids_file is not None:
        raise typer.BadParameter("give --ids or --ids-file, not both")
    if ids is not None:
        return _some(ids.split(","), "--ids")
    if ids_file is None:
        return None
    try:
        lines = ids_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{ids_file}: cannot be read ({error}); give a text file with one id on each line") from error
    return _some([text_of_cell(line) for line in lines], "--ids-file")


def _some(words: Sequence[str], option: str) -> list[str]:
    found = [word for word in words if word]
    if not found:
        raise typer.BadParameter("there is no id in it; name one, or leave it out for all nodes", param_hint=option)
    return found


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
