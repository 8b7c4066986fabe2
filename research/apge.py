"""Leakage of embeddings before and after adversarial training, and under noise: tables of docs/guides/embeddings.md.

``python -m research.apge run WORLD [--seeds S] [--store FILE]`` measures, a line of JSON for each embedding; what is
in the file is not measured again. ``python -m research.apge table [--store FILE]`` prints the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import subgraph
from veilgraph_embeddings.assess import assess, by_families, row_means, standardised
from veilgraph_embeddings.attackers import FAMILIES, GRAPH_FAMILIES
from veilgraph_embeddings.making import given, held_out
from veilgraph_embeddings.measure import best
from veilgraph_embeddings.method import Embedded, Tools
from veilgraph_embeddings.release import Door
from veilgraph_embeddings.report import figures
from veilgraph_embeddings.settings import EmbedJob, parse_embed_job
from veilgraph_embeddings.sources import world_of
from veilgraph_embeddings.world import World, drawn, to_scipy

from research.apge_table import tables
from veilgraph import datasets
from veilgraph.core.randomness import LearningStreams
from veilgraph.privacy.ledger import Ledger

STORE: Final = Path("runs") / "apge.jsonl"
_DIM: Final = 16
_BLOCKS: Final = {"nodes": 3000, "classes": 8, "features": 64, "signal": 2.0, "homophily": 0.7, "degree_exponent": None}

WORLDS: Final[dict[str, dict[str, Any]]] = {
    "blocks": {"keep": "useful", "hide": "private"},
    "pubmed": {"data": {"dataset": "pubmed"}, "hide": {"column": 121, "cut": [1e-9]}},
    "facebook": {"hide": "private"},
}
"""Made: 8 blocks, of which the useful attribute is the number halved, and the private one whether it is odd. Public:
the label is useful, and one word, or one tag, of the features is private. Of Facebook's pages 6,000 are drawn."""
_BOUNDS: Final = {"blocks": 10, "pubmed": 10, "facebook": 10}
_PAGES: Final = 6000
_TAG: Final = 1105

_PAPER: Final = {"hide_weight": 1.0, "prior_weight": 0.1, "match_weight": 0.0}
METHODS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"name": "plain"},
    "apge": {"name": "apge"},
    "apge, the paper's parts alone": {"name": "apge", **_PAPER},
    "noise, ε = 8": {"name": "noise", "epsilon": 8.0},
    "noise, ε = 32": {"name": "noise", "epsilon": 32.0},
    "noise, ε = 128": {"name": "noise", "epsilon": 128.0},
}
_STRONGER: Final = ("plain", "apge")


def job_of(world: str, method: str, seed: int) -> EmbedJob:
    """One embedding's job."""
    chosen = {**METHODS[method], "dim": _DIM}
    chosen |= {"degree_bound": _BOUNDS[world]} if chosen["name"] == "noise" else {}
    return parse_embed_job({**WORLDS[world], "name": world, "seed": seed, "method": chosen})


def graph_of(world: str, seed: int) -> Data | None:
    """The made graph, or a part of a public one; None where the job names it all."""
    if world == "facebook":
        return _pages(seed)
    if world != "blocks":
        return None
    data = datasets.load("block-model", block_model=_BLOCKS, seed=seed)
    data.useful, data.private = data.y // 2, data.y % 2
    return data


def _pages(seed: int) -> Data:
    """So many of Facebook's pages, drawn by the seed, with the edges between them; one tag is apart."""
    data = datasets.load("facebook")
    chosen = torch.randperm(len(data.y), generator=torch.Generator().manual_seed(seed))[:_PAGES].sort().values
    edges, _ = subgraph(chosen, data.edge_index, relabel_nodes=True, num_nodes=len(data.y))
    rows = to_scipy(data.x)[chosen.numpy()].toarray()
    private = torch.from_numpy(rows[:, _TAG].astype(np.int64))
    kept = torch.from_numpy(np.delete(rows, _TAG, axis=1)).to_sparse_csr()
    return Data(x=kept, edge_index=edges, y=data.y[chosen], private=private)


def measured(world: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is told from one embedding, as a line of the store."""
    job = job_of(world, method, seed)
    found = world_of(job, graph_of(world, seed))
    held = held_out(job, found)

    def ledger(delta: float, budget: float) -> Ledger:
        return Ledger.open(folder / "ledger.jsonl", delta, budget, job=job.hash())

    tools = Tools(LearningStreams(seed, "embed"), Door(ledger), lambda epoch, losses: None)
    made: Embedded = job.method.kind.embed(given(found, held), job.method, tools)
    line = {"world": world, "method": method, "seed": seed, **figures(assess(made.rows, found, held, seed=seed))}
    if method in _STRONGER:
        line["stronger"] = dict(stronger(made, found, job))
    return line


def stronger(made: Embedded, world: World, job: EmbedJob) -> Iterator[tuple[str, float]]:
    """Advantages of attackers that know more than the report's."""
    seed, seen = job.seed, standardised(made.rows)
    known = held_out(job, world).known
    most = drawn("known", world.num_nodes, 0.9, seed).numpy()
    useful = np.eye(len(world.keep.classes))[world.keep.codes.numpy()]
    near = row_means(world.pairs, world.num_nodes)
    strong = {name: FAMILIES[name] for name in ("logistic", "kernel", "boosting")}
    yield "knows nine of ten nodes", best([*by_families(seen, world.hide, most, None, strong, seed)]).advantage.value
    beside = np.hstack([seen, useful])
    yield (
        "knows the useful attribute",
        best([*by_families(beside, world.hide, known, None, strong, seed)]).advantage.value,
    )
    alone = by_families(useful, world.hide, known, None, strong, seed)
    yield "the useful attribute alone", best([*alone]).advantage.value
    for told in by_families(seen, world.hide, known, near, GRAPH_FAMILIES, seed):
        yield {"gnn": "has the edges", "edges-alone": "the edges alone"}[told.family], told.advantage.value


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m research.apge", description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=STORE)
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.store.read_text().splitlines()] if asked.store.exists() else []
    if asked.what == "table":
        sys.stdout.write(tables(lines, list(METHODS)))
        return
    torch.set_num_threads(1)
    done = {(line["world"], line["method"], line["seed"]) for line in lines}
    for seed in range(asked.seeds):
        for world in asked.worlds:
            for method in asked.methods:
                if (world, method, seed) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder, asked.store.open("a") as store:
                    store.write(json.dumps(measured(world, method, seed, Path(folder))) + "\n")


if __name__ == "__main__":
    _main()
