"""How strong the audit's attacks are where they are known to succeed: on the plain networks they were published for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from torch_geometric.data import Data
from veilgraph_datasets.public import planetoid_data

from research.attack_strength_families import FAMILIES
from research.attack_strength_page import Measured, strength_page
from research.attack_strength_settings import StrengthSettings
from research.grid import GridProgress
from research.store import package_version
from veilgraph.audit.statistics import intervals
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.graph.dataset import data_root
from veilgraph.graph.settings import DataSettings

EXPERIMENT: Final = "attack-strength"
"""Its name at the command line."""
SAMPLES: Final = 200
"""Of the bootstrap, per attack and seed."""

_OTHER: Final = {"cora": "citeseer", "citeseer": "cora"}
"""Data set → where the link adversary's shadow graph comes from."""
DATASETS: Final = tuple(_OTHER)


def measure_strength(
    *,
    seeds: int,
    datasets: Sequence[str],
    rows: str | None,
    out: Path,
    progress: GridProgress,
    command: str,
    settings: StrengthSettings | None = None,
) -> str:
    """Trains plain networks, mounts all published attacks on them and writes ``attack-strength.md`` and ``.json``.

    The latter has a bootstrap interval of every figure of every seed, and keeps them as soon as they are measured;
    only what is missing is measured again.

    Args:
        seeds: of divisions, networks and attacks: 0, 1, …
        datasets: of ``DATASETS``.
        rows: only tables with this text in their name, such as ``cora, links``; None: all.
        out: folder, made if absent.
        progress: called with (what is being done, tables of one seed done, in all).
        command: that makes the page.
        settings: of networks and adversaries; None: the defaults.

    Returns:
        Markdown: mean ± standard deviation over the seeds.

    Raises:
        ConfigError: no table has that name.
        VeilgraphError: ``out`` cannot be used, or a data set cannot be read.
    """
    settings = settings or StrengthSettings()
    chosen = _chosen([(dataset, family) for dataset in datasets for family in FAMILIES], rows)
    kept = _Kept(out, settings)
    work = [(dataset, family, seed) for seed in range(seeds) for dataset, family in chosen]
    for done, place in enumerate(work):
        if _table(*place) not in kept:
            progress(f"{EXPERIMENT} {_table(*place)}", done, len(work))
            kept.add(_table(*place), *_measure(*place, settings))
    progress("done", len(work), len(work))
    found = {place: [kept.attacks(_table(*place, seed)) for seed in range(seeds)] for place in chosen}
    text = strength_page(found, kept.seconds(_table(*place) for place in work), settings, seeds, command)
    _write(out / f"{EXPERIMENT}.md", text)
    return text


def load(dataset: str) -> Data:
    """The whole graph with its public split."""
    return planetoid_data(dataset, data_root(DataSettings(dataset=dataset)))


def _measure(dataset: str, family: str, seed: int, settings: StrengthSettings) -> tuple[Measured, float]:
    """Figures, and seconds without reading the data."""
    data, other = load(dataset), load(_OTHER[dataset])
    started = time.perf_counter()
    measured: Measured = {}
    for name, attacked in FAMILIES[family](data, other, settings, seed).items():
        figures = intervals(attacked.scores, attacked.truth, seed=seed, samples=SAMPLES, threshold=attacked.threshold)
        measured[name] = {**{figure: asdict(interval) for figure, interval in figures.items()}, **attacked.others}
    return measured, time.perf_counter() - started


class _Kept:
    """Measured tables on disk. A file of another version of the package, or of other settings, is written over."""

    def __init__(self, out: Path, settings: StrengthSettings) -> None:
        self._path = out / f"{EXPERIMENT}.json"
        self._made_with = {"version": package_version(), "settings": json.loads(json.dumps(asdict(settings)))}
        self._tables: dict[str, dict[str, Any]] = {}
        try:
            private_folder(out)
            content = json.loads(self._path.read_bytes()) if self._path.is_file() else {}
        except (OSError, ValueError) as error:
            raise RunError(f"{self._path}: cannot be used ({error}); delete it or choose another --out") from error
        if content.get("made_with") == self._made_with:
            self._tables = content["tables"]

    def __contains__(self, table: str) -> bool:
        return table in self._tables

    def attacks(self, table: str) -> Measured:
        """What was measured."""
        attacks: Measured = self._tables[table]["attacks"]
        return attacks

    def seconds(self, tables: Iterable[str]) -> float:
        """What they took together."""
        return sum((float(self._tables[table]["seconds"]) for table in tables), 0.0)

    def add(self, table: str, measured: Measured, seconds: float) -> None:
        """Of one more table of one seed."""
        self._tables[table] = {"seconds": seconds, "attacks": measured}
        _write(self._path, json.dumps({"made_with": self._made_with, "tables": self._tables}, indent=1) + "\n")


def _table(dataset: str, family: str, seed: int) -> str:
    return f"{dataset}, {family}, seed {seed}"


def _chosen(places: Sequence[tuple[str, str]], rows: str | None) -> list[tuple[str, str]]:
    chosen = [place for place in places if rows is None or rows in ", ".join(place)]
    if not chosen:
        names = ", ".join(repr(", ".join(place)) for place in places)
        raise ConfigError(f"rows={rows!r} is part of no table's name; they are {names}")
    return chosen


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); choose another --out") from error
