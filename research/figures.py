"""Figures on disk, ``set/level/way/ε/seed`` → figure on the test nodes: what was measured is not measured again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev

import torch

from veilgraph import __version__
from veilgraph.core.files import write_whole

NONE = "none"
"""In place of an ε, where there is no noise."""


class Figures:
    """What was measured; kept after every one.

    Args:
        path: of the JSON file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.found: dict[str, float] = content.get("test", {})

    def measure(self, key: str, made: Callable[[], float]) -> None:
        """Measures what is not there yet."""
        if key in self.found:
            return
        started = time.perf_counter()
        self.found[key] = round(made(), 4)
        content = {"version": __version__, "torch": torch.__version__, "test": self.found}
        write_whole(self._path, (json.dumps(content, indent=1) + "\n").encode())
        sys.stderr.write(f"{key}: {self.found[key]:.4f} ({time.perf_counter() - started:.0f} s)\n")

    def of(self, name: str, level: str, way: str, epsilon: float | None) -> list[float]:
        """Of all seeds; None for no noise."""
        return list(self.by_seed(name, level, way, epsilon).values())

    def by_seed(self, name: str, level: str, way: str, epsilon: float | None) -> dict[str, float]:
        """Seed → figure; None for no noise."""
        prefix = f"{name}/{level}/{way}/{NONE if epsilon is None else f'{epsilon:g}'}/"
        return {key.removeprefix(prefix): value for key, value in self.found.items() if key.startswith(prefix)}

    def sets(self) -> list[str]:
        """Those of which anything was measured."""
        return list(dict.fromkeys(key.split("/")[0] for key in self.found))


def shown(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return "–"
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
