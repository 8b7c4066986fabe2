"""Small worlds with two attributes that edges and features tell, and jobs over them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from veilgraph_embeddings.settings import EmbedJob, parse_embed_job
from veilgraph_embeddings.sources import world_of
from veilgraph_embeddings.world import World


def crossed(nodes: int = 160, *, seed: int = 0, degree: int = 8) -> Data:
    """Four blocks; the useful attribute is the block halved, the private one whether it is odd."""
    generator = torch.Generator().manual_seed(seed)
    block = torch.arange(nodes) % 4
    ends = torch.randint(nodes, (2, 4 * nodes * degree), generator=generator)
    same = block[ends[0]] == block[ends[1]]
    chosen = same | (torch.rand(len(same), generator=generator) < 0.1)
    edges = ends[:, chosen & (ends[0] != ends[1])][:, : nodes * degree // 2]
    means = torch.tensor([[useful, private, *[0.0] * 6] for useful in (-1.0, 1.0) for private in (-1.0, 1.0)])
    data = Data(x=1.5 * means[block] + torch.randn(nodes, 8, generator=generator), edge_index=edges, y=block // 2)
    data.private = block % 2
    return data


QUICK: dict[str, Any] = {
    "dim": 8,
    "hidden": 16,
    "epochs": 40,
    "learning_rate": 0.02,
    "keep_weight": 1,
    "link_weight": 1,
}
OF: dict[str, dict[str, Any]] = {
    "plain": QUICK,
    "apge": {**QUICK, "hide_weight": 0.1, "match_weight": 0.5},
    "noise": {"dim": 8, "epsilon": 8.0},
}


def job(way: str = "apge", **changes: Any) -> EmbedJob:
    """A quick job over ``crossed``."""
    settings: dict[str, Any] = {
        "hide": "private",
        "method": {"name": way, **OF[way]},
        "evaluation": {"families": ["logistic", "neighbours"], "links": 0.0},
    }
    return parse_embed_job({**settings, **changes})


def world(data: Data | None = None, **changes: Any) -> World:
    """The world of ``crossed``, or of other data."""
    return replace(world_of(job(), crossed() if data is None else data), **changes)


def rows_by_id(ids: list[str], rows: Tensor) -> Tensor:
    """Published rows in the order of the graph's numbers."""
    return rows[torch.tensor([int(each) for each in ids]).argsort()]
