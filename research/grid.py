"""A list of trainings, run one after the other; those that are already stored are not run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from research.horizontal import train_horizontal
from research.local import train_local
from research.sealed_twin import train_sealed
from research.store import Finished, Store, identity, package_version, training_key
from veilgraph.graph.dataset import load_parties
from veilgraph.paradigms.vertical.twin import PlainNetwork, isolated, pooled
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import fit
from veilgraph.runtime.launch.jobs import Progress, RunOptions, train
from veilgraph.runtime.store.run_directory import Record
from veilgraph.samples.shipped import shipped_job, with_overrides

Kind = Literal[
    "federated",
    "twin",
    "isolated-A",
    "isolated-B",
    "pooled",
    "separate",
    "ppgnn",
    "ppgnn-two-stages",
    "raw",
    "random",
    "degrees",
    "released",
    "believed",
]
"""All holders together; their plaintext twin; one of them alone; all data in one place.

Horizontal jobs only: the mean over the holders, each alone (SP); PPGNN end to end, and as published.
Local jobs only: GCN+RAW, GCN+RND, GCN+OHD; the twin judged by true labels, and the same with released labels taken for
the true ones.
"""

Engine = Literal["federated", "plaintext"]
"""How a federated training is computed: by the parties' roles and protocols, or by its plaintext twin."""

GridProgress = Callable[[str, int, int], None]
"""(what is being done, trainings done, trainings in all)."""

_ISOLATED: Final = "isolated-"


@dataclass(frozen=True)
class Entry:
    """One place in a table.

    Attributes:
        row: its row's heading.
        column: its column's heading.
        dataset: data set by the name the settings use.
        job: name of the shipped job.
        kind: what is trained.
        overrides: dotted key → value, what this place changes in the job.
        paper: the paper's test accuracy in [0, 1], None where it has none.
        paper_f1: its macro F1 in [0, 1] on the test nodes, likewise.
    """

    row: str
    column: str
    dataset: str
    job: str
    kind: Kind
    overrides: Mapping[str, object]
    paper: float | None
    paper_f1: float | None = None

    @property
    def settings(self) -> JobSettings:
        """The job with the place's changes.

        Raises:
            ConfigError: there is no such job, or the changes break a rule.
        """
        return with_overrides(shipped_job(self.job), self.overrides)


@dataclass(frozen=True)
class Cell:
    """One training of an experiment.

    Attributes:
        table: experiment.
        dataset: data set by the name the settings use.
        row: where in the table.
        column: where in the table.
        settings: the job; its own seed is not used.
        kind: what is trained.
        seed: of partition and weights.
        asked_engine: for federated training; the baselines are always plaintext.
    """

    table: str
    dataset: str
    row: str
    column: str
    settings: JobSettings
    kind: Kind
    seed: int
    asked_engine: Engine = "federated"

    @property
    def job(self) -> JobSettings:
        """The settings with the cell's seed."""
        return with_overrides(self.settings, {"seed": self.seed})

    @property
    def engine(self) -> Engine:
        """What computes the cell; the one exchange of paradigm node-dp is always made by the parties."""
        if self.kind != "federated":
            return "plaintext"
        return "federated" if self.settings.paradigm == "node-dp" else self.asked_engine

    @property
    def key(self) -> str:
        """Equal for cells that must give the same result, up to noise that protects, whatever their place."""
        return training_key(self.job, self.kind, self.engine)

    @property
    def label(self) -> str:
        """For a progress bar."""
        place = self.row if self.column == self.dataset else f"{self.row} {self.column}"
        return f"{self.table} {self.dataset}: {place}, seed {self.seed}"


def run_cells(cells: Sequence[Cell], store: Store, progress: GridProgress = lambda what, done, total: None) -> None:
    """Runs what the store does not have yet, in order, and stores each as soon as it is finished.

    Args:
        cells: the trainings.
        store: of finished ones; afterwards it has all of them.
        progress: called with every new state, within a training too.

    Raises:
        VeilgraphError: a cell's job or data break a rule; what was finished before stays stored.
    """
    waiting = [cell for cell in cells if store.get(cell.key) is None]
    done, total = len(cells) - len(waiting), len(cells)
    for cell in waiting:
        if store.get(cell.key) is None:  # the same training may have two places in a table

            def tick(records: list[Record], label: str = cell.label, done: int = done) -> None:
                epoch = f", epoch {records[-1]['epoch']}" if records else ""
                progress(label + epoch, done, total)

            tick([])
            store.add(run_cell(cell, tick))
        done += 1
    progress("done", done, total)


def run_cell(cell: Cell, progress: Progress = lambda records: None) -> Finished:
    """Trains one cell.

    Args:
        cell: what to train.
        progress: called with the epochs' records so far.

    Raises:
        VeilgraphError: the job or its data break a rule.
    """
    job = cell.job
    started = time.perf_counter()
    summary = _federated(job, progress) if cell.engine == "federated" else _plaintext(job, cell.kind, progress)
    seconds = time.perf_counter() - started
    return Finished(
        key=cell.key,
        table=cell.table,
        dataset=cell.dataset,
        row=cell.row,
        column=cell.column,
        kind=cell.kind,
        engine=cell.engine,
        seed=cell.seed,
        version=package_version(),
        val_accuracy=summary["val_accuracy"],
        test_accuracy=summary["test_accuracy"],
        best_epoch=summary["best_epoch"],
        seconds=seconds,
        sent_bytes=summary.get("sent_bytes"),
        settings=identity(job),
        test_f1=summary["test_f1"],
    )


def _federated(job: JobSettings, progress: Progress) -> Record:
    """Summary of a run whose directory is thrown away, and which therefore needs no checkpoints."""
    job = with_overrides(job, {"train.checkpoint_every": job.train.epochs})
    with TemporaryDirectory(prefix="veilgraph-") as folder:
        return train(job, Path(folder) / "run", options=RunOptions(progress=progress)).summary


def _plaintext(job: JobSettings, kind: Kind, progress: Progress) -> Record:
    if job.paradigm == "horizontal":
        return train_horizontal(job, kind, progress)
    if job.paradigm == "node-dp":
        return train_local(job, kind, progress)
    if job.paradigm == "sealed":
        return train_sealed(job, kind)
    graphs = load_parties(job.data, job.seed)
    if kind == "pooled":
        return pooled(job, graphs, progress).summary
    if kind in ("federated", "twin"):
        return fit(PlainNetwork(job, graphs, job.data.label_party), progress).summary
    return isolated(job, graphs, kind.removeprefix(_ISOLATED), progress).summary
