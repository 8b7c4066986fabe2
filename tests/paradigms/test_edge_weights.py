"""Edge weights in every network of every paradigm: they change what it computes, and an edge of weight 0 is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GraphConv
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.settings import KPropSettings
from veilgraph_node_dp.sums import pair_matrix

from research.local_private import LocalPrivateNetwork
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart, pool, pool_parts
from veilgraph.nn.combine import COMBINES
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.paradigms.horizontal.settings import HorizontalSettings
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import trained_twin
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.inputs import gather_inputs

NODES, EDGES = 30, 60
TRAINED = torch.arange(NODES) % 2 == 0
TRAIN = {"epochs": 2, "patience": None}


def graphs(weights: Tensor | None, kept: Tensor | None = None) -> list[PartyGraph]:
    """Two holders' graphs over the same nodes, with a weight for every pair; edges go both ways."""
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, NODES, (2, EDGES), generator=generator)
    pairs[1] = torch.where(pairs[0] == pairs[1], (pairs[1] + 1) % NODES, pairs[1])
    if kept is not None:
        pairs, weights = pairs[:, kept], None if weights is None else weights[kept]
    made, labels = [], torch.arange(NODES) % 3
    for number, party in enumerate(("A", "B")):
        own = pairs[:, number::2]
        made.append(
            PartyGraph(
                party,
                torch.randn(NODES, 4, generator=torch.Generator().manual_seed(number)),
                torch.cat([own, own.flip(0)], dim=1),
                None if weights is None else weights[number::2].repeat(2),
                labels,
                TRAINED,
                ~TRAINED,
                None,
                3,
            )
        )
    return made


def nobody(graph: PartyGraph) -> PartyGraph:
    return replace(graph, labels=None, train_mask=None, val_mask=None, num_classes=None)


