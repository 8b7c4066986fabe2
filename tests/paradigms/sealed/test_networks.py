"""Every network of a sealed job is, whatever the job, what its twin in floating numbers is, and what PyTorch says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.errors import refused
from tests.paradigms.sealed.dense import graphs_of, normalised, spelled_out
from tests.paradigms.sealed.programs import TWIN, outcomes, small_graphs, small_job, summed, trained
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import DataError
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.inputs import own_data
from veilgraph.paradigms.sealed.networks import NETWORKS
from veilgraph.paradigms.sealed.program import WEIGHT_BITS, SealedProgram
from veilgraph.paradigms.sealed.twin import together, trained_twin

WALK: Settings = {"model": {"normalization": "random-walk"}}
DIRECTED: Settings = {"model": {"directed": True}}
EACH: Settings = {"model": {"relations": "each"}}
WEIGHTS: Settings = {"model": {"edge_weights": True}}
BALANCED: Settings = {"train": {"class_weights": "balanced"}}
BATCHES: Settings = {"train": {"batch_size": 3}}
PROBABILITIES: Settings = {"output": "probabilities"}


def network(name: str, **model: Any) -> Settings:
    return {"model": {"network": name, **model}}


ALMOST = 0.02
"""The softmax of a sealed job is (1 + z/243)^243 over its sum."""
FEW, MANY = 8, 22
"""Training nodes: fewer than columns, so that rows are propagated, and more, so that columns are."""
CASES: dict[str, tuple[int, int, tuple[Settings, ...]]] = {
    "linear, rows": (2, FEW, (network("linear", teleport=0.0),)),
    "linear, columns": (3, MANY, (network("linear"), WALK)),
    "linear, rows, directed walk": (2, FEW, (network("linear"), WALK, DIRECTED)),
    "linear, no hop": (4, FEW, (network("linear", hops=0),)),
    "linear, columns, no hop": (2, MANY, (network("linear", hops=0), BATCHES)),
    "mlp, rows": (3, FEW, (network("mlp", hops=3), BALANCED)),
    "mlp, rows, walk, one hop": (2, FEW, (network("mlp", hops=1), WALK)),
    "mlp, columns, batches": (2, MANY, (network("mlp"), BATCHES, BALANCED, DIRECTED)),
    "mlp, wide, columns": (2, MANY, (network("mlp", hidden=20), PROBABILITIES)),
    "sign, rows": (2, FEW, (network("sign", hops=0),)),
    "sign, rows and pooled": (3, FEW, (network("sign", own_hops=1), WALK)),
    "sign, columns and pooled": (2, MANY + 8, (network("sign", own_hops=1, hidden=2), DIRECTED)),
    "mlp, rows, each": (3, FEW, (network("mlp"), EACH)),
    "mlp, columns, each, weights, directed walk": (2, 2 * MANY, (network("mlp"), EACH, WEIGHTS, DIRECTED, WALK)),
    "linear, rows, weights": (3, FEW, (network("linear"), WEIGHTS)),
    "gcn, each, directed": (2, FEW, (network("gcn", hops=1), EACH, DIRECTED)),
    "appnp, weights, directed": (3, FEW, (network("appnp"), WEIGHTS, DIRECTED)),
    "gcn": (2, FEW, (network("gcn", hops=1),)),
    "gcn, directed walk, batches": (3, MANY, (network("gcn", hops=1), WALK, DIRECTED, BATCHES)),
    "appnp": (2, FEW, (network("appnp", hops=3),)),
    "appnp, directed, balanced": (3, FEW, (network("appnp", hops=1, teleport=0.3), DIRECTED, BALANCED)),
}


@pytest.mark.cases(5)
@pytest.mark.parametrize("case", CASES)
def test_parties_compute_what_the_twin_does(case: str) -> None:
    holders, training, changes = CASES[case]
    job = small_job(holders, PROBABILITIES, *changes)
    graphs = graphs_of(job, nodes=60 if training > 40 else 40, training=training)
    for _ in range(3):  # rounding is drawn anew, and once in a hundred runs decides a ReLU whose input is next to 0
        found = outcomes(job, graphs, lambda program: trained(program, job.train.epochs))
        weights, twin = summed(found, WEIGHT_BITS), found[TWIN][0]
        probabilities = {party: one[1] for party, one in found.items() if one[1] is not None}
        assert probabilities.keys() == {"A", TWIN}
        assert all(float(twin[name].abs().max()) > 2e-2 for name in weights)
        apart = max(float((weight - twin[name]).abs().max()) for name, weight in weights.items())
        if apart < 2e-3 and float((probabilities["A"] - probabilities[TWIN]).abs().max()) < 4e-3:
            return
    raise AssertionError(f"weights are {apart} from the twin's in each of three runs")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("training", [FEW, MANY])
@pytest.mark.parametrize(
    "changes",
    [{}, merge(WALK, DIRECTED), merge(EACH, WEIGHTS, DIRECTED)],
    ids=["symmetric", "directed walk", "each with directed weights"],
)
def test_the_twin_is_what_autograd_makes_of_dense_matrices(name: str, training: int, changes: Settings) -> None:
    """One step, so that the gradient alone counts: the weights move by rate·(∂loss/∂W + decay·W)."""
    job = small_job(2, network(name), changes, BALANCED, PROBABILITIES, {"train": {"epochs": 1}})
    graphs = graphs_of(job, training=training)
    context, data = together(job, graphs)
    begun = SealedProgram(PlainMachine(list(data)), context)
    before = [weight.public.clone().requires_grad_() for weight in begun.weights if weight.public is not None]
    own = data["A"]
    assert own.rows is not None
    assert own.labels is not None
    logits = spelled_out(job, graphs, before)
    losses = torch.nn.functional.cross_entropy(logits[own.rows], own.labels, reduction="none")
    (losses * own.weights).mean().backward()  # type: ignore[operator]
    program = trained_twin(job, graphs)
    decay = NETWORKS[name].suits.weight_decay * min(1, 140 / training)
    for start, weight in zip(before, program.weights, strict=True):
        assert start.grad is not None
        expected = -0.75 * (start.grad + decay * start.detach())
        assert weight.public is not None
        off = weight.public - start.detach() - expected
        assert float(off.abs().max()) < ALMOST * float(expected.abs().max())
    predicted = program.predict()
    after = [weight.public for weight in program.weights if weight.public is not None]
    assert predicted is not None
    assert torch.allclose(predicted, spelled_out(job, graphs, after).softmax(1), atol=ALMOST)


def test_decay_that_suits_falls_with_the_number_of_training_rows() -> None:
    def weight(training: int, *changes: Settings, steps: int = 1) -> torch.Tensor:
        job = small_job(2, network("mlp"), *changes, {"train": {"epochs": 1}})
        graphs = graphs_of(job, nodes=240, training=training)
        begun = SealedProgram(PlainMachine(["A", "B"]), together(job, graphs)[0])
        found, _ = (trained_twin(job, graphs) if steps else begun).weights
        assert found.public is not None
        return found.public

    for training, share in ((140, 1.0), (210, 2 / 3)):
        before, after = weight(training, steps=0), weight(training)
        without = weight(training, {"train": {"weight_decay": 0.0}})
        assert float(before.abs().max()) > 0.1
        assert torch.allclose(after - without, -0.75 * share * 1e-2 * before, rtol=1e-2)


def test_columns_go_on_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, and a last one: that is a round more for each, and the same weights."""
    job = small_job(2, network("mlp"))
    graphs = graphs_of(job, training=MANY)
    together_ = outcomes(job, graphs, lambda program: trained(program, 3))
    monkeypatch.setattr("veilgraph.paradigms.sealed.networks.network.AT_ONCE", 2 * graphs[0].features.shape[0] + 1)
    found = outcomes(job, graphs, lambda program: trained(program, 3))
    for name, weight in summed(found, WEIGHT_BITS).items():
        assert float((weight - found[TWIN][0][name]).abs().max()) < 2e-3
        assert torch.allclose(found[TWIN][0][name], together_[TWIN][0][name])


