"""The horizontal network's plaintext twin: several holders' parts equal the combined graph, exactly."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from research.horizontal import separate
from tests import nightly
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_horizontally
from veilgraph.graph.pooling import HorizontalPart, pool_parts, positions
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.horizontal.network import UPDATES
from veilgraph.paradigms.horizontal.settings import NOT_MONOTONE, HorizontalSettings
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.protocol.cut import leaf
from veilgraph.protocol.job import TrainSettings

NAMES = ("A", "B", "C", "D", "E")
TRAIN = TrainSettings(epochs=5, weight_decay=1e-3)
TOLERANCE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
KINDS = [
    (aggregate, update)
    for aggregate in ("max", "min", "mean", "sum")
    for update in UPDATES
    if aggregate in ("mean", "sum") or update not in NOT_MONOTONE
]


def small_data(seed: int, edges: int, *, weighted: bool = False, nodes: int = 24, edge_columns: int = 0) -> Data:
    """Random multigraph with loops; its last four nodes are isolated. Six nodes for each of the three masks."""
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(0, nodes - 4, (2, edges), generator=generator)
    data = Data(
        x=torch.randn(nodes, 5, generator=generator),
        edge_index=torch.stack([torch.cat([source, target]), torch.cat([target, source])]),
        y=torch.arange(nodes) % 3,
    )
    if weighted:
        data.edge_weight = (torch.rand(edges, generator=generator) + 0.1).repeat(2)
    if edge_columns:
        data.edge_weight = data.get("edge_weight", torch.ones(2 * edges))
        data.edge_attr = torch.randn(2 * edges, edge_columns, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    for index, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data[name] = torch.zeros(nodes, dtype=torch.bool)
        data[name][order[6 * index : 6 * index + 6]] = True
    return data


def network(chosen: HorizontalSettings, parts: list[HorizontalPart], seed: int = 7) -> LayeredNetwork:
    made = LayeredNetwork(chosen, TRAIN, parts, seed=seed, dtype=torch.float64)
    for group in made.optimizer.param_groups:
        group["eps"] = 1e-4  # with Adam's own a gradient of zero that is rounded to 1e-17 moves weights by 1e-11 a step
    return made


def assert_close(mine: Tensor | None, theirs: Tensor | None) -> None:
    """Up to the rounding of sums in another order, which grows with what is summed up."""
    largest = 0.0 if theirs is None or theirs.numel() == 0 else float(theirs.detach().abs().max())
    torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-10 * max(1.0, largest))


def assert_equal_training(one: LayeredNetwork, other: LayeredNetwork, steps: int = 4) -> None:
    """Losses, embeddings, gradients, weights and running statistics stay equal."""
    for epoch in range(1, steps + 1):
        assert one.train_step(epoch) == pytest.approx(other.train_step(epoch), rel=1e-10, abs=1e-10)
        for mine, theirs in zip(one.embeddings, other.embeddings, strict=True):
            assert_close(mine, theirs)
        for mine, theirs in zip(one.trained(), other.trained(), strict=True):
            assert_close(mine.grad, theirs.grad)
    for name, module in one.modules().items():
        saved = other.modules()[name].state_dict()
        for key, value in module.state_dict().items():
            assert_close(value, saved[key])
    assert_close(one.infer(), other.infer())


@pytest.mark.cases(2)
@pytest.mark.parametrize(("aggregate", "update"), KINDS)
@settings(max_examples=10)
@given(
    dropout=st.sampled_from([0.0, 0.5]),
    batch_norm=st.booleans(),
    holders=st.integers(1, 5),
    edges=st.integers(0, 60),
    overlap=st.sampled_from([0.0, 0.3, 1.0]),
    knows=st.sampled_from(["own", "all"]),
    message=st.sampled_from(["linear", "none", "full"]),
    edge_columns=st.integers(0, 2),
    seed=st.integers(0, 999),
)
def test_the_federation_is_the_combined_graph(
    aggregate, update, dropout, batch_norm, holders, edges, overlap, knows, message, edge_columns, seed
) -> None:
    pools = aggregate in ("max", "min")
    edge_columns = edge_columns if message == "full" else 0
    data = small_data(seed, edges, weighted=seed % 2 == 0, edge_columns=edge_columns)
    overlap = overlap if holders > 1 else 0.0
    parts = split_horizontally(data, names=NAMES[:holders], seed=seed, overlap=overlap, knows=knows, num_classes=3)
    chosen = HorizontalSettings(
        dim=4,
        layers=1 + seed % 3,
        message=message,
        aggregate=aggregate,
        update=update,
        edges="may-overlap" if pools else "deduplicate" if overlap else "disjoint",
        server={"batch_norm": batch_norm, "dropout": dropout, "activation": "tanh" if seed % 5 == 0 else "relu"},
    )
    assert_equal_training(network(chosen, parts), network(chosen, [pool_parts(parts)]))


@nightly
@pytest.mark.parametrize("aggregate", ["max", "min", "mean", "sum"])
def test_a_full_message_is_equation_4_edge_by_edge(aggregate) -> None:
    chosen = HorizontalSettings(dim=4, layers=1, message="full", aggregate=aggregate, edges="disjoint")
    data = small_data(3, 20, weighted=True, edge_columns=2)
    layer = network(chosen, split_horizontally(data, names=["A"], seed=0)).holder.layer(0)
    adjacency = Adjacency.of_edges(data.edge_index, data.edge_weight, 24, torch.float64, edge_features=data.edge_attr)
    assert isinstance(layer.target, torch.nn.Linear)
    assert isinstance(layer.edge, torch.nn.Linear)
    assert isinstance(layer.message, torch.nn.Linear)
    h = data.x.double()
    found, own = layer(h, adjacency), layer.message(h)
    for node in range(24):
        said = [
            weight * (layer.message(h[source]) + layer.target(h[node]) + layer.edge(features.double()))
            for (source, target), weight, features in zip(
                data.edge_index.T, data.edge_weight, data.edge_attr, strict=True
            )
            if target == node
        ]
        together = torch.stack([torch.zeros(4, dtype=torch.float64), *said])
        pooled = {"max": together.amax(dim=0), "min": together.amin(dim=0)}.get(aggregate, together.sum(dim=0))
        parts = [own[node] + pooled] if aggregate in ("max", "min") else [own[node], pooled]
        torch.testing.assert_close(found[node], torch.cat(parts))


@nightly
@pytest.mark.parametrize("times", [1, 3])
def test_copies_of_an_edge_with_other_weights_or_features_all_count_in_a_maximum(times) -> None:
    """A holder's copy is not the other's: the combined graph has both."""
    data = small_data(5, 30, weighted=True, edge_columns=1)
    one, two = split_horizontally(data, names=NAMES[:2], seed=1, overlap=1.0, num_classes=3)
    assert two.graph.edge_weight is not None
    assert two.graph.edge_features is not None
    other = replace(two.graph, edge_weight=times * two.graph.edge_weight, edge_features=-two.graph.edge_features)
    parts = [one, replace(two, graph=other)]
    chosen = HorizontalSettings(dim=4, message="full")
    assert_equal_training(network(chosen, parts), network(chosen, [pool_parts(parts)]))
    alike = network(chosen, [one, two]).infer()
    assert not torch.allclose(alike, network(chosen, parts).infer())
    torch.testing.assert_close(alike, network(chosen, [pool_parts([one, two])]).infer())
    assert pool_parts([one, two]).graph.num_edges == one.graph.num_edges


@pytest.mark.parametrize("aggregate", ["max", "mean"])
def test_the_parts_of_the_parties_make_the_twin(aggregate) -> None:
    """Every party with its own weights and its own graph, cut where messages cross, has the twin's gradients."""
    chosen = HorizontalSettings(dim=4, layers=3, aggregate=aggregate, update="gated", edges="disjoint")
    parts = split_horizontally(small_data(1, 40), names=NAMES[:3], seed=2, num_classes=3)
    twin = network(chosen, parts)
    holders = [network(chosen, parts).holder for _ in parts]
    server = network(chosen, parts).server
    twin.train_step(1)

    _, rows = positions(parts)
    generator = twin._streams.generator("dropout", 1)
    inputs: list[Any] = [twin._features]
    sent, pieces, outputs = [], [], []
    for index in range(3):
        sent.append(
            [
                holder.layer(index)(h, adjacency)
                for holder, h, adjacency in zip(holders, inputs[-1], twin._adjacencies, strict=True)
            ]
        )
        pieces.append([leaf(piece) for piece in sent[-1]])
        layer = server.layer(index)
        outputs.append(layer.update(layer.combine(pieces[-1], rows, 24, twin._degrees), generator))
        inputs.append([leaf(outputs[-1][at]) for at in rows])
    for holder, h, part in zip(holders, inputs[-1], parts, strict=True):
        mask, labels = part.graph.train_mask, part.graph.labels
        assert labels is not None
        loss = torch.nn.functional.cross_entropy(holder.predict(h)[mask], labels[mask], reduction="sum")
        (loss / 6).backward()
    for index in (2, 1, 0):
        gradient = torch.zeros_like(outputs[index])
        for at, h in zip(rows, inputs[index + 1], strict=True):
            gradient.index_add_(0, at, h.grad)
        outputs[index].backward(gradient)
        for piece, local in zip(pieces[index], sent[index], strict=True):
            local.backward(piece.grad)
    for name, parameter in twin.server.named_parameters():
        torch.testing.assert_close(server.get_parameter(name).grad, parameter.grad, **TOLERANCE)
    for name, parameter in twin.holder.named_parameters():
        grads = [holder.get_parameter(name).grad for holder in holders]
        torch.testing.assert_close(sum(grad for grad in grads if grad is not None), parameter.grad, **TOLERANCE)


