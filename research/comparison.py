"""What working together is worth to the label holder: alone, federated from tables, and all data in one place.

python -m research.comparison amazon --out runs/amazon --seeds 3
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from research.markdown import mean_and_spread
from veilgraph import __version__
from veilgraph.core.errors import ConfigError, RunError, VeilgraphError
from veilgraph.core.files import write_whole
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.paradigms.vertical.twin import isolated, pooled
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import read_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import Record, RunDirectory
from veilgraph.samples.organisations import export_dataset
from veilgraph.samples.shipped import shipped_job, with_overrides

_FIGURES: Final = {"AUC": "auc", "F1 (macro)": "f1", "accuracy": "accuracy"}
_KEPT: Final = ("best_epoch", *(f"{split}_{name}" for split in ("val", "test") for name in _FIGURES.values()))


def compare(job: JobSettings, out: Path, seeds: int, *, overlap: float = 0.8) -> str:
    """Exports the job's data set as organisations' tables and trains on them in three ways, for every seed.

    *Alone* is the label holder's own training on all nodes it knows; *federated* is the job itself, from the tables
    through alignment and all protocols; *pooled* has all columns and edges of the common nodes in one place. All have
    the job's network and settings and are chosen and judged on the same common validation and test nodes. Of a sealed
    job there is only *federated*.

    Args:
        job: names a data set; its seed is not used.
        out: folder, made here: ``seed-<n>/tables`` and ``seed-<n>/run``, ``comparison.json``, ``comparison.md``.
        seeds: how many; they have the seeds 0, 1, … of split, overlap and weights.
        overlap: share of the nodes that all holders know.

    Returns:
        Markdown: scores on the test nodes as mean ± sample standard deviation.

    Raises:
        ConfigError: the job names no data set, or there is no seed.
        VeilgraphError: ``out`` is in use, the data set cannot be read, or the job breaks a rule.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1; one training per figure is the least")
    rounds = [
        _compare_once(with_overrides(job, {"seed": seed}), out / f"seed-{seed}", overlap) for seed in range(seeds)
    ]
    text = render_comparison(job, rounds, overlap)
    try:
        write_whole(out / "comparison.json", json.dumps(rounds, indent=2).encode())
        write_whole(out / "comparison.md", text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return text


def _compare_once(job: JobSettings, out: Path, overlap: float) -> dict[str, Record]:
    """Way of training → its scores; and under ``nodes`` how many nodes each holder and all of them know."""
    export_dataset(job.data, out / "tables", overlap, job.seed, job=job)
    federated = train(read_job(out / "tables" / "job.yaml"), out / "run")
    run = RunDirectory.open(out / "run")
    graphs = [load_party(run.party(name).graph_path) for name in job.data.names]
    summaries = {"federated": federated.summary}
    if job.paradigm == "vertical":
        alone = isolated(job, graphs, job.data.label_party).summary
        summaries = {alone_row(job.data.label_party): alone, **summaries, "pooled": pooled(job, graphs).summary}
    return {
        "nodes": _counts(graphs),
        **{row: {key: summary[key] for key in _KEPT} for row, summary in summaries.items()},
    }


def alone_row(label_party: PartyId) -> str:
    """What the label holder's own training is called."""
    return f"{label_party} alone"


def _counts(graphs: Sequence[PartyGraph]) -> dict[str, int]:
    return {**{graph.party: graph.num_nodes for graph in graphs}, "common": graphs[0].common}


def render_comparison(job: JobSettings, rounds: Sequence[Mapping[str, Record]], overlap: float) -> str:
    """The table of ``compare`` as Markdown.

    Args:
        job: that was compared.
        rounds: per seed, way of training → its scores, and ``nodes``.
        overlap: share of the nodes that all holders know.
    """
    lines = [f"# {job.name}: {len(job.data.names)} organisations", "", f"| training | {' | '.join(_FIGURES)} |"]
    lines.append("|---|" + "---:|" * len(_FIGURES))
    for row in (row for row in rounds[0] if row != "nodes"):
        cells = [_cell([scores[row][f"test_{name}"] for scores in rounds]) for name in _FIGURES.values()]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    known = ", ".join(f"{party} {count:,}" for party, count in rounds[0]["nodes"].items())
    chosen = {"auc": "AUC", "f1": "macro F1"}.get(job.train.select_by, job.train.select_by)
    epoch = "the last step" if chosen == "last" else f"the epoch with the best {chosen} on the common validation nodes"
    lines += [
        "",
        f"- Common test nodes, at {epoch}; "
        f"{'one seed' if len(rounds) == 1 else f'mean ± sample standard deviation over {len(rounds)} seeds'} of split, "
        "overlap and weights.",
        f"- Nodes of each holder with seed 0: {known}.",
        f"- veilgraph {__version__}, torch {torch.__version__}; made with `python -m research.comparison "
        f"{job.name} --seeds {len(rounds)} --overlap {overlap:g}`.",
    ]
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float | None]) -> str:
    """A dash where a seed has no figure: AUC without test nodes of every class."""
    known = [value for value in values if value is not None]
    return mean_and_spread(known) if len(known) == len(values) else "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: compares a shipped job's trainings and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m research.comparison", description=compare.__doc__)
    parser.add_argument("job", help="name of a shipped job, as amazon or acm")
    parser.add_argument("--out", type=Path, default=None, help="folder to make; default: runs/compare-JOB")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--overlap", type=float, default=0.8)
    given = parser.parse_args(arguments)
    try:
        out = given.out or Path("runs") / f"compare-{given.job}"
        sys.stdout.write(compare(shipped_job(given.job), out, given.seeds, overlap=given.overlap))
    except VeilgraphError as error:
        sys.stderr.write(f"veilgraph: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
