"""Many graphs in one: from PyTorch Geometric's batches, and dealt to holders whole."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.partition import split_by_label, split_by_nodes
from veilgraph.graph.party import PartyGraph


def batch(graphs: int = 24) -> Data:
    """Paths of three to five nodes; a graph's class is that of its number."""
    parts = []
    for number in range(graphs):
        nodes = 3 + number % 3
        ahead = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
        parts.append(
            Data(
                x=torch.full((nodes, 2), float(number)),
                edge_index=torch.cat([ahead, ahead.flip(0)], dim=1),
                y=torch.tensor([number % 2]),
                train_mask=torch.tensor([number % 4 < 2]),
                val_mask=torch.tensor([number % 4 == 2]),
                test_mask=torch.tensor([number % 4 == 3]),
            )
        )
    whole = Batch.from_data_list(parts)
    return Data(
        **{name: whole[name] for name in ("x", "edge_index", "y", "batch", "train_mask", "val_mask", "test_mask")}
    )


def test_labels_and_masks_of_graphs_are_those_of_their_nodes() -> None:
    data = batch()
    graph = PartyGraph.from_data("A", data)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert torch.equal(graph.labels, data.y[data.batch])
    assert torch.equal(graph.train_mask, data.train_mask[data.batch])
    assert len(data.y) == 24  # the user's own is as it was


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("data.batch", {"batch": torch.zeros(3, dtype=torch.int64)}),
        ("data.batch", {"batch": torch.zeros(94)}),
        ("data.y", {"y": torch.zeros(7, dtype=torch.int64)}),
        ("data.train_mask", {"train_mask": torch.ones(7, dtype=torch.bool)}),
    ],
)
def test_a_batch_numbers_the_graph_of_every_node(key: str, change: dict[str, torch.Tensor]) -> None:
    with refused(DataError, key=key, party="A"):
        PartyGraph.from_data("A", batch().update(change))


@pytest.mark.parametrize("by", ["nodes", "labels"])
def test_graphs_are_dealt_whole(by: str) -> None:
    data = batch()
    names = ["A", "B", "C"] if by == "nodes" else ["A", "B"]
    if by == "nodes":
        parts = split_by_nodes(data, names=names, seed=0)
    else:
        parts = split_by_label(data, names=names, seed=0, mixed=0.4)
    homes: dict[int, str] = {}
    for part in parts:
        part.graph.validate()
        assert part.graph.membership is not None
        for number in part.graph.membership.unique().tolist():
            assert homes.setdefault(number, part.graph.party) == part.graph.party
    assert len(homes) == 24
    assert sum(part.graph.num_edges for part in parts) == data.edge_index.shape[1]


def test_numbers_of_floating_point_are_targets() -> None:
    data = batch().update({"y": torch.arange(24.0)})
    graph = PartyGraph.from_data("A", data)
    assert graph.labels is None
    assert graph.targets is not None
    assert torch.equal(graph.targets, data.y[data.batch])
    (first, *_) = split_by_nodes(data, names=["A", "B"], seed=1)
    assert first.graph.targets is not None
    assert torch.equal(first.graph.targets, graph.targets[first.ids])