def test_edges_that_are_counted_twice_change_a_mean() -> None:
    """What the promise ``disjoint`` is for, and that ``deduplicate`` keeps it."""
    parts = split_horizontally(small_data(3, 50), names=NAMES[:2], seed=0, overlap=0.5, num_classes=3)
    changes = {"dim": 4, "aggregate": "mean"}
    pooled = network(HorizontalSettings(**changes, edges="disjoint"), [pool_parts(parts)]).infer()
    broken = network(HorizontalSettings(**changes, edges="disjoint"), parts).infer()
    mended = network(HorizontalSettings(**changes, edges="deduplicate"), parts).infer()
    assert float((broken - pooled).abs().max()) > 1e-3
    torch.testing.assert_close(mended, pooled, **TOLERANCE)


def test_separate_training_uses_nothing_of_others() -> None:
    data = synthetic_data(120)
    parts = split_horizontally(data, names=NAMES[:2], seed=0)
    stranger = replace(parts[1], graph=replace(parts[1].graph, features=parts[1].graph.features * 3))
    train = TrainSettings(epochs=4)
    first, second = separate(HorizontalSettings(dim=8), train, parts, seed=0)
    again, other = separate(HorizontalSettings(dim=8), train, [parts[0], stranger], seed=0)

    def losses(result):
        return [record["loss"] for record in result.metrics]

    assert losses(first) == losses(again)
    assert losses(second) != losses(other)
    assert first.summary["test_f1"] is not None
