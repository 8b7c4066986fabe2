"""Commands about single nodes of a trained run: predict tells classes and scores, explain what goes with a score,
watch what came of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from veilgraph.cli.app import FAILED, LinkName, Processes, command, option
from veilgraph.cli.output import echo, emit, messages, results, say
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.text import text_of_cell

with deferred():
    from veilgraph.report import explanation
    from veilgraph.report import outcomes as watching
    from veilgraph.runtime.launch import jobs
    from veilgraph.runtime.store.predictions import csv_of_holders, load_by_holder, name_next_nodes
    from veilgraph.runtime.store.run_directory import RunDirectory

_TIED: Final = 10  # nodes with one score, and a tenth of all, are mentioned


@command("predict", "veilgraph predict runs/digits --nodes 1,5,7 --out predictions.csv", json=True)
def predict_command(
    run: Path,
    nodes: str | None = None,
    nodes_file: Path | None = None,
    ids: str | None = None,
    ids_file: Path | None = None,
    ask: bool = False,
    out: Path | None = None,
    processes: Processes = False,
    link: LinkName = None,
) -> None:
    """Predict classes and their probabilities with a trained run, through the same joint protocol.

    A class is the one of the highest calibrated probability. To flag more nodes, use the threshold on the page of
    veilgraph report.

    A run from tables reads them again: nodes added since training are predicted too. In the label holder's part of a
    run across organisations, or any holder's of a horizontal one, the newest joint inference is shown; make a new one
    with veilgraph net submit --work predict. A sealed or union job with named_nodes predicts only the nodes named here,
    and the others learn their number. Across organisations the label holder names them first, with --ask; in a union
    each holder of nodes does. Where several holders predict nodes of their own, a column says whose a node is; --nodes
    are the label holder's.

    Options:
        RUN (run): Directory of a complete run.
        --nodes 1,5,7: Nodes to predict. Default: all.
        --nodes-file FILE: Nodes to predict, parted by commas, spaces or lines.
        --ids C1,C5: Ids to predict, in place of nodes: for runs from tables, or horizontal.
        --ids-file FILE: Ids to predict, one on each line, as in predictions.csv.
        --ask: Across organisations, with named_nodes: name these for the next joint inference, and show nothing.
        --out FILE.csv: File to write. Default: print.
    """
    chosen, wanted = _chosen(nodes, nodes_file, ids, ids_file)
    if ask:
        count = name_next_nodes(run, chosen, ids=wanted)
        emit({"named": count})
        echo(f"{count} named for the next joint inference; make it with: veilgraph net submit --work predict")
        return

    with messages().status("predicting"):
        predictions = jobs.predict(run, chosen, ids=wanted, options=jobs.RunOptions(processes=processes, link=link))
        found = {"": predictions} if chosen is not None else load_by_holder(RunDirectory.open(run))
        if wanted is not None:  # each holder's: in a union one id at two holders is two nodes
            found = {
                holder: each.of_ids([text for text in wanted if text in each.rows()]) for holder, each in found.items()
            }
    whose = [{"holder": holder} if len(found) > 1 else {} for holder, each in found.items() for _ in each.nodes]
    records = [record for each in found.values() for record in each.records()]
    emit(
        {
            "run": run,
            "model_version": predictions.model_version,
            "made_at": predictions.made_at,
            "predictions": [holder | record for holder, record in zip(whose, records, strict=True)],
            "file": out,
        }
    )
    text = csv_of_holders(found)
    if out is None:
        echo(text, nl=False)
    else:
        with os_errors_as(RunError, f"{out}: cannot be written", "choose another --out"):
            write_whole(out, text.encode())
        echo(f"wrote {len(records)} predictions to {out}")
    for holder, each in found.items():
        if (tied := each.count_tied()) >= max(_TIED, len(each.nodes) // _TIED):
            say(
                f"{holder}{': ' if holder else ''}{tied} of {len(each.nodes)} have the same score, so nothing ranks "
                "them: look for edge weights or columns far larger than others (veilgraph data check)"
            )


@command("explain", "veilgraph explain runs/fraud --ids C17", json=True)
def explain_command(
    run: Path,
    nodes: str | None = None,
    nodes_file: Path | None = None,
    ids: str | None = None,
    ids_file: Path | None = None,
    party: str | None = None,
    top: Annotated[int, option(min=1)] = 10,
) -> None:
    """Say what of the holder's own data goes with a node's score, and how much only others' data can say.

    At home, where the run's predictions are: nobody is asked, and nothing is sent. A linear regression of the scores on
    the holder's own columns, their means over its own links, and numbers of links tells what moves a node's score away
    from the mean node's. The rest is one number: other holders' data, and what no such sum says. It tells what goes
    with the score, not what causes it. Scores are of the newest joint inference.

    Options:
        RUN (run): Directory of a complete run, or of the holder's part.
        --nodes 1,5,7: Nodes to explain.
        --nodes-file FILE: Nodes to explain, parted by commas, spaces or lines.
        --ids C1,C5: Ids to explain, in place of nodes: for runs from tables.
        --ids-file FILE: Ids to explain, one on each line.
        --party NAME: The holder whose scores and data are used. Default: the one with predictions.
        --top: How many reasons are named; the others are added up.
    """
    chosen, wanted = _chosen(nodes, nodes_file, ids, ids_file)
    found = explanation.explain(RunDirectory.open(run), chosen, ids=wanted, party=party, shown=top)
    for each in found:
        results().print(each.table())
    emit({"run": run, "explanations": [each.record() for each in found]})


@command(
    "watch", "veilgraph watch runs/2026-01 runs/2026-04 --outcomes outcomes.csv --id customer --label fraud", json=True
)
def watch_command(
    runs: list[Path],
    outcomes: Path,
    id_column: str,
    label: str,
    date: str | None = None,
    party: str | None = None,
    least: Annotated[float | None, option(min=0.0, max=1.0)] = None,
) -> None:
    """Hold predictions against what came of the nodes, and a champion against challengers.

    At home: nothing is sent. Of each month it says how many were found, how many the probabilities foresaw, and how
    well scores ranked them. Nodes that a model was trained or chosen on are left out. Exits with 3 where a challenger
    is better by more than chance, and where in the newest month the champion's probabilities foresaw far more or fewer
    than were found, or its AUC is below --least by more than chance.

    Options:
        RUN... (runs): Directories of runs: the champion's, then challengers'.
        --outcomes FILE: CSV or Parquet table of what came of nodes.
        --id COLUMN (id_column): Its column of ids, as in the predictions.
        --label COLUMN: Its column of classes; rows without one are left out.
        --date COLUMN: Its column of dates: a row for each month. Default: all in one.
        --party NAME: The holder whose predictions are used. Default: the one with predictions.
        --least AUC: What the champion's AUC of the newest month must not be below.
    """
    found = watching.watch(runs, watching.OutcomeTable(outcomes, id_column, label, date), party)
    results().print(found.table())
    alarms = found.alarms(least)
    for line in [*found.sentences(), *alarms]:
        say(line)
    emit({"watched": [each.record() for each in found.watched], "better": found.better, "alarms": alarms})
    if alarms or found.better:
        raise typer.Exit(FAILED)


def _chosen(
    nodes: str | None, nodes_file: Path | None, ids: str | None, ids_file: Path | None
) -> tuple[list[int] | None, list[str] | None]:
    """Nodes or ids that options name, or neither; refused where both do."""
    chosen, wanted = _chosen_nodes(nodes, nodes_file), _chosen_ids(ids, ids_file)
    if chosen is not None and wanted is not None:
        raise typer.BadParameter("give nodes or ids, not both")
    return chosen, wanted


def _option_or_file(here: str | None, file: Path | None, option: str, what: str) -> str | None:
    """Return an option's text ``here``, or the content of its ``file``; None without either, refused with both."""
    if here is not None and file is not None:
        raise typer.BadParameter(f"give {option} or {option}-file, not both")
    if file is None:
        return here
    with os_errors_as(ConfigError, f"{file}: cannot be read", f"give a text file {what}", UnicodeDecodeError):
        return file.read_text(encoding="utf-8")


def _chosen_ids(ids: str | None, ids_file: Path | None) -> list[str] | None:
    text = _option_or_file(ids, ids_file, "--ids", "with one id on each line")
    if text is None:
        return None
    words = text.split(",") if ids_file is None else map(text_of_cell, text.splitlines())
    if not (found := [word for word in words if word]):
        option = "--ids" if ids_file is None else "--ids-file"
        raise typer.BadParameter("there is no id in it; name one, or leave it out for all nodes", param_hint=option)
    return found


def _chosen_nodes(nodes: str | None, nodes_file: Path | None) -> list[int] | None:
    text = _option_or_file(nodes, nodes_file, "--nodes", "of node numbers")
    if text is None:
        return None
    words, option = text.replace(",", " ").split(), "--nodes" if nodes_file is None else "--nodes-file"
    wrong = next((word for word in words if not (word.isascii() and word.isdigit())), None)
    if wrong is not None:
        raise typer.BadParameter(f"{wrong!r} is not a node number; give numbers as in 1,5,7", param_hint=option)
    if not words:
        raise typer.BadParameter("there is no node in it; give numbers as in 1,5,7", param_hint=option)
    return [int(word) for word in words]