def test_own_hops_are_a_holders_own_weighted_ones() -> None:
    job = small_job(2, network("sign", own_hops=2), WEIGHTS)
    (graph, _) = graphs_of(job)
    x, p = own_data(small_job(2, network("linear"), WEIGHTS), graph).features, normalised(job, [graph])
    assert torch.allclose(own_data(job, graph).features, torch.cat([x, p @ x, p @ p @ x], 1), atol=1e-6)


def test_every_rate_begins_anew() -> None:
    graphs = small_graphs()
    judged: Settings = {"train": {"select_by": "accuracy", "learning_rate": None, "epochs": 6}}
    several = small_job(2, network("mlp"), judged, {"train": {"learning_rates": [2, 0.375, 1]}})
    for rate, before in ((2, 0), (0.375, 2), (1, 4)):
        alone = small_job(2, network("mlp"), judged, {"train": {"learning_rate": rate}})
        pairs = zip(
            trained_twin(several, graphs, before + 2).weights, trained_twin(alone, graphs, 2).weights, strict=True
        )
        for one, other in pairs:
            assert one.public is not None
            assert other.public is not None
            assert torch.allclose(one.public, other.public, atol=1e-6)


def test_edges_that_go_one_way_are_refused_where_all_should_go_both() -> None:
    graphs = small_graphs(directed=True)
    with refused(DataError, key="model.directed", value=False, party="A"):
        own_data(small_job(), graphs[0])
    own_data(small_job(2, DIRECTED), graphs[0])
    back = graphs_of(small_job(2, WEIGHTS))[0]
    assert back.edge_weight is not None
    uneven = replace(back, edge_weight=back.edge_weight * torch.linspace(1, 2, back.num_edges))
    with refused(DataError, key="model.directed", value=False, party="A"):
        own_data(small_job(2, WEIGHTS), uneven)
    with refused(DataError, key="model.edge_weights", value=False, party="A"):
        own_data(small_job(), back)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_sequence_and_sizes_of_messages_are_those_of_other_data_of_the_same_sizes(name: str) -> None:
    job = small_job(2, network(name), {"model": {"edge_slots": 130}})
    traffic = []
    for seed in (1, 2):
        links: Any = {}
        outcomes(job, small_graphs(seed=seed), lambda program: trained(program, 2), links)
        traffic.append({party: link.traffic() for party, link in links.items()})
    assert traffic[0] == traffic[1]