class Conv(nn.Module):
    """A user's own module that takes weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = GraphConv(dim, dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        found: Tensor = self.conv(x, edge_index, edge_weight)
        return found


def vertical(given: list[PartyGraph], local: str, combine: str) -> Tensor:
    model = {"dim": 8, "local": {"model": local}, "combine": {"strategy": combine}, "server": {"dropout": 0.0}}
    job = parse_job({"data": {"holders": ["A", "B"]}, "model": model, "train": TRAIN})
    network = PlainNetwork(job, [given[0], nobody(given[1])], "A", Conv if local == "custom" else None)
    network.train_step(1)
    return network.infer()


def vertical_pooled(given: list[PartyGraph], local: str) -> Tensor:
    return vertical(
        [
            replace(pool([given[0], nobody(given[1])], "A"), party="A"),
            given[1].with_edges(torch.tensor([], dtype=torch.int64)),
        ],
        local,
        "mean",
    )


def averaging(given: list[PartyGraph], local: str) -> Tensor:
    model = {"dim": 8, "local": {"model": local}}
    content = {"data": {"holders": ["A", "B"]}, "model": model, "train": {"epochs": 2}}
    twin = PlainAveraging(AveragingJob.model_validate(content), given)
    twin.round(1)
    return twin.infer("A")


def horizontal(given: list[PartyGraph], **settings: Any) -> Tensor:
    parts = [HorizontalPart(graph, torch.arange(NODES)) for graph in given]
    if settings.pop("pooled", False):
        parts = [pool_parts(parts)]
    chosen = HorizontalSettings(dim=8, server={"dropout": 0.0, "activation": "tanh"}, **settings)
    network = LayeredNetwork(chosen, TrainSettings(**TRAIN), parts, seed=1)
    network.train_step(1)
    return network.infer()


def node_dp(given: list[PartyGraph], **settings: Any) -> Tensor:
    features = AffineFeatures(given[1].features, 1.0, 0.5)
    chosen = KPropSettings(dim=8, dropout=0.0, **settings)
    network = LocalPrivateNetwork(chosen, TrainSettings(**TRAIN), given[0], features, seed=1)
    network.train_step(1)
    return network.infer()


def sealed(given: list[PartyGraph], **model: Any) -> Tensor:
    weighted = given[0].edge_weight is not None
    content = {"blocks": ["pooled.2"], "edge_weights": weighted, "edge_slots": 4 * EDGES, **model}
    train = {"epochs": 2, "select_by": "last"}
    job = SealedJob.model_validate(
        {"data": {"holders": ["A", "B"]}, "model": content, "train": train, "output": "margins"}
    )
    return torch.as_tensor(trained_twin(job, [given[0], nobody(given[1])]).predict()).double()


def noisy_sums(given: list[PartyGraph]) -> Tensor:
    """What node-dp jobs with ``privacy`` add up over edges."""
    return torch.from_numpy(pair_matrix(given[0].edge_index, given[0].edge_weight, NODES).toarray())


LOCALS = [name for name in LOCAL_MODELS.own if name != "relational"]
CASES: dict[str, Any] = {
    **{f"vertical, {name}": (vertical, {"local": name, "combine": "mean"}) for name in LOCALS},
    **{f"vertical, gcn, {each}": (vertical, {"local": "gcn", "combine": each}) for each in COMBINES.own},
    "vertical, relational": (vertical, {"local": "relational", "combine": "mean"}),
    **{f"vertical, pooled, {name}": (vertical_pooled, {"local": name}) for name in LOCALS},
    **{f"averaging, {name}": (averaging, {"local": name}) for name in LOCALS if name != "custom"},
    **{
        f"horizontal, {aggregate}, {message}, {update}": (
            horizontal,
            {
                "aggregate": aggregate,
                "message": message,
                "update": update,
                "edges": "may-overlap" if aggregate in ("max", "min") else "disjoint",
            },
        )
        for aggregate in ("max", "min", "mean", "sum")
        for message in ("linear", "none", "full")
        for update in ("sum", "concat", "gated")
    },
    "horizontal, pooled": (horizontal, {"pooled": True}),
    **{
        f"node-dp, {each}, {hops} hops": (node_dp, {"aggregate": each, "hops": hops})
        for each in ("gcn", "mean", "sum")
        for hops in (0, 2)
    },
    "node-dp, noisy sums": (noisy_sums, {}),
    **{f"sealed, {each}": (sealed, {"blocks": [each]}) for each in ("neighbours", "pooled.2", "each.5")},
}
"""What computes over edges → its output."""


@pytest.mark.cases(13)
@pytest.mark.parametrize("case", CASES)
def test_a_weight_counts_and_an_edge_of_weight_0_is_none(case: str) -> None:
    compute, settings = CASES[case]
    first = torch.rand(EDGES, generator=torch.Generator().manual_seed(1)) + 0.1
    plain, weighted = compute(graphs(None), **settings), compute(graphs(first), **settings)
    assert not torch.equal(weighted, plain), "weights beside none"
    assert not torch.equal(compute(graphs(first.flip(0)), **settings), weighted), "other weights"
    kept = torch.arange(EDGES) % 4 < 2  # at both holders alike
    absent = compute(graphs(torch.where(kept, first, 0.0)), **settings)
    torch.testing.assert_close(absent, compute(graphs(first, kept), **settings), rtol=0, atol=0)


def test_weights_that_a_sealed_job_does_not_take_are_refused() -> None:
    with refused(DataError, key="model.edge_weights", value=False):
        sealed(graphs(torch.full((EDGES,), 2.0)), edge_weights=False)


@pytest.mark.parametrize("paradigm", ["vertical", "sealed", "node-dp", "horizontal", "averaging"])
@pytest.mark.parametrize(
    ("key", "brought"),
    [
        ("edge_features", {"edge_features": torch.ones(EDGES, 2)}),
        ("targets", {"targets": torch.ones(NODES), "train_mask": TRAINED, "val_mask": ~TRAINED}),
        ("membership", {"membership": torch.zeros(NODES, dtype=torch.int64)}),
    ],
)
def test_what_a_network_does_not_use_is_refused(
    paradigm: str, key: str, brought: dict[str, Tensor], tmp_path: Path
) -> None:
    first, second = graphs(None)
    release = {"release": {"features": {"epsilon": 1.0}}} if paradigm == "node-dp" else {}
    job = parse_job({"paradigm": paradigm, "data": {"holders": ["A", "B"]}, **release})
    given = {"A": first, "B": replace(nobody(second), **brought)}  # type: ignore[arg-type]
    ids = {name: list(range(NODES)) for name in given} if paradigm in ("horizontal", "averaging") else None
    with refused(ConfigError, key=key, party="B"):
        gather_inputs(job, given, ids, tmp_path / "run")
