"""Data sets and simulated partitions, from Python."""

import pytest
import torch
from torch_geometric.data import Data

import veilgraph as vg
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.pooling import pool_parts


@pytest.fixture(scope="module")
def whole() -> Data:
    return vg.datasets.load("synthetic")


def test_data_sets_have_names() -> None:
    assert {"digits", "cora", "ogbn-arxiv"} <= set(vg.datasets.names())
    with refused(ConfigError, key="dataset", value="karate"):
        vg.datasets.load("karate")
    data = vg.datasets.load("block-model", block_model={"nodes": 64, "classes": 2, "mean_degree": 4, "features": 3})
    assert data.x.shape == (64, 3)
    with refused(ConfigError, key="block_model.nodes", value=1):
        vg.datasets.load("block-model", block_model={"nodes": 1})


def test_a_split_takes_its_shares(whole: Data) -> None:
    half = vg.datasets.split(whole, train=0.5, val=0.25, seed=1)
    masks = [half[name] for name in ("train_mask", "val_mask", "test_mask")]
    assert [int(mask.sum()) for mask in masks] == pytest.approx([200, 100, 100], abs=2)  # of three classes
    assert torch.stack(masks).sum(0).eq(1).all()
    assert torch.equal(half.train_mask, vg.datasets.split(whole, train=0.5, val=0.25, seed=1).train_mask)
    assert not torch.equal(half.train_mask, vg.datasets.split(whole, train=0.5, val=0.25, seed=2).train_mask)
    assert int(vg.datasets.split(whole, train=0.1, val=0.1, test=0.2).test_mask.sum()) == pytest.approx(80, abs=2)
    with refused(ConfigError, code="config"):
        vg.datasets.split(whole, train=0.8, val=0.4, test=0.1)
    with refused(DataError, key="data.y"):
        vg.datasets.split(Data(x=whole.x, edge_index=whole.edge_index), train=0.5, val=0.5)


def test_a_vertical_partition_deals_columns_and_edges(whole: Data) -> None:
    graphs = vg.simulate.vertically(whole, 3, label_holder="B", feature_proportions=[2, 1, 1], seed=4)
    assert [graph.party for graph in graphs] == ["A", "B", "C"]
    assert [graph.num_features for graph in graphs] == [12, 6, 6]
    assert sum(graph.num_edges for graph in graphs) == whole.num_edges
    assert [graph.labels is not None for graph in graphs] == [False, True, False]
    for holders in (0, 257):
        with refused(ConfigError, key="holders", value=holders):
            vg.simulate.vertically(whole, holders)


def test_a_horizontal_partition_deals_nodes_and_edges(whole: Data) -> None:
    parts = vg.simulate.horizontally(whole, ["bank", "shop"], overlap=0.5, seed=4)
    assert [part.graph.party for part in parts] == ["bank", "shop"]
    assert pool_parts(parts).graph.num_edges == whole.num_edges
    assert sum(part.graph.num_edges for part in parts) > whole.num_edges
    with refused(ConfigError, key="overlap", value=0.5):
        vg.simulate.horizontally(whole, overlap=0.5, mixed=0.1)
