"""Small unions: banks with accounts of their own, which pay each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch_geometric.data import Data

from tests.roles.federation import Settings, merge
from veilgraph.core.types import PartyId
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import POOLED
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.twin import train_and_restore_best
from veilgraph.paradigms.union.inputs import network_of
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.paradigms.union.twin import begin_program, joint_context
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

Banks = tuple[list[PartyGraph], dict[PartyId, list[str]]]


ALMOST = 0.02
"""The softmax of a step is (1 + z/243)^243 over its sum, and the twin's is the same: what is left is rounding."""
JUDGED: Settings = {"train": {"select_by": "auc", "evaluate_every": 1}}
UNDIRECTED: Settings = {"model": {"directed": False, "blocks": ["own", "pooled.1", "each.1"]}}
BOOSTED: Settings = {"model": {"blocks": ["own", "boosting", "pooled.6"]}}
ACROSS: Settings = {"across": "N"}
MAJORITY: Settings = {"trust": "majority"}
"""The network deals, or the last bank that does not report."""
NOBODY: Settings = {"trust": "nobody", "timeout_s": 120}
JOINT: Settings = {"model": {"blocks": ["own", "each.1"]}, "train": {"epochs": 6, "learning_rate": 0.5}}


def banks(holders: int = 3, *, accounts: int = 30, directed: bool = True, seed: int = 1) -> Banks:
    """Holders A, B, … of so many accounts each with three columns, and random payments between all of them."""
    generator = torch.Generator().manual_seed(seed)
    nodes = holders * accounts
    labels = torch.arange(nodes) % 2
    features = torch.randn(nodes, 3, generator=generator) + labels[:, None]
    ends = torch.randint(nodes - 1, (2, 3 * nodes), generator=generator)
    ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)
    whole = Data(x=features, edge_index=ends if directed else torch.cat([ends, ends.flip(0)], 1), y=labels)
    place = torch.arange(nodes) // 2 % 5
    whole.train_mask, whole.val_mask, whole.test_mask = place < 2, place == 2, place > 2
    home = torch.randperm(nodes, generator=generator) % holders
    found = split_at_home(PartyGraph.from_data(POOLED, whole), "ABCDEF"[:holders], home)
    return [graph for graph, _ in found], {graph.party: ids for graph, ids in found}


def small_job(holders: int = 3, *changes: Settings) -> UnionJob:
    base: Settings = {
        "paradigm": "union",
        "seed": 5,
        "timeout_s": 30,
        "data": {"dataset": "synthetic", "holders": holders, "feature_scaling": "standard"},
        "model": {"network": "mlp", "hidden": 4, "blocks": ["own", "neighbours", "each.1", "pooled.2"]},
        "train": {"epochs": 3, "checkpoint_every": 1, "learning_rate": 0.25, "select_by": "last"},
    }
    content: dict[str, Any] = dict(base)
    for change in changes:
        content = merge(content, change)
    return union(parse_job(content))


def without(found: Banks, holder: PartyId, other: PartyId) -> Banks:
    """Where one holder's tables lack its edges with another's nodes."""
    graphs, ids = found
    kept = list[PartyGraph]()
    for graph in graphs:
        names: Sequence[str] = ids[graph.party]
        there = torch.tensor([name.startswith(f"{other}/") for name in names])
        lost = there[graph.edge_index].any(0) if graph.party == holder else torch.zeros(graph.num_edges).bool()
        kept.append(graph.with_edges(~lost))
    return kept, ids


def by_name(found: Banks) -> Mapping[PartyId, PartyGraph]:
    return {graph.party: graph for graph in found[0]}


NET = "N"


def with_network(found: Banks, *, knows: bool = False) -> Banks:
    """The same banks and a network that has the payments between them, which they have in their books if they know."""
    graphs, ids = found
    own, names = network_of(NET, [(graph, ids[graph.party]) for graph in graphs])
    left, kept = list[PartyGraph](), dict[PartyId, list[str]]()
    for graph in graphs:
        inside = graph.with_edges((graph.edge_index < graph.common).all(0)).common_part()
        left.append(graph if knows else inside)
        kept[graph.party] = ids[graph.party][: left[-1].num_nodes]
    return [*left, own], {**kept, NET: names}


def unlabelled(found: Banks, holder: PartyId) -> Banks:
    """Where one holder has no labels."""
    bare = {"labels": None, "train_mask": None, "val_mask": None, "test_mask": None, "num_classes": None}
    graphs, ids = found
    return [replace(graph, **bare) if graph.party == holder else graph for graph in graphs], ids  # type: ignore[arg-type]


def trained(job: UnionJob, found: Banks, out: Path, *, record_views: bool = False) -> RunDirectory:
    graphs, ids = found
    train(job, out, parties=graphs, ids=ids, record_views=record_views)
    return RunDirectory.open(out)


def predicted(run: RunDirectory, party: PartyId) -> Tensor:
    return load_predictions(run.party(party)).uncalibrated.double()


def of_twin(job: UnionJob, found: Banks) -> dict[PartyId, Tensor]:
    inputs = PARADIGMS["union"].data.accept(job, *found)
    program = train_and_restore_best(job, begin_program(job, inputs.graphs, inputs.ids))
    blocks = joint_context(job, inputs.graphs, inputs.ids).sizes.blocks
    told = program.predict()
    assert told is not None
    logits = logits_of(told) if job.output == "margins" else torch.nn.functional.one_hot(told[:, 0].long()) * 30.0
    return {party: logits[block.rows].softmax(1) for party, block in blocks.items() if block.size}


def weighted(found: Banks, holders: str = "ABCDEF") -> Banks:
    """Where the edges of some holders have amounts: of an edge the same at both of its ends' holders."""
    graphs, ids = found
    told = list[PartyGraph]()
    for graph in graphs:
        names = [text if "/" in text else f"{graph.party}/{text}" for text in ids[graph.party]]
        amounts = [1.0 + crc32(f"{names[s]}>{names[t]}".encode()) % 5000 for s, t in graph.edge_index.T.tolist()]
        told.append(replace(graph, edge_weight=torch.tensor(amounts)) if graph.party in holders else graph)
    return told, ids


def job_of(found: Banks, *changes: Settings) -> UnionJob:
    """With the holders that there are, which a job of graphs from Python does not name."""
    names = [graph.party for graph in found[0]]
    named: Settings = {"data": {"dataset": None, "graphs": {name: f"{name}.safetensors" for name in names}}}
    return small_job(len(names), named, *([ACROSS] if NET in names else []), *changes)