def test_hops_of_its_own_pass_nodes_that_only_a_holder_knows() -> None:
    """Node 2, whose row nobody else gets, lies between nodes 0 and 1."""
    edges = torch.tensor([[0, 2, 2, 1], [2, 0, 1, 2]])
    graph = PartyGraph("A", torch.eye(3), edges, num_common=2)
    job = small_job(2, {"model": {"network": "sign", "own_hops": 2, "hops": None, "teleport": None}})
    degrees = torch.diag(torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64).rsqrt())
    adjacency = torch.tensor([[1.0, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.float64)
    one = degrees @ adjacency @ degrees
    expected = torch.cat([torch.eye(3), one, one @ one], 1)[:2]
    assert torch.allclose(own_data(job, graph).features, expected.to(torch.float64), atol=1e-12)
    assert own_data(job, graph).edges.shape == (2, 0)


@pytest.mark.parametrize("network", ["linear", "mlp", "appnp"])
def test_the_twin_counts_every_validation_node_that_is_right(network: str) -> None:
    """A difference of two floating numbers plus the second is not always the first."""
    job = small_job(2, {"model": {"network": network}, "train": {"select_by": "accuracy", "learning_rate": 1.7}})
    graphs = small_graphs(nodes=150, training=40)
    program = trained_twin(job, graphs)
    logits = program.network.predict(program.weights).public
    assert logits is not None
    judged, labels = graphs[0].val_mask, graphs[0].labels
    assert judged is not None
    assert labels is not None
    right = int((logits.argmax(1) == labels)[judged].sum())
    assert program.score(job.train.epochs) == right
