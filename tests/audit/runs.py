"""Runs that tests of the audit share, and what is told of them."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.protocol.job import CHECKS, JobSettings
from veilgraph.protocol.job_file import parse_job

NODES = 240


def saved(folder: Path, graphs: Iterable[PartyGraph]) -> dict[str, str]:
    """Holder → the file of its graph, as a job's ``data.graphs``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for graph in graphs:
        paths[graph.party] = str(folder / f"{graph.party}.safetensors")
        save_party(graph, Path(paths[graph.party]))
    return paths


def divided(folder: Path, names: str, nodes: int, columns: int, seed: int = 0) -> dict[str, object]:
    """``data`` of a job: a made graph of three classes, divided by columns, whose labels A has."""
    whole = synthetic_data(nodes, columns, 3, seed)
    graphs = split_vertically(whole, names=list(names), label_holder="A", seed=seed, num_classes=3)
    return {"graphs": saved(folder, graphs), "label_holder": "A"}


def job_in(folder: Path, seed: int = 0, **changes: object) -> JobSettings:
    content: dict[str, object] = {
        "name": "audited",
        "seed": seed,
        "data": divided(folder, "AB", NODES, 12, seed),
        "model": {"dim": 8, "local": {"model": "sage-mean", "hops": 2}},
        "train": {"epochs": 4, "patience": None},
    }
    return parse_job({**content, **changes})


def same_mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
    return _mask(self, purpose.split("/", maxsplit=1)[0], 0, shape)


_mask = PairwiseMasks.mask


VERDICTS = ("uniformity", "epsilon", *CHECKS)
"""Attacks that fail an audit without a limit."""
