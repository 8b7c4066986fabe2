"""What canaries in a run's own data prove of a private training and of votes with noise, honest and with a fault.

``python -m research.run_canaries averaging EPSILON CANARIES FAULT [RUNS]``, or ``sealed``, trains on PubMed (two
holders, D = 4, 60 rounds) or Cora (two holders), and prints what the other holder, or the label holder, proves.
FAULT is ``honest``, ``noise=SHARE`` (so much of the noise is added), and of averaging ``again`` (one noise for all
rounds), ``rate=FACTOR`` (so much more is drawn than is counted) and ``no-clip``. Figures are in
docs/reference/canaries.md.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor
from torch.nn import functional
from veilgraph_averaging.private import sampled
from veilgraph_averaging.private.sampled import SampledSum

from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import save_party
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train

_BOUND = 4
_BY_NODES = PartitionSettings(by="nodes")
_NOISE, _DRAWN, _NOISED = SampledSum.noise, SampledSum.drawn, DealerMachine.noised


def averaging_job(epsilon: float, canaries: int, folder: Path) -> JobSettings:
    """A private training on PubMed, the edges beyond four at a node left out."""
    data = DataSettings(dataset="pubmed", holders=2, split=(0.5, 0.25, 0.25), stratify=False, partition=_BY_NODES)
    for part in load_parts(data, 0):
        graph = part.graph
        kept = graph.with_edges(bound_degrees(graph.edge_index, graph.num_nodes, _BOUND))
        ids = [f"{graph.party}{row}" for row in range(graph.num_nodes)]
        rows = functional.normalize(graph.features.to_dense(), dim=1)
        save_party(replace(kept, features=rows), folder / f"{graph.party}.safetensors", ids)
    noise = {"epsilon_total": epsilon, "degree_bound": _BOUND, "sampling_rate": 0.05, "batch": 246, "delta": 1e-5}
    return parse_job(
        {
            "paradigm": "averaging",
            "preset": "paper",
            "data": {"graphs": {name: str(folder / f"{name}.safetensors") for name in "AB"}},
            "model": {"dim": 16, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}},
            "averaging": {
                "rule": {"name": "fedsgd"},
                "local_epochs": 1,
                "privacy": {**noise, "canaries": canaries},
            },
            "train": {"epochs": 60, "learning_rate": 4.0, "patience": None, "select_by": "last"},
        }
    )


def sealed_job(epsilon: float, canaries: int, seed: int) -> JobSettings:
    """Votes with noise on Cora."""
    of_edges = {"unit": "edge", "epsilon_total": epsilon}
    said: dict[str, Any] = {
        "paradigm": "sealed",
        "seed": seed,
        "data": {"dataset": "cora", "holders": 2},
        "model": {"edge_slots": 1 << 15},
        "train": {"select_by": "last"},
        "privacy": {**of_edges, "canaries": canaries},
    }
    return parse_job(said)


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """With a fault in what adds the noise."""
    name, _, number = fault.partition("=")
    share, kept = float(number or 1), dict[tuple[int, int], Tensor]()

    def noise(self: SampledSum, size: int, source: SecretSource) -> Tensor:
        found = share * _NOISE(self, size, source)
        return kept.setdefault((id(source), size), found) if name == "again" else found

    def drawn(self: SampledSum, count: int, source: SecretSource) -> list[int]:
        return _DRAWN(replace(self, rate=min(1.0, share * self.rate)), count, source)

    def clipped(rows: Tensor, clip: float, order: int, step: float) -> Tensor:
        return torch.trunc(rows.to(torch.float64) / step) * step

    def noised(self: DealerMachine, summands: Any, epsilon: float) -> Any:  # noqa: ANN401 - as it is
        return _NOISED(self, summands, epsilon / share if share else math.inf)

    faults: dict[str, list[Any]] = {
        "noise": [patch.object(SampledSum, "noise", noise), patch.object(DealerMachine, "noised", noised)],
        "again": [patch.object(SampledSum, "noise", noise)],
        "rate": [patch.object(SampledSum, "drawn", drawn)],
        "no-clip": [patch.object(sampled, "clip_to_grid", clipped)],
    }
    chosen = faults.get(name, [])
    for each in chosen:
        each.start()
    try:
        yield
    finally:
        for each in chosen:
            each.stop()


def main() -> None:
    """Prints a line for every finding."""
    paradigm, epsilon, canaries, fault = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    for number in range(int(sys.argv[5]) if len(sys.argv) > 5 else 1):
        with tempfile.TemporaryDirectory() as name:
            folder, is_sealed = Path(name), paradigm == "sealed"
            job = sealed_job(epsilon, canaries, number) if is_sealed else averaging_job(epsilon, canaries, folder)
            with planted(fault):
                train(job, folder / "run", record_views=True)
            adversary = "A" if is_sealed else "B"
            for each in audit(folder / "run", AuditPlan((adversary,), ("epsilon", "noise-level"))).findings:
                shown = each.note if each.value is None else f"{each.value.low:.3g} {each.note}"
                typer.echo(f"{paradigm} {epsilon:g} {canaries} {fault} {each.attack} {each.passed}: {shown}")


if __name__ == "__main__":
    main()
