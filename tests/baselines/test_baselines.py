"""What the federation is compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.roles.federation import DIM, FEATURES, Settings, small_data, small_job, small_parties
from veilgraph.graph.partition import POOLED, pool
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.paradigms.vertical.twin import PlainNetwork, isolated, pooled
from veilgraph.protocol.plain_fitting import fit
from veilgraph.runtime.store.run_directory import Record

SETTINGS = small_job(2, {"train": {"epochs": 8}})


def same(one: list[Record], other: list[Record]) -> bool:
    return [{**record, "step_seconds": 0} for record in one] == [{**record, "step_seconds": 0} for record in other]


def test_isolated_uses_nothing_but_the_holders_own_data() -> None:
    graphs = small_parties(2)
    stranger = replace(graphs[1], features=graphs[1].features * 3, edge_index=graphs[1].edge_index[:, :4])
    assert same(isolated(SETTINGS, graphs, "A").metrics, isolated(SETTINGS, [graphs[0], stranger], "A").metrics)
    assert not same(isolated(SETTINGS, graphs, "B").metrics, isolated(SETTINGS, [graphs[0], stranger], "B").metrics)


def test_isolated_without_labels_is_lent_them() -> None:
    graphs = small_parties(2)
    assert graphs[1].labels is None
    result = isolated(SETTINGS, graphs, "B")
    assert result.summary["best_epoch"] >= 1
    assert 0 <= result.summary["test_accuracy"] <= 1
    assert len(result.metrics) == 8


@pytest.mark.parametrize("strategy", ["mean", "concat", "regression", "degree-weighted"])
@pytest.mark.parametrize("kind", ["sage-mean", "appnp"])
def test_pooled_is_one_holder_with_everything(strategy: str, kind: str) -> None:
    change: Settings = {"model": {"combine": {"strategy": strategy}, "local": {"model": kind}}}
    settings = small_job(2, {"train": {"epochs": 4}}, change)
    graphs = small_parties(2)
    by_hand = fit(PlainNetwork(settings, [pool(graphs, "A")], POOLED))
    assert same(pooled(settings, graphs).metrics, by_hand.metrics)


def test_pooled_keeps_the_relations_of_every_holder_for_a_model_that_tells_them_apart() -> None:
    settings = small_job(2, {"train": {"epochs": 4}}, {"model": {"local": {"model": "relational"}}})
    first, second = small_parties(2)
    places = first.edge_index.sum(dim=0) % 2
    graphs = [replace(first, relations=(Relation("calls"), Relation("pays")), edge_relation=places), second]
    by_hand = fit(PlainNetwork(settings, [pool(graphs, "A", relational=True)], POOLED))
    merged = fit(PlainNetwork(settings, [pool(graphs, "A")], POOLED))
    found = pooled(settings, graphs).metrics
    assert same(found, by_hand.metrics)
    assert not same(found, merged.metrics)


def test_one_holder_combines_with_nobody() -> None:
    """With a single holder every linear combine is the same network."""
    graph = pool(small_parties(2), "A")
    logits = []
    for strategy in ("mean", "concat", "regression", "degree-weighted"):
        settings = small_job(2, {"precision": "float64", "model": {"combine": {"strategy": strategy}}})
        with torch.no_grad():
            logits.append(PlainNetwork(settings, [graph], POOLED).forward(None))
    for other in logits[1:]:
        assert float((other - logits[0]).abs().max()) < 1e-12


def test_pooled_does_not_depend_on_how_the_edges_were_split() -> None:
    """The same columns; all edges at one holder, or divided: pooling undoes it."""
    graphs = small_parties(2)
    edges = torch.cat([graph.edge_index for graph in graphs], dim=1)
    moved = [replace(graphs[0], edge_index=edges), replace(graphs[1], edge_index=edges[:, :0])]
    assert same(pooled(SETTINGS, graphs).metrics, pooled(SETTINGS, moved).metrics)


def test_pooled_has_all_columns_and_edges() -> None:
    graph = pool(small_parties(3), "A")
    data = small_data()
    assert data.edge_index is not None
    assert graph.num_features == FEATURES
    assert graph.num_edges == data.edge_index.shape[1]
    network = PlainNetwork(SETTINGS, [graph], POOLED)
    assert network.weights()[f"{POOLED}/W"].shape == (FEATURES, DIM)


def test_early_stopping_and_the_best_epoch() -> None:
    settings = small_job(2, {"train": {"epochs": 60, "patience": 3, "learning_rate": 0.1}})
    seen: list[int] = []
    result = pooled(settings, small_parties(2), lambda records: seen.append(len(records)))
    best = max(result.metrics, key=lambda record: (record["val_accuracy"], -record["val_loss"], -record["epoch"]))
    assert result.summary["best_epoch"] == best["epoch"]
    for part in ("train", "val", "test"):
        assert result.summary[f"{part}_accuracy"] == best[f"{part}_accuracy"]
    assert seen == list(range(1, len(result.metrics) + 1))
    assert len(seen) == min(60, best["epoch"] + 3)


def test_baselines_are_deterministic_and_leave_the_graphs_alone() -> None:
    graphs = small_parties(2)
    copies = [graph.features.clone() for graph in graphs]
    settings = small_job(2, {"train": {"epochs": 3}, "model": {"initial": {"dropout": 0.3}}})
    for run in (lambda: pooled(settings, graphs), lambda: isolated(settings, graphs, "B")):
        assert same(run().metrics, run().metrics)
    assert all(torch.equal(graph.features, copy) for graph, copy in zip(graphs, copies, strict=True))


def test_pooled_learns() -> None:
    """Not a measurement: the graph is tiny. But features and edges tell the classes."""
    settings = small_job(2, {"train": {"epochs": 40, "learning_rate": 0.05}})
    result = pooled(settings, small_parties(2))
    assert result.metrics[-1]["loss"] < result.metrics[0]["loss"]
    assert result.summary["train_accuracy"] > 0.6


def test_edges_without_weights_pool_with_weighted_ones() -> None:
    graphs = small_parties(2)
    weighted = replace(graphs[1], edge_weight=torch.full((graphs[1].num_edges,), 0.5))
    graph: PartyGraph = pool([graphs[0], weighted], "A")
    assert graph.edge_weight is not None
    assert sorted(set(graph.edge_weight.tolist())) == [0.5, 1.0]
    assert pooled(SETTINGS, [graphs[0], weighted]).summary["best_epoch"] >= 1
