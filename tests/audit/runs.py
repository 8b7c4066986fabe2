"""Runs that tests of the audit share, and what is told of them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import save_party
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.protocol.job import CHECKS, JobSettings
from veilgraph.protocol.job_file import parse_job

NODES = 240


def job_in(folder: Path, seed: int = 0, **changes: object) -> JobSettings:
    data = synthetic_data(NODES, 12, 3, seed)
    names = ["A", "B"]
    folder.mkdir(parents=True, exist_ok=True)
    for graph in split_vertically(data, names=names, label_holder="A", seed=seed):
        save_party(graph, folder / f"{graph.party}.safetensors")
    content: dict[str, object] = {
        "name": "audited",
        "seed": seed,
        "data": {"graphs": {name: str(folder / f"{name}.safetensors") for name in names}, "label_holder": "A"},
        "model": {"dim": 8, "local": {"model": "sage-mean", "hops": 2}},
        "train": {"epochs": 4, "patience": None},
    }
    return parse_job({**content, **changes})


def same_mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
    return _mask(self, purpose.split("/", maxsplit=1)[0], 0, shape)


_mask = PairwiseMasks.mask


VERDICTS = ("uniformity", "epsilon", *CHECKS)
"""Attacks that fail an audit without a limit."""
