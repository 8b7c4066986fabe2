"""Small graphs of four holders for every task, and their twins."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from veilgraph_averaging.settings import AveragingJob

from tests.paradigms.averaging.jobs import NAMES
from tests.paradigms.averaging.jobs import job as small_job
from tests.roles.federation import Settings
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.local.build import FirstSettings

SAID: Mapping[str, Settings] = {
    "values": {},
    "values, bounds": {"name": "values", "low": -4.0, "high": 12.0},
    "links": {"bins": 40, "negatives": 2},
    "links, mlp": {"name": "links", "decoder": "mlp", "bins": 40},
    "graphs": {"readout": "max"},
    "trajectories": {"observe": 3, "predict": 4, "split": (0.4, 0.25), "radius": 2.0, "batch": 1.0},
}


def task_job(task: str, *changes: Settings) -> AveragingJob:
    said = {"name": task, **SAID[task]}
    if task == "trajectories":  # its network has none of these
        changes = (*changes, {"model": {"dropout": 0.5, "local": FirstSettings().model_dump()}})
    return small_job({"averaging": {"task": said}, "data": {"feature_scaling": "none"}}, *changes)


def graphs_for(task: str, nodes: int = 24) -> list[PartyGraph]:
    """One of each holder, by its name alone."""
    return [_graph(name, task.partition(",")[0], nodes + 6 * place) for place, name in enumerate(NAMES)]


def _graph(party: str, task: str, nodes: int) -> PartyGraph:
    generator = torch.Generator().manual_seed(ord(party))
    if task == "trajectories":
        return _recorded(party, generator)
    x = torch.randn(nodes, 3, generator=generator)
    size = 6
    membership = torch.arange(nodes) // size if task == "graphs" else None
    ends = torch.randint(nodes, (2, 3 * nodes), generator=generator)
    if membership is not None:
        ends[1] = membership[ends[0]] * size + ends[1] % size
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    if task == "links":
        return PartyGraph(party, x, edges)
    split = torch.arange(nodes) % 3 if membership is None else membership % 3
    masks = {f"{name}_mask": split == place for place, name in enumerate(("train", "val", "test"))}
    if membership is None:
        return replace(PartyGraph(party, x, edges), targets=3 + x[:, 0] + x[:, 1] ** 2, **masks)  # type: ignore[arg-type]
    labels = (torch.arange(nodes // size) % 2)[membership]
    graph = PartyGraph(party, x + labels[:, None], edges, labels=labels, num_classes=2, membership=membership)
    return replace(graph, **masks)  # type: ignore[arg-type]


def _recorded(party: str, generator: torch.Generator) -> PartyGraph:
    """Six objects that walk for 30 frames; two of them come later, or go before."""
    walked = (
        3 * torch.rand(6, 1, 2, generator=generator)
        + 0.3 * torch.randn(6, 1, 2, generator=generator) * (torch.arange(30)[None, :, None])
    )
    walked = walked + 0.1 * torch.randn(6, 30, 2, generator=generator).cumsum(1)
    here = torch.ones(6, 30, dtype=torch.bool)
    here[0, :11] = here[1, 20:] = False
    rows = torch.cat([here.nonzero(), walked[here]], dim=1)
    return PartyGraph(party, rows[torch.randperm(len(rows), generator=generator)], torch.empty(2, 0).long())


def ids_of(graphs: list[PartyGraph]) -> dict[str, list[str]]:
    return {graph.party: [f"{graph.party}{row}" for row in range(graph.num_nodes)] for graph in graphs}
