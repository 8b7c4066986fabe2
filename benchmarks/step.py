"""A whole training step of the federation against the pooled plaintext model, in one run on one machine.

``python -m benchmarks.step [DATA ...]`` prints the CPU time of a step, of all parties and of PyG, each on one thread of
torch. Other work on the machine changes that far less than how long a step takes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from benchmarks import goals
from benchmarks.graphs import public
from benchmarks.traffic import step_bytes
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.mpc.ring import dense_operand
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult, train
from veilgraph.samples.shipped import with_overrides

DIM = 64
HOPS = 2
STEPS = 20
_WARM = 5
_REPEATS = 3


@dataclass(frozen=True)
class StepFigures:
    """Milliseconds per training step: medians over steps, then over interleaved repeats."""

    dataset: str
    federated_ms: float
    pyg_ms: float
    pooled_ms: float
    sent_bytes: dict[str, float]
    formula_bytes: dict[str, int]

    @property
    def ratio(self) -> float:
        """Federation over the pooled PyG model."""
        return self.federated_ms / self.pyg_ms


class PooledPyG(nn.Module):
    """The same network as a PyG user writes it: dense features, SAGEConv with mean, one hidden layer, output."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.initial = nn.Linear(features, DIM, bias=False)
        self.hops = nn.ModuleList(SAGEConv(DIM, DIM) for _ in range(HOPS))
        self.deep = nn.Linear(DIM, DIM)
        self.output = nn.Linear(DIM, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits [N, C]."""
        h = self.initial(x)
        for hop in self.hops:
            h = hop(h, edge_index).tanh()
        h = functional.normalize(h)
        logits: Tensor = self.output(functional.dropout(self.deep(h).sigmoid(), 0.5, self.training))
        return logits


def job(steps: int) -> JobSettings:
    """Collaborative, masked mean, K = 2 hops of sage-mean, d = 64; no evaluation, no checkpoints within the steps."""
    return parse_job(
        {
            "name": "benchmark",
            "preset": "paper",
            "model": {"dim": DIM, "local": {"model": "sage-mean", "hops": HOPS}},
            "train": {"epochs": steps, "patience": None, "evaluate_every": steps, "checkpoint_every": steps},
        }
    )


def measure(dataset: str) -> StepFigures:
    """Federated, PyG and own pooled steps in turn, several times."""
    graphs = public(dataset)
    everything = pool(graphs, "A")
    rounds = [(federated_ms(graphs, job(STEPS)), pyg_ms(everything), _own(everything)) for _ in range(_REPEATS)]
    federated, pyg, own = (statistics.median(column) for column in zip(*rounds, strict=True))
    short, long = (_federated(graphs, job(steps)).summary["sent_bytes"] for steps in (2, 4))
    sent = {party: (long[party] - short[party]) / 2 for party in long}
    features = {graph.party: graph.num_features for graph in graphs}
    return StepFigures(dataset, federated, pyg, own, sent, step_bytes(job(1), graphs[0].num_nodes, features))


def federated_ms(graphs: list[PartyGraph], settings: JobSettings) -> float:
    """Median milliseconds of the job's training steps, the first few left out."""
    times: list[float] = [record["step_seconds"] * 1e3 for record in _federated(graphs, settings).metrics[_WARM:]]
    return statistics.median(times)


def _federated(graphs: list[PartyGraph], settings: JobSettings) -> TrainResult:
    with tempfile.TemporaryDirectory() as folder:
        return train(settings, Path(folder) / "run", parties=graphs)


def federated_cpu_ms(graphs: list[PartyGraph]) -> float:
    """CPU milliseconds of a training step of all parties: of a long job less those of a short one."""
    times = []
    for steps in (STEPS, 3 * STEPS):
        started = time.process_time()
        _federated(graphs, job(steps))
        times.append((time.process_time() - started) * 1e3)
    return (times[1] - times[0]) / (2 * STEPS)


def pyg_ms(graph: PartyGraph, clock: Callable[[], float] = time.perf_counter) -> float:
    """Median milliseconds of a step of the pooled PyG model, by a clock of seconds."""
    features = graph.features.to_dense()
    model = PooledPyG(graph.num_features, graph.num_classes or 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    labels, mask = graph.labels, graph.train_mask
    if labels is None or mask is None:
        raise ValueError("the pooled graph has labels")

    def step() -> None:
        optimizer.zero_grad()
        logits = model(features, graph.edge_index)
        functional.cross_entropy(logits[mask], labels[mask]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return _median_ms(step, clock)


def _own(graph: PartyGraph) -> float:
    settings = with_overrides(job(STEPS), {"model.initial.method": "individual"})  # W in float32, by Adam
    return _plain_ms(settings, [graph], time.perf_counter)


def _plain_ms(settings: JobSettings, graphs: Sequence[PartyGraph], clock: Callable[[], float]) -> float:
    network = PlainNetwork(settings, graphs, graphs[0].party)
    epochs = iter(range(1, STEPS + 1))
    return _median_ms(lambda: network.train_step(next(epochs)), clock)


def floor_cpu_ms(graphs: Sequence[PartyGraph]) -> float:
    """CPU milliseconds of a step of two holders without masks, rounding and messages, by the same libraries.

    The job's twin in the clear, and the products that hide features: with U at the dealer, with E at the other holder.
    """
    total = _plain_ms(job(STEPS), graphs, time.process_time)
    for graph in graphs:
        shapes = (graph.num_nodes, graph.num_features), (graph.num_features, DIM), (graph.num_nodes, DIM)
        mask, weights, gradient = (torch.randint(-(2**63), 2**63 - 1, shape) for shape in shapes)
        operand = dense_operand(mask, twice=True)
        for product in (partial(operand.times, weights), partial(operand.transposed_times, gradient)):
            total += 2 * _median_ms(product, time.process_time)
    return total


def _median_ms(step: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(STEPS):
        started = clock()
        step()
        times.append((clock() - started) * 1e3)
    return statistics.median(times[_WARM:])


def section(datasets: Sequence[str]) -> list[str]:
    """Measure the CPU time of a step, medians of interleaved repeats, and describe it as lines of Markdown."""
    lines = ["| data | CPU of all parties | CPU of PyG | all parties / PyG | floor / PyG |", "|---|---|---|---|---|"]
    for dataset in datasets:
        graphs = public(dataset)
        everything = pool(graphs, "A")
        repeats = [
            (federated_cpu_ms(graphs), pyg_ms(everything, time.process_time), floor_cpu_ms(graphs))
            for _ in range(_REPEATS)
        ]
        federated, pyg, floor = (statistics.median(column) for column in zip(*repeats, strict=True))
        goals.keep(f"step {dataset}", federated / pyg, floor / pyg)
        ratios = f"{federated / pyg:.2f} | {floor / pyg:.2f}"
        lines.append(f"| {dataset} | {federated:.1f} ms | {pyg:.1f} ms | {ratios} |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("datasets", nargs="*", metavar="DATA", help="default: cora, citeseer and pubmed")
    torch.set_num_threads(1)
    print("\n".join(section(parser.parse_args().datasets or ("cora", "citeseer", "pubmed"))))
