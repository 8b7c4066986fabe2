"""Plain torch_geometric in one place: networks, and what they are chosen by."""

from dataclasses import replace

import pytest
import torch

from research.pooled_pyg import Cell, tuned
from tests import nightly
from tests.paradigms.sealed.programs import small_graphs
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective

TRAIN = TrainSettings(select_by="accuracy")


def graph_of(*, sparse: bool) -> PartyGraph:
    graph = pool(small_graphs(2, nodes=60, training=20), "A")
    return replace(graph, features=graph.features.to_sparse_csr()) if sparse else graph


@nightly
@pytest.mark.parametrize("network", ["gcn", "sage", "appnp"])
@pytest.mark.parametrize("sparse", [False, True])
def test_learns_classes_from_dense_and_sparse_columns(network: str, sparse: bool) -> None:
    graph = graph_of(sparse=sparse)
    logits, figure, _ = tuned(graph, TRAIN, 0, [Cell(network, 0.01, 5e-4, 0.2)])
    summary = Objective(graph, TRAIN, torch.float64).score(logits, everything=True).values
    assert summary["val_accuracy"] == pytest.approx(figure)
    assert figure > 0.6


@nightly
def test_takes_the_cell_with_the_best_validation_figure() -> None:
    graph, slow = graph_of(sparse=False), Cell("gcn", 1e-9, 0.0, 0.0)
    fast = replace(slow, rate=0.01)
    assert tuned(graph, TRAIN, 0, [slow, fast])[2] == fast
