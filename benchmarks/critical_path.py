"""The critical path of a training step: what it would take if every party had a machine of its own like this one.

``python -m benchmarks.critical_path [DATA ...]``. All parties run in threads of one process, one of which computes at a
time (``benchmarks.turns``); how long they had to follow each other is added up with no time for messages.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from benchmarks import memory, step
from benchmarks.graphs import public, random_parties
from benchmarks.turns import Moment, TurnLink, Turns
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.mpc.ring import available_cores
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.inputs import gather_inputs, save_inputs
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.party import run_simulated
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.shipped import with_overrides

ARXIV: Final = "arXiv-sized"
_STEPS: Final = {"cora": 25, "citeseer": 25, "pubmed": 25, ARXIV: 10}
_WARM: Final = 4


Worker = tuple[PartyId, bool]
"""A party, and whether its background threads or its main one."""


@dataclass(frozen=True)
class Share:
    """Milliseconds that a party's thread computes in a step: on the critical path and off it."""

    on_path: float
    off_path: float


@dataclass(frozen=True)
class PathFigures:
    """Milliseconds of the median step, and of the pooled PyG model's on the same cores."""

    dataset: str
    path_ms: float
    shares: dict[Worker, Share]
    pyg_ms: float

    @property
    def ratio(self) -> float:
        """Critical path over the pooled PyG model."""
        return self.path_ms / self.pyg_ms

    @property
    def busiest_ms(self) -> float:
        """The most that one party computes: a step takes no less where a party has no more cores than this machine."""
        busy = defaultdict[PartyId, float](float)
        for (party, _), share in self.shares.items():
            busy[party] += share.on_path + share.off_path
        return max(busy.values())


def measure(dataset: str) -> PathFigures:
    """The critical path of a public data set's step, or of the arXiv-sized random graph's."""
    graphs, settings, threads = _graphs(dataset), step.job(_STEPS[dataset]), torch.get_num_threads()
    if dataset == ARXIV:
        settings = with_overrides(settings, {"model.initial.learning_rate": 0.001})
    turns, ends = follow(settings, graphs)
    torch.set_num_threads(available_cores())
    try:
        pyg_ms = step.pyg_ms(pool(graphs, "A"))
    finally:
        torch.set_num_threads(threads)
    spans = list(zip(ends[_WARM:], ends[_WARM + 1 :], strict=False))
    before, end = sorted(spans, key=lambda span: span[1].at - span[0].at)[len(spans) // 2]
    return PathFigures(dataset, (end.at - before.at) * 1e3, shares(turns.moments, before, end), pyg_ms)


def follow(settings: JobSettings, graphs: Sequence[PartyGraph]) -> tuple[Turns, list[Moment]]:
    """Trains a job with one thread computing at a time, each with all cores.

    Returns:
        What every thread computed, and the moments at which the label holder sent the gradient of z_L: one a step.
    """
    turns, sent, ends = Turns(), dict[tuple[PartyId, PartyId, Tag], Moment](), list[Moment]()

    def program(run: RunDirectory, party: PartyId) -> Callable[[Link], None]:
        def take_part(link: Link) -> None:
            torch.set_num_threads(available_cores())
            with turns.turn(party):
                run_simulated(run, party, "train", _StepLink(link, turns, sent, ends))

        return take_part

    with tempfile.TemporaryDirectory() as folder, turns.background():
        out = Path(folder) / "run"
        inputs = gather_inputs(settings, list(graphs), None, out)
        run = RunDirectory.create(out, inputs.settings)
        save_inputs(inputs, run)
        parties = (*inputs.settings.data.names, SERVER)
        for party in parties:
            run.party(party).save_seed(settings.seed)
        run_threads({party: program(run, party) for party in parties}, settings.timeout_s, lambda: None)
    return turns, ends


class _StepLink(TurnLink):
    """Notes, too, when the label holder hands over the gradient that begins the way back."""

    def __init__(
        self, link: Link, turns: Turns, sent: dict[tuple[PartyId, PartyId, Tag], Moment], ends: list[Moment]
    ) -> None:
        super().__init__(link, turns, sent)
        self._all_sent, self._ends = sent, ends

    def send(self, to: PartyId, tag: Tag, tensor: torch.Tensor) -> None:
        super().send(to, tag, tensor)
        if tag.kind is Kind.GRADIENT and to == SERVER:
            self._ends.append(self._all_sent[self.party, to, tag])


def shares(moments: Sequence[Moment], before: Moment, end: Moment) -> dict[Worker, Share]:
    """What was computed from ``before`` to ``end`` on the clocks, and how much of it ``end`` had to wait for."""

    def inside(moment: Moment) -> float:
        return max(0.0, min(moment.at, end.at) - max(moment.start, before.at)) * 1e3

    on_path, busy = defaultdict[Worker, float](float), defaultdict[Worker, float](float)
    last: Moment | None = end
    while last is not None and last.at > before.at:
        on_path[last.party, last.background] += inside(last)
        last = last.before
    for moment in moments:
        busy[moment.party, moment.background] += inside(moment)
    return {worker: Share(on_path[worker], busy[worker] - on_path[worker]) for worker in sorted(busy)}


def _graphs(dataset: str) -> list[PartyGraph]:
    if dataset == ARXIV:
        return random_parties(memory.NODES, memory.EDGES, memory.FEATURES, memory.CLASSES)
    return public(dataset)


def section(datasets: Sequence[str] = ("pubmed", ARXIV), *, threads: bool = False) -> list[str]:
    """Measures and describes, as lines of Markdown.

    Args:
        datasets: what is measured.
        threads: whether each thread of a party has a row of its own as well.
    """
    lines = [
        "## The critical path of a step",
        "",
        "The training step as it would be if every party had a machine like this one to itself and messages took no "
        "time. `busiest` is the most that one party computes in a step, which takes no less on cores like these.",
        "",
        "| data | critical path | busiest | PyG | path / PyG |",
        "|---|---|---|---|---|",
    ]
    rows = []
    for dataset in datasets:
        figures = measure(dataset)
        lines.append(
            f"| {dataset} | {figures.path_ms:.1f} ms | {figures.busiest_ms:.1f} ms | {figures.pyg_ms:.1f} ms | "
            f"{figures.ratio:.2f} |"
        )
        rows += [
            f"| {dataset} | {party}{', ahead' if background else ''} | "
            f"{share.on_path:.1f} ms | {share.off_path:.1f} ms |"
            for (party, background), share in figures.shares.items()
        ]
    if threads:  # `ahead`: in the background, for later steps
        lines += ["", "| data | computed by | on the path | off the path |", "|---|---|---|---|", *rows]
    return [*lines, ""]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critical_path", description=__doc__)
    parser.add_argument("datasets", nargs="*", metavar="DATA", help=f"of {', '.join(_STEPS)}; default: pubmed, {ARXIV}")
    print("\n".join(section(parser.parse_args().datasets or ("pubmed", ARXIV), threads=True)))
