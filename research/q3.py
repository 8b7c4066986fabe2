"""VFGNN's Q3 (4.2): what splitting the network saves over training all of it inside secure computation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final

from research.grid import Cell, GridProgress, run_cells
from research.q3_page import SECURE, SECURE_PUBLIC, VFGNN, Row, page
from research.secure_gnn import secure_epochs, twin_scores
from research.secure_gnn_files import SecureGNN
from research.secure_gnn_spu import spu_python
from research.store import Store, package_version
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.graph.dataset import load_parties
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import RunOptions, train
from veilgraph.samples.shipped import shipped_job, with_overrides

EXPERIMENT: Final = "q3"
"""Its name at the command line."""

DATASETS: Final = ("cora", "citeseer", "pubmed")
BYTES_PER_PAIR: Final = 80
"""Memory of a holder under SPU for each pair of nodes: shares, masks and openings of the adjacency matrix."""
_ROWS: Final = (VFGNN, SECURE, SECURE_PUBLIC)
_EPOCHS: Final = 100
_SPU_EPOCHS: Final = 2
_TIMED_EPOCHS: Final = 12
_TIMEOUT_S: Final = 3600


def answer_q3(
    *, seeds: int, datasets: Sequence[str], rows: str | None, out: Path, progress: GridProgress, command: str
) -> str:
    """Trains VFGNN and SecureGNN's plaintext twin, times epochs of both, and writes ``q3.md``.

    Trainings are kept in ``q3.jsonl`` and ``q3/``, and so are times, of which those of a data set are taken in one run.

    Args:
        seeds: trainings of each figure; seeds 0, 1, …. Times are taken with seed 0.
        datasets: of ``DATASETS``.
        rows: only rows with this text in their name; None: all.
        out: folder, made if absent.
        progress: called with (what is being done, steps done, steps in all).
        command: that makes the page.

    Returns:
        Markdown: test accuracy, seconds and bytes of an epoch.

    Raises:
        ConfigError: no row has that name, or there is no environment with SPU.
        VeilgraphError: ``out`` cannot be used, a data set cannot be read, or a training failed.
    """
    chosen = [row for row in _ROWS if rows is None or rows in row]
    if not chosen:
        raise ConfigError(f"rows={rows!r} is part of no row's name; they are {', '.join(map(repr, _ROWS))}")
    python = spu_python() if chosen != [VFGNN] else None
    done, total = 0, len(datasets) * 3

    def tell(what: str) -> None:
        nonlocal done
        progress(f"{EXPERIMENT} {what}", done, total)
        done += 1

    made: list[Row] = []
    for dataset in datasets:
        tell(f"{dataset}: {VFGNN}")
        accuracies = {VFGNN: _vfgnn_accuracies(dataset, seeds, out) if VFGNN in chosen else []}
        tell(f"{dataset}: the twin of {SECURE}")
        twin = [] if python is None else [_twin_accuracy(dataset, seed, out, python) for seed in range(seeds)]
        tell(f"{dataset}: seconds of an epoch")
        times = _times(dataset, chosen, out, python)
        made += [Row(dataset, row, accuracies.get(row, twin), times[row]) for row in chosen]
    progress("done", total, total)
    text = page(made, seeds, command)
    _write(out / f"{EXPERIMENT}.md", text)
    return text


def secure_settings(job: JobSettings) -> SecureGNN:
    """SecureGNN with the job's width and hops; its own training, chosen on Cora's validation nodes."""
    return SecureGNN(dim=vertical(job).model.dim, hops=vertical(job).model.local.hops, epochs=_EPOCHS)


def too_large(nodes: int, holders: int, memory: int) -> str | None:
    """Why SecureGNN is not run under SPU on a machine with that memory in bytes; None: it is."""
    needed = holders * BYTES_PER_PAIR * nodes**2
    if needed <= memory:
        return None
    return (
        f"its {nodes:,} × {nodes:,} adjacency needs about {needed / 2**30:,.0f} GiB, of {memory / 2**30:.0f} GiB here"
    )


def _job(dataset: str, seed: int) -> JobSettings:
    return with_overrides(shipped_job(dataset), {"seed": seed})


def _vfgnn_accuracies(dataset: str, seeds: int, out: Path) -> list[float]:
    store = Store(out, EXPERIMENT)
    cells = [
        Cell(EXPERIMENT, dataset, VFGNN, dataset, shipped_job(dataset), "federated", seed) for seed in range(seeds)
    ]
    run_cells(cells, store)
    return [store.require(cell.key).test_accuracy for cell in cells]


def _twin_accuracy(dataset: str, seed: int, out: Path, python: Path) -> float:
    job = _job(dataset, seed)
    settings = secure_settings(job)

    def make() -> dict[str, Any]:
        graphs = load_parties(job.data, job.seed)
        return asdict(twin_scores(settings, graphs, job.data.label_party, seed, python, _TIMEOUT_S))

    kept = _kept(out, f"{dataset}-twin-{seed}", {"job": job.hash(), "settings": asdict(settings)}, make)
    return float(kept["test_accuracy"])


def _times(dataset: str, chosen: Sequence[str], out: Path, python: Path | None) -> Mapping[str, Mapping[str, Any]]:
    """Row → ``seconds`` and ``sent_bytes`` of an epoch and what else was measured, or ``left_out``, the reason."""
    job = _job(dataset, 0)
    settings = secure_settings(job)

    def make() -> dict[str, Any]:
        graphs = load_parties(job.data, job.seed)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        refusal = too_large(graphs[0].num_nodes, len(graphs), memory)
        found: dict[str, Any] = {}
        before = _vfgnn_epoch(job)
        for row in chosen:
            if python is None or row == VFGNN:
                continue
            if refusal is not None:
                found[row] = {"left_out": refusal}
                continue
            result = secure_epochs(
                settings,
                graphs,
                job.data.label_party,
                job.seed,
                python,
                _TIMEOUT_S,
                epochs=_SPU_EPOCHS,
                public_adjacency=row == SECURE_PUBLIC,
            )
            found[row] = {
                **asdict(result),
                "epochs": _SPU_EPOCHS,
                "seconds": median(result.seconds),
                "cpu_seconds": median(result.cpu_seconds),
            }
        after = _vfgnn_epoch(job)
        return {**found, VFGNN: {**before, "seconds": fmean((before["seconds"], after["seconds"]))}}

    asked = {"job": job.hash(), "settings": asdict(settings), "rows": list(chosen)}
    return _kept(out, f"{dataset}-seconds", asked, make)


def _vfgnn_epoch(job: JobSettings) -> dict[str, Any]:
    """Of the federated job, every party a process: the median step, and what the party that sends most sends in one."""
    epochs = _TIMED_EPOCHS
    changes = {"train.epochs": epochs, "train.evaluate_every": epochs, "train.checkpoint_every": epochs}
    with TemporaryDirectory(prefix="veilgraph-") as folder:
        summary = train(with_overrides(job, changes), Path(folder) / "run", options=RunOptions(processes=True)).summary
    return {"seconds": summary["seconds_per_step"], "sent_bytes": max(summary["sent_bytes"].values()) // epochs}


def _kept(out: Path, name: str, asked: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was made for the same question by this version, else made now and kept."""
    path = out / EXPERIMENT / f"{name}.json"
    question = json.loads(json.dumps({**asked, "version": package_version()}))
    try:
        private_folder(path.parent)
        content = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be used ({error}); delete it or choose another --out") from error
    if content.get("question") != question:
        content = {"question": question, "answer": make()}
        _write(path, json.dumps(content, indent=1) + "\n")
    answer: dict[str, Any] = content["answer"]
    return answer


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); choose another --out") from error
