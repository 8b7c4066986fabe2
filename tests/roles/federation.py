"""Small federations for tests: data, jobs, and the roles of a job run in threads so that live weights can be seen."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import MASKS, SERVER, Link, PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import Message, RecordedLink
from veilgraph.nn.local.build import CustomModel
from veilgraph.paradigms.vertical.roles import DataHolder, LabelHolder, Server
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.publisher import OPEN
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch import processes as launch
from veilgraph.runtime.session.training import infer, train_step

NODES, FEATURES, CLASSES, DIM = 60, 12, 3, 8
Settings = Mapping[str, Any]


def small_data(seed: int = 0) -> Data:
    return synthetic_data(NODES, FEATURES, CLASSES, seed)


def small_parties(
    holders: int = 2, *, seed: int = 0, label_holder: str = "A", data: Data | None = None
) -> list[PartyGraph]:
    names = [chr(ord("A") + index) for index in range(holders)]
    return split_vertically(data or small_data(seed), names=names, label_holder=label_holder, seed=seed)


def with_own_nodes(graphs: Sequence[PartyGraph], counts: Sequence[int], seed: int = 0) -> list[PartyGraph]:
    """The same common nodes, and at each holder so many more of its own, linked to them and to each other."""
    return [
        _with_own_nodes(graph, count, seed + index) if count else graph
        for index, (graph, count) in enumerate(zip(graphs, counts, strict=True))
    ]


def _with_own_nodes(graph: PartyGraph, count: int, seed: int) -> PartyGraph:
    generator = torch.Generator().manual_seed(seed)
    before, nodes = graph.num_nodes, graph.num_nodes + count
    more = torch.randn(count, graph.num_features, generator=generator).to(graph.features.dtype)
    features = torch.cat([graph.features.to_dense(), more])
    links = torch.stack(
        [
            torch.randint(nodes, (4 * count,), generator=generator),
            torch.randint(before, nodes, (4 * count,), generator=generator),
        ]
    )
    edges = torch.cat([graph.edge_index, links, links.flip(0)], dim=1)
    weight = graph.edge_weight
    grown = replace(
        graph,
        features=features.to_sparse_csr() if graph.features.layout == torch.sparse_csr else features,
        edge_index=edges,
        edge_weight=None if weight is None else torch.cat([weight, torch.rand(8 * count, generator=generator)]),
        num_common=graph.common,
    )
    if graph.labels is None:
        return grown
    masks: dict[str, Any] = {name: getattr(graph, name) for name in MASKS if getattr(graph, name) is not None}
    split = torch.arange(count) % len(masks)
    masks = {name: torch.cat([mask, split == number]) for number, (name, mask) in enumerate(masks.items())}
    return replace(
        grown,
        labels=torch.cat([graph.labels, torch.randint(CLASSES, (count,), generator=generator)]),
        **masks,
    )


def merge(*parts: Settings) -> dict[str, Any]:
    """Later parts win, mapping by mapping."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            deep = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = merge(merged[key], value) if deep else value
    return merged


def small_job(holders: int = 2, *changes: Settings) -> JobSettings:
    base: Settings = {
        "seed": 5,
        "timeout_s": 20,
        "data": {"dataset": "synthetic", "holders": holders},
        "model": {"dim": DIM},
        "train": {"epochs": 6, "patience": None, "checkpoint_every": 2, "evaluate_every": 1},
    }
    return parse_job(merge(base, *changes))


def dropout_everywhere(precision: str = "float64") -> Settings:
    return {
        "precision": precision,
        "model": {
            "initial": {"dropout": 0.2, "activation": "tanh"},
            "local": {"dropout": 0.3},
            "server": {"dropout": 0.5},
            "head": {"dropout": 0.25, "logit_hops": 2},
        },
    }


