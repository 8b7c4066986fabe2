"""The tables of VFGNN, SAPGNN and LPGNN, and some of ours, reproduced on this machine.

A table says what it compares: a shipped job per data set, and what each place in the table changes in it. All
other hyper-parameters are in the job files.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, get_args

from research.attack_strength import DATASETS as STRENGTH_DATASETS
from research.attack_strength import EXPERIMENT as STRENGTH
from research.attack_strength import measure_strength
from research.audit_views import DATASETS as VIEWS_DATASETS
from research.audit_views import EXPERIMENT as VIEWS
from research.audit_views import audit_views
from research.grid import Cell, Engine, Entry, GridProgress, run_cells
from research.lpgnn_labels import LPGNN_LABELS
from research.lpgnn_mae import DATASETS as MAE_DATASETS
from research.lpgnn_mae import EXPERIMENT as MAE
from research.lpgnn_mae import estimate_errors
from research.lpgnn_table import LPGNN_TABLES
from research.markdown import Figure, render
from research.q3 import DATASETS as Q3_DATASETS
from research.q3 import EXPERIMENT as Q3
from research.q3 import answer_q3
from research.sapgnn_tables import SAPGNN_TABLES
from research.sealed_table import SEALED_TABLES
from research.store import Store
from research.table import Table
from research.vfgnn_tables import VFGNN_TABLES
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import write_whole

TABLES: Final[dict[str, Table]] = {
    **VFGNN_TABLES,
    **SAPGNN_TABLES,
    **LPGNN_TABLES,
    **LPGNN_LABELS,
    **SEALED_TABLES,
}
"""The tables by the name the command line uses."""

_MEASUREMENTS: Final = {
    Q3: (Q3_DATASETS, answer_q3),
    MAE: (MAE_DATASETS, estimate_errors),
    STRENGTH: (STRENGTH_DATASETS, measure_strength),
    VIEWS: (VIEWS_DATASETS, audit_views),
}
"""What is no table of trainings, likewise: its data sets, and what measures and writes the page."""


def reproduce(
    table: str,
    *,
    seeds: int,
    datasets: Sequence[str] | None,
    rows: str | None = None,
    out: Path,
    progress: GridProgress,
    engine: Engine = "federated",
) -> str:
    """Trains what a table reports and writes the same table with this machine's figures.

    Finished trainings are kept in ``<out>/<table>.jsonl``, the table in ``<out>/<table>.md`` and its picture, if it
    has one, in ``<out>/<table>.png``; called again after an interruption, or with more seeds, only what is missing is
    trained.

    Args:
        table: a name in ``TABLES``, or of ``_MEASUREMENTS``: ``q3``, ``lpgnn-mae``, ``attack-strength``,
            ``audit-views``.
        seeds: how many trainings per figure; they have the seeds 0, 1, …
        datasets: only these of the table's; None: all but those that must be named.
        rows: only rows with this text in their name; None: all.
        out: folder, made if absent.
        progress: called with (what is being done, trainings done, trainings in all).
        engine: for federated figures, the parties' protocols or their plaintext twin; not for tables without jobs.

    Returns:
        Markdown: test accuracy, for SAPGNN also macro F1, as mean ± standard deviation beside the paper's figure.

    Raises:
        ConfigError: table, data set, engine or number of seeds do not exist; the message names the choices.
        VeilgraphError: ``out`` cannot be used, or a data set cannot be read.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1; one training per figure is the least")
    if engine not in get_args(Engine):
        raise ConfigError(f"engine={engine!r} does not exist; choose from {', '.join(get_args(Engine))}")
    if table not in (*TABLES, *_MEASUREMENTS):
        raise ConfigError(f"table={table!r} does not exist; choose from {', '.join((*TABLES, *_MEASUREMENTS))}")
    command = _command(table, seeds, datasets, rows, engine)
    if table in _MEASUREMENTS:
        if engine != "federated":
            raise ConfigError(f"engine={engine!r} is for tables of trainings; with {table} leave --plaintext out")
        known, measure = _MEASUREMENTS[table]
        chosen = _choose(table, known, datasets)
        return measure(seeds=seeds, datasets=chosen, rows=rows, out=out, progress=progress, command=command)
    plan = TABLES[table]
    entries = _entries(plan, _choose(table, plan.datasets, datasets, plan.on_request), rows)
    jobs = [entry.settings for entry in entries]
    cells = [
        [Cell(table, entry.dataset, entry.row, entry.column, job, entry.kind, seed, engine) for seed in range(seeds)]
        for entry, job in zip(entries, jobs, strict=True)
    ]
    store = Store(out, table)
    # Seed by seed, so that an interrupted table is whole for the first seeds.
    run_cells([group[seed] for seed in range(seeds) for group in cells], store, progress)
    figures = [
        Figure(entry.row, entry.column, entry.paper, tuple(store.require(cell.key) for cell in group), entry.paper_f1)
        for entry, group in zip(entries, cells, strict=True)
    ]
    picture = "" if plan.draw is None else f"{table}.png"
    text = render(
        plan.title,
        plan.corner,
        figures,
        [plan.note, _left_out(plan, entries)],
        command=command,
        with_f1=plan.with_f1,
        picture=picture,
    )
    if plan.draw is not None:
        plan.draw(figures, out / picture)
    _write(out / f"{table}.md", text)
    return text


def _choose(
    table: str, known: Sequence[str], datasets: Sequence[str] | None, on_request: Collection[str] = ()
) -> tuple[str, ...]:
    if datasets is None:
        return tuple(dataset for dataset in known if dataset not in on_request)
    unknown = [dataset for dataset in datasets if dataset not in known]
    if unknown or not datasets:
        what = f"dataset={unknown[0]!r} is not in {table}" if unknown else f"no data set of {table} is named"
        raise ConfigError(f"{what}; choose from {', '.join(known)}")
    return tuple(dataset for dataset in known if dataset in datasets)


def _entries(plan: Table, datasets: Sequence[str], rows: str | None) -> list[Entry]:
    entries = [entry for entry in plan.entries if entry.dataset in datasets]
    chosen = [entry for entry in entries if rows is None or rows in entry.row]
    if not chosen:
        names = ", ".join(repr(name) for name in dict.fromkeys(entry.row for entry in entries))
        raise ConfigError(f"rows={rows!r} is part of no row's name; they are {names}")
    return chosen


def _left_out(plan: Table, chosen: Sequence[Entry]) -> str:
    datasets = {entry.dataset for entry in chosen}
    missing = [dataset for dataset in plan.datasets if dataset not in datasets]
    rows = {entry.row for entry in chosen}
    others = dict.fromkeys(entry.row for entry in plan.entries if entry.dataset in datasets and entry.row not in rows)
    texts = [f"Data sets of this table that were not run: {', '.join(missing)}." if missing else ""]
    texts += [f"Rows that were not run: {'; '.join(others)}." if others else ""]
    return " ".join(filter(None, texts))


def _command(table: str, seeds: int, datasets: Sequence[str] | None, rows: str | None, engine: Engine) -> str:
    words = ["python", "-m", "research", table, "--seeds", str(seeds)]
    if datasets is not None:
        words += ["--datasets", ",".join(datasets)]
    if rows is not None:
        words += ["--rows", shlex.quote(rows)]
    if engine != "federated":
        words += [f"--{engine}"]
    return " ".join(words)


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); choose another --out") from error
