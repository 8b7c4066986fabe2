"""The federated job - threads, masks, shares and all - is the plaintext network, weight by weight."""

from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_testing.vertical import weights_of

from tests import nightly
from tests.reference.twins import assert_twins, odd_parties
from tests.roles.federation import (
    OwnModel,
    Settings,
    dropout_everywhere,
    federate,
    merge,
    small_job,
    small_parties,
)
from veilgraph.graph.pooling import POOLED, pool
from veilgraph.paradigms.vertical.twin import PlainNetwork

COMBINES = [
    pytest.param({"strategy": strategy, "masked": masked}, id=f"{strategy}-{'masked' if masked else 'clear'}")
    for strategy in ("mean", "regression", "degree-weighted")
    for masked in (True, False)
]
METHODS = ["collaborative", "individual", "secure-sum"]
CELLS = [(2, 1), (3, 2), (5, 1), (2, 2), (3, 1), (5, 2)]


@pytest.mark.cases(6)
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=nightly)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("combine", COMBINES)
def test_every_weight_equals_the_twins(combine: Settings, method: str, which: int) -> None:
    """Every method meets every (holders, rounds), and so does every combine at night."""
    strategies = ("mean", "regression", "degree-weighted")
    number = 2 * strategies.index(combine["strategy"]) + combine["masked"]
    holders, rounds = CELLS[(number + 2 * METHODS.index(method) + 3 * which) % len(CELLS)]
    model = {"rounds": rounds, "combine": combine, "initial": {"method": method}}
    assert_twins(small_job(holders, dropout_everywhere(), {"model": model}), small_parties(holders))


@pytest.mark.parametrize(("holders", "method"), [(2, "collaborative"), (4, "secure-sum")])
def test_every_weight_equals_the_twins_with_concat(holders: int, method: str) -> None:
    model = {"combine": {"strategy": "concat"}, "initial": {"method": method}}
    assert_twins(small_job(holders, dropout_everywhere(), {"model": model}), small_parties(holders))


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        ("mean", "collaborative"),
        ("concat", "collaborative"),
        ("regression", "secure-sum"),
        ("degree-weighted", "individual"),
    ],
)
def test_every_weight_equals_the_twins_in_single_precision(strategy: str, method: str) -> None:
    model = {"combine": {"strategy": strategy}, "initial": {"method": method}}
    assert_twins(small_job(3, dropout_everywhere("float32"), {"model": model}), small_parties(3))


KINDS: list[tuple[str, Settings]] = [
    ("sage-mean", {}),
    ("sage-lstm", {}),
    ("sage-pool", {}),
    ("sage-vpa", {}),
    ("gcn", {"activation": "relu"}),
    ("gat", {"heads": 2}),
    ("gin", {"activation": "sigmoid"}),
    ("appnp", {"hops": 3, "teleport": 0.2}),
    ("custom", {}),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("kind", "local"), KINDS, ids=[kind for kind, _ in KINDS])
def test_every_kind_of_local_model_in_two_rounds(kind: str, local: dict[str, Any]) -> None:
    model = {"rounds": 2, "local": {"model": kind, **local}}
    custom = OwnModel if kind == "custom" else None
    assert_twins(small_job(2, dropout_everywhere(), {"model": model}), small_parties(2), custom)


EXTRAS: list[tuple[str, Settings]] = [
    ("the label holder is not the first", {"data": {"label_holder": "C"}}),
    ("decay of W", {"model": {"initial": {"weight_decay": 0.1, "momentum": 0.5, "learning_rate": 0.3}}}),
    ("no momentum", {"model": {"initial": {"momentum": 0.0, "init_std": 0.2}}}),
    ("coarse features", {"model": {"initial": {"feature_bits": 4}}}),
    ("no hops", {"model": {"local": {"hops": 0, "normalize": False}}}),
    ("no hops, two rounds", {"model": {"rounds": 2, "local": {"hops": 0}}}),
    ("no server layers", {"model": {"server": {"layers": 0}, "combine": {"strategy": "concat"}}}),
    ("three server layers", {"model": {"server": {"layers": 3, "activation": "relu"}}}),
    ("width one", {"model": {"dim": 1, "local": {"normalize": False}}}),
    ("many rounds", {"model": {"rounds": 5, "local": {"hops": 1}, "combine": {"strategy": "degree-weighted"}}}),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize("extra", [extra for _, extra in EXTRAS], ids=[name for name, _ in EXTRAS])
def test_less_common_settings(extra: Settings) -> None:
    settings = small_job(3, dropout_everywhere(), extra)
    assert_twins(settings, small_parties(3, label_holder=settings.data.label_party))


@pytest.mark.cases(1)
@pytest.mark.parametrize(("kind", "local"), KINDS, ids=[kind for kind, _ in KINDS])
def test_sparse_features_weights_isolated_nodes_and_a_holder_without_edges(kind: str, local: Settings) -> None:
    custom = OwnModel if kind == "custom" else None
    model = {"local": {"model": kind, **local}, "combine": {"strategy": "degree-weighted"}}
    assert_twins(small_job(3, dropout_everywhere(), {"model": model}), odd_parties(), custom, steps=6)


# Limiting cases


ROUNDS = 10
APPNP: Settings = {
    "precision": "float64",
    "model": {
        "rounds": ROUNDS,
        "local": {"model": "appnp", "hops": 1, "normalize": False},
        "combine": {"strategy": "degree-weighted"},
    },
}


@pytest.mark.parametrize("holders", [3])
def test_appnp_in_rounds_is_appnp_on_the_pooled_graph(holders: int) -> None:
    """R = 10, K = 1, degree-weighted: the split edges and features cost nothing (docs/explanation/protocol.md)."""
    settings = small_job(holders, APPNP)
    graphs = small_parties(holders)
    federation = federate(settings, graphs, 5)
    weights = federation.weights()

    # The library's own network on the pooled graph, given the same weights.
    one = {"model": {"rounds": 1, "local": {"hops": ROUNDS}, "combine": {"strategy": "mean"}}}
    everything = pool(graphs, "A")
    pooled = PlainNetwork(small_job(holders, merge(APPNP, one)), [everything], POOLED)
    with torch.no_grad():
        for name, weight in weights_of(pooled).items():
            if name == f"{POOLED}/W":
                weight.copy_(torch.cat([weights[f"{graph.party}/W"] for graph in graphs]))
            else:
                weight.copy_(weights[name.replace(f"{POOLED}/", "A/")])
        logits = pooled.forward(None)
    assert float((federation.label_holder.logits - logits).abs().max()) < 1e-4

    # The same by dense matrices and the definition.
    nodes = everything.num_nodes
    adjacency = torch.eye(nodes, dtype=torch.float64)
    adjacency.index_put_((everything.edge_index[1], everything.edge_index[0]), torch.ones(1).double(), accumulate=True)
    h0 = everything.features.double() @ torch.cat([weights[f"{graph.party}/W"] for graph in graphs])
    z = h0
    for _ in range(ROUNDS):
        z = 0.9 * (adjacency / adjacency.sum(dim=1, keepdim=True)) @ z + 0.1 * h0
    deep = torch.sigmoid(
        z @ weights["server/server.deep.layers.0.weight"].T + weights["server/server.deep.layers.0.bias"]
    )
    by_hand: Tensor = deep @ weights["A/head.output.weight"].T + weights["A/head.output.bias"]
    assert float((federation.label_holder.logits - by_hand).abs().max()) < 1e-3  # x is rounded to 12 bits
