"""What a notebook shows of a run."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from veilgraph.core.errors import ConfigError
from veilgraph.core.tensor_file import Record
from veilgraph.core.words import listed
from veilgraph.protocol.job import JobSettings
from veilgraph.report.labels import against
from veilgraph.report.tables import human_bytes
from veilgraph.run.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd


def data_frame(of: str, rows: Mapping[Any, Mapping[str, Any]], index: str, instead: str) -> pd.DataFrame:
    """A table with a row for each entry.

    Args:
        of: the property that is asked for.
        rows: the row's place in the index → column → value.
        index: its name.
        instead: what has the same without pandas.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{of}: pandas is not installed; install it (pip install pandas), or take {instead}", key=of
        ) from error
    return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name=index))


def facts(run: RunDirectory) -> dict[str, str]:
    """What there is to say of a run in a few lines: heading → what."""
    job, summary = run.settings, run.summary
    found = {"run": str(run.path), "job": f"{job.name} ({job.paradigm})", "holders": listed(job.data.names)}
    if summary is None:
        return {**found, "state": f"not complete: {len(run.metrics())} epochs of at most {job.train.epochs}"}
    return {**found, "best epoch": str(summary["best_epoch"]), **_figures(job, summary), **_sent(summary)}


def html_table(rows: Mapping[str, str], caption: str) -> str:
    """A small table of HTML, everything in it escaped."""
    lines = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(caption)}</caption><tbody>{lines}</tbody></table>"


def _figures(job: JobSettings, summary: Record) -> dict[str, str]:
    return {
        f"test {figure.title}": f"{figure.shown(value)}{against(job)}"
        for figure in job.measures.figures
        if (value := summary.get(f"test_{figure.name}")) is not None
    }


def _sent(summary: Record) -> dict[str, str]:
    return {f"sent by {party}": human_bytes(count) for party, count in summary["sent_bytes"].items()}