@dataclass
class Federation:
    """What is left of a session: every party's role with its live weights, and everything each of them saw."""

    settings: JobSettings
    roles: dict[PartyId, Role]
    transcripts: dict[PartyId, tuple[Message, ...]]

    @property
    def label_holder(self) -> LabelHolder:
        return cast(LabelHolder, self.roles[self.settings.data.label_party])

    def weights(self, feature_bits: int = 12) -> dict[str, Tensor]:
        """All plain weights and W as ``PlainNetwork.weights`` names them."""
        return joint_weights(
            self.settings, {party: role.model.weights() for party, role in self.roles.items()}, feature_bits
        )


def joint_weights(
    settings: JobSettings, parts: Mapping[PartyId, Mapping[str, Tensor]], feature_bits: int = 12
) -> dict[str, Tensor]:
    """The parties' parts of a model put together: W of ``collaborative`` from its shares, all else by name."""
    whole: dict[str, Tensor] = {}
    for party, weights in parts.items():
        for name, tensor in weights.items():
            if not name.startswith("initial."):
                whole[f"{party}/{name}"] = tensor
            elif name == "initial.weight":
                whole[f"{party}/W"] = tensor
            elif name == "initial.own_weight":
                whole[f"{party}/W_own"] = tensor
    if vertical(settings).model.initial.method == "collaborative":
        holders = settings.data.names
        bits = feature_bits + vertical(settings).model.initial.gradient_bits
        for owner in holders:
            total = parts[owner][f"initial.share/{owner}"].clone()
            for other in holders:
                if other != owner:
                    total += parts[other][f"initial.share/{owner}"]
            whole[f"{owner}/W"] = total.to(torch.float64) * 2.0**-bits * parts[owner]["initial.scale"]
    return whole


def fixed_secrets(name: str) -> SecretSource:
    """The same bytes in the same order, every time that it is made."""
    counter = itertools.count()

    def draw(size: int) -> bytes:
        return hashlib.shake_256(f"{name}/{next(counter)}".encode()).digest(size)

    return draw


def build_role(
    settings: JobSettings, link: Link, graphs: Mapping[PartyId, PartyGraph], custom: CustomModel | None = None
) -> Role:
    party = link.party
    streams = LearningStreams(settings.seed, party)
    session = RoleContext(settings, link, streams, system_secrets, publisher=OPEN, custom=custom)
    if party == SERVER:
        return Server(session)
    kind = LabelHolder if party == settings.data.label_party else DataHolder
    return kind(session, graphs[party])


def federate(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    steps: int,
    custom: CustomModel | None = None,
    *,
    before: Callable[[Role, int], None] = lambda role, step: None,
    keep_transcripts: bool = True,
) -> Federation:
    """Sets up every party in a thread, trains ``steps`` steps and infers once.

    ``before`` is called by every party before each of its steps.
    """
    by_name = {graph.party: graph for graph in graphs}
    links: dict[PartyId, RecordedLink] = {}

    def program(link: Link) -> Role:
        recorded = links[link.party] = RecordedLink(link, keep_transcript=keep_transcripts)
        role = build_role(settings, recorded, by_name, custom)
        role.setup([])
        try:
            for step in range(steps):
                before(role, step)
                train_step(role, step, step + 1)
            before(role, steps)
            infer(role, steps)
        finally:
            role.close()
            recorded.close()
        return role

    programs = dict.fromkeys([*settings.data.names, SERVER], program)
    roles = launch.run_threads(programs, settings.timeout_s, lambda: None)
    transcripts = {party: link.transcript() for party, link in links.items()} if keep_transcripts else {}
    return Federation(settings, roles, transcripts)


class OwnModel(nn.Module):
    """A user's own local model with everything that needs care: dropout, running statistics, tied weights none."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.before = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        source, target = edge_index
        h = self.norm(self.before(x))
        h = nn.functional.dropout(h, 0.3, training=self.training)
        messages = h.index_select(0, source)
        if edge_weight is not None:
            messages = messages * edge_weight[:, None]
        return h + torch.zeros_like(h).index_add(0, target, messages)
