"""One job on block models of several sizes: each graph is made, and then trained on, in fresh processes."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from docs.pages import FIGURES
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.party import save_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job

Figures = dict[str, Any]
_MAKE: Final = "--make"
_TRAIN: Final = "--train"


@dataclass(frozen=True)
class Sizes:
    """What is measured, at which sizes.

    Attributes:
        module: ``python -m`` of the benchmark.
        file: name of its files in ``docs/figures``, without suffix.
        nodes: of the graphs, where nothing else is asked for.
        features: F of both holders together, where nothing else is asked for.
        mean_degree: of the graphs, likewise.
        job: N → settings of it, without ``data``.
        train: trains once in this process, into a folder; the figures.
        draw: a picture of the figures.
        section: a table of them, in Markdown.
        keep: puts those with a goal into the history.
    """

    module: str
    file: str
    nodes: Sequence[int]
    features: int
    mean_degree: float
    job: Callable[[int], dict[str, Any]]
    train: Callable[[JobSettings, int, Path], Figures]
    draw: Callable[[list[Figures], Path], None]
    section: Callable[[list[Figures]], list[str]]
    keep: Callable[[list[Figures]], None]

    def main(self) -> None:
        """Measures every size, printing as it goes."""
        if sys.argv[1:2] in ([_MAKE], [_TRAIN]):
            what, nodes, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
            as_asked = replace(self, features=int(sys.argv[4]), mean_degree=float(sys.argv[5]))
            as_asked._make(nodes, folder) if what == _MAKE else as_asked._train(nodes, folder)
            return
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}")
        parser.add_argument("--nodes", type=int, nargs="*", default=list(self.nodes))
        parser.add_argument("--features", type=int, default=self.features)
        parser.add_argument("--degree", type=float, default=self.mean_degree)
        parser.add_argument("--out", type=Path, default=FIGURES)
        asked, figures = parser.parse_args(), list[Figures]()
        as_asked = replace(self, features=asked.features, mean_degree=asked.degree)
        for nodes in asked.nodes:
            figures.append(as_asked._measure(nodes))
            print(json.dumps(figures[-1]), flush=True)
            (asked.out / f"{self.file}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        self.keep(figures)
        self.draw(figures, asked.out / f"{self.file}.svg")
        print("\n".join(self.section(figures)))

    def _measure(self, nodes: int) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            self._run(_MAKE, nodes, folder)
            made = time.perf_counter() - started
            output = self._run(_TRAIN, nodes, folder)
        edges = round(nodes * self.mean_degree / 2)
        return {"nodes": nodes, "edges": edges, "seconds_to_make": made, **json.loads(output.splitlines()[-1])}

    def _run(self, what: str, nodes: int, folder: str) -> str:
        shape = [str(nodes), folder, str(self.features), str(self.mean_degree)]
        command = [sys.executable, "-W", "ignore", "-m", self.module, what, *shape]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def _make(self, nodes: int, folder: Path) -> None:
        made = {"nodes": nodes, "features": self.features, "mean_degree": self.mean_degree}
        for graph in load_parties(self._job(nodes, {"dataset": "block-model", "block_model": made}).data, 0):
            save_party(graph, folder / f"{graph.party}.safetensors")

    def _train(self, nodes: int, folder: Path) -> None:
        graphs = {name: str(folder / f"{name}.safetensors") for name in "AB"}
        job = self._job(nodes, {"graphs": graphs, "label_holder": "A"})
        print(json.dumps(self.train(job, nodes, folder / "run")))

    def _job(self, nodes: int, data: dict[str, Any]) -> JobSettings:
        return parse_job({"name": self.file, "preset": "paper", "timeout_s": 3600, "data": data, **self.job(nodes)})
