"""What the federation is compared with."""

from dataclasses import replace

import pytest

from tests.roles.federation import Settings, small_job, small_parties
from veilgraph.graph.pooling import POOLED, pool
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


@pytest.mark.parametrize(("strategy", "kind"), [("mean", "sage-mean"), ("concat", "appnp")])
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
