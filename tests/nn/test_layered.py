"""The horizontal network's parts: local updates, pooling over neighbours and holders, the global update."""

from itertools import product
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from tests import nightly
from tests.errors import refused
from tests.nn.graphs import random_adjacency
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import compact
from veilgraph.nn.propagate import FixedInput
from veilgraph.paradigms.horizontal.network import (
    UPDATES,
    LayeredHolder,
    LayeredServer,
    Update,
    first_is_fixed,
    layer_widths,
    learning_layers,
    maximum,
    published_layers,
    total,
)
from veilgraph.paradigms.horizontal.settings import NOT_MONOTONE, HorizontalSettings

INFINITY = float("inf")
STREAMS = LearningStreams(3, "holders")


Module = TypeVar("Module", bound=nn.Module)


def there(module: Module | None) -> Module:
    assert module is not None
    return module


def horizontal(**changes) -> HorizontalSettings:
    if changes.get("aggregate") in ("mean", "sum"):
        changes = {"edges": "disjoint", **changes}
    return HorizontalSettings.model_validate(changes)


@pytest.mark.parametrize("name", list(UPDATES))
def test_an_update_is_monotone_exactly_where_it_says_so(name) -> None:
    with STREAMS.global_generator("update"):
        update = Update(name, 4, 6).double()
        h = torch.randn(200, 4, dtype=torch.float64)
        m = torch.randn(200, 4, dtype=torch.float64)
    slopes = []
    for column in range(4 * update.kind.output):
        m.requires_grad_()
        slopes.append(torch.autograd.grad(update(h, m)[:, column].sum(), m)[0])
    assert bool((torch.stack(slopes) >= 0).all()) == (name not in NOT_MONOTONE)


@pytest.mark.parametrize("aggregate", ["max", "min"])
def test_settings_refuse_an_update_that_is_not_monotone(aggregate) -> None:
    with refused(ValidationError, key="update", value="difference"):
        HorizontalSettings(aggregate=aggregate, update="difference")
    assert HorizontalSettings(aggregate="mean", update="difference", edges="disjoint").update == "difference"


def test_settings_refuse_what_cannot_be_exact_or_has_no_weights() -> None:
    with refused(ValidationError, key="edges", value="may-overlap"):
        HorizontalSettings(aggregate="mean")
    with refused(ValidationError, key="server.linear", value="False"):
        horizontal(message="none", server={"linear": False})


@settings(max_examples=40)
@given(holders=st.integers(1, 5), nodes=st.integers(1, 7), width=st.integers(0, 3), seed=st.integers(0, 999))
def test_pooling_over_holders_equals_the_slow_one(holders, nodes, width, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.rand(nodes, generator=generator).lt(0.6).nonzero().reshape(-1) for _ in range(holders)]
    pieces = [torch.randint(-2, 3, (len(at), width), generator=generator).double().requires_grad_() for at in rows]
    weight = torch.randn(nodes, width, dtype=torch.float64, generator=generator)

    largest = torch.full((nodes, width), -INFINITY, dtype=torch.float64)
    added = torch.zeros(nodes, width, dtype=torch.float64)
    winners = [torch.zeros(len(at), width, dtype=torch.float64) for at in rows]
    for node in range(nodes):
        for column in range(width):
            values = {p: pieces[p][list(at).index(node), column] for p, at in enumerate(rows) if node in at}
            if values:
                first = max(values, key=lambda p: (values[p].item(), -p))
                largest[node, column] = values[first].detach()
                added[node, column] = sum(value.item() for value in values.values())
                winners[first][list(rows[first]).index(node), column] = weight[node, column]
    result = maximum(pieces, rows, nodes)
    assert torch.equal(result, largest)
    assert torch.equal(total(pieces, rows, nodes), added)
    gradients = torch.autograd.grad(result, pieces, weight)
    for gradient, expected in zip(gradients, winners, strict=True):
        assert torch.equal(gradient, expected)


def test_pooling_lets_a_nan_through() -> None:
    pieces = [torch.tensor([[1.0], [float("nan")]]), torch.tensor([[float("nan")], [1.0]])]
    assert bool(maximum(pieces, [torch.arange(2)] * 2, 2).isnan().all())


NETWORKS = [
    (update, message, has_linear, aggregate)
    for update, message, has_linear, aggregate in product(UPDATES, ("linear", "none"), (True, False), ("max", "mean"))
    if (message == "linear" or has_linear) and (aggregate == "mean" or update not in NOT_MONOTONE)
]
"""All that the settings do not refuse."""


@nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("update", "message", "has_linear", "aggregate"), NETWORKS)
def test_widths_and_dtypes_are_as_announced(dtype, update, message, has_linear, aggregate) -> None:
    chosen = horizontal(
        layers=3, dim=5, update=update, message=message, aggregate=aggregate, server={"linear": has_linear}
    )
    adjacency = random_adjacency(dtype=dtype)
    holder = LayeredHolder(chosen, 7, 4, STREAMS, dtype)
    server = LayeredServer(chosen, 7, STREAMS, dtype)
    h: torch.Tensor | FixedInput = FixedInput(torch.rand(12, 7), dtype)
    for index, widths in enumerate(layer_widths(chosen, 7)):
        sent = holder.layer(index)(h, adjacency)
        combined = server.layer(index).combine([sent], [torch.arange(12)], 12, adjacency.degrees.unsqueeze(1))
        h = server.layer(index).update(combined, None)
        assert [tensor.shape[1] for tensor in (sent, combined, h)] == [widths.sent, widths.combined, widths.output]
        assert h.dtype == dtype
        assert bool(torch.isfinite(sent).all()), "what is sent of a node that a holder knows is finite"
    assert holder.predict(h).shape == (12, 4)


def test_equation_23_by_hand() -> None:
    """With message none and update sum, both layers are W·(h_v + max of the neighbours' h_u), ReLU between them."""
    chosen = horizontal(message="none", dim=5)
    adjacency = random_adjacency(10, 25)
    holder = LayeredHolder(chosen, 4, 3, STREAMS, torch.float64)
    server = LayeredServer(chosen, 4, STREAMS, torch.float64)
    x = torch.rand(10, 4, dtype=torch.float64)

    def pooled(h):
        rows = []
        for node in range(10):
            neighbours = adjacency.edge_index[0, adjacency.edge_index[1] == node]
            rows.append(h[node] + (h[neighbours].amax(dim=0) if len(neighbours) else 0))
        return torch.stack(rows)

    first = server.layer(0).linear
    hidden = torch.relu(pooled(x) @ there(first).weight.T + there(first).bias)
    expected = pooled(hidden) @ holder.predict.weight.T + holder.predict.bias

    h: torch.Tensor | FixedInput = FixedInput(x, torch.float64)
    for index in range(2):
        sent = holder.layer(index)(h, adjacency)
        h = server.layer(index).update(server.layer(index).combine([sent], [torch.arange(10)], 10), None)
    torch.testing.assert_close(holder.predict(h), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("update", ["sum", "concat"])
def test_min_is_the_mirror_image_of_max(update) -> None:
    adjacency, x = random_adjacency(), torch.randn(12, 3, dtype=torch.float64)
    made = {}
    for aggregate, sign in (("max", 1), ("min", -1)):
        chosen = horizontal(aggregate=aggregate, update=update, dim=4)
        sent = LayeredHolder(chosen, 3, 2, STREAMS, torch.float64).layer(0)(
            FixedInput(sign * x, torch.float64), adjacency
        )
        server = LayeredServer(chosen, 3, STREAMS, torch.float64).layer(0)
        rows = [torch.arange(12), torch.tensor([11, 0, 5])]
        made[aggregate] = sign * server.combine([sent, sent[rows[1]] + sign], rows, 12)
    torch.testing.assert_close(made["max"], made["min"], rtol=0, atol=0)


def test_sparse_features_equal_dense_ones() -> None:
    x = torch.rand(30, 20, generator=torch.Generator().manual_seed(1))
    x = torch.where(x > 0.9, x, 0.0)
    weight = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    assert compact(x).layout == torch.sparse_csr
    sparse, dense = FixedInput(compact(x), torch.float64), FixedInput(x, torch.float64)
    torch.testing.assert_close(sparse.times(weight), dense.times(weight))
    assert torch.equal(sparse.dense(), dense.dense())
    gradients = [torch.autograd.grad(kind.times(weight).cos().sum(), weight)[0] for kind in (sparse, dense)]
    torch.testing.assert_close(*gradients)


def test_the_first_layer_is_fixed_exactly_where_it_has_no_weights() -> None:
    for update, message in product(UPDATES, ("linear", "none")):
        chosen = horizontal(layers=3, update=update, message=message, aggregate="mean")
        weights = list(LayeredHolder(chosen, 7, 4, STREAMS, torch.float64).layer(0).parameters())
        assert first_is_fixed(chosen) == (not weights)
        assert list(published_layers(chosen, 0)) == [0, 1, 2]
        assert list(published_layers(chosen, 1)) == list(learning_layers(chosen)) == ([0, 1, 2] if weights else [1, 2])
    single = horizontal(layers=1, message="none")
    assert [list(published_layers(single, step)) for step in (0, 1)] == [[0], []]


def test_a_compacted_input_is_the_same_without_its_gradient() -> None:
    for share, wide in product((0.9, 0.1), (torch.float32, torch.float64)):
        x = torch.rand(30, 20, dtype=wide, generator=torch.Generator().manual_seed(1))
        x = torch.where(x > share, x, 0.0).requires_grad_()
        weight = torch.randn(20, 3, dtype=wide)
        kept = FixedInput.compacted(x, wide)
        assert not kept.dense().requires_grad
        assert torch.equal(kept.dense(), x.detach())
        torch.testing.assert_close(kept.times(weight), x.detach() @ weight)


def test_the_global_update_is_linear_norm_activation_dropout() -> None:
    chosen = horizontal(dim=4, server={"batch_norm": True, "activation": "tanh", "dropout": 0.5})
    layer = LayeredServer(chosen, 3, STREAMS, torch.float64).layer(0)
    m = torch.randn(50, 4, dtype=torch.float64)
    mapped = (m @ there(layer.linear).weight.T).detach()
    assert there(layer.linear).bias is None
    made = layer.update(m, torch.Generator().manual_seed(5)).detach()
    normal = (mapped - mapped.mean(0)) / (mapped.var(0, correction=0) + there(layer.norm).eps).sqrt()
    kept = made != 0
    assert 0.3 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(made, torch.where(kept, 2 * normal.tanh(), 0.0))
    running = 0.9 * torch.zeros(4, dtype=torch.float64) + 0.1 * mapped.mean(0)
    torch.testing.assert_close(there(layer.norm).running_mean, running)
    spread = (0.9 + 0.1 * mapped.var(0) + there(layer.norm).eps).sqrt()
    torch.testing.assert_close(layer.update(m, None).detach(), ((mapped - running) / spread).tanh())


def test_the_last_layer_has_no_global_update() -> None:
    layer = LayeredServer(horizontal(layers=1, server={"batch_norm": True}), 3, STREAMS, torch.float64).layer(0)
    m = torch.randn(5, 64, dtype=torch.float64)
    assert layer.update(m, torch.Generator()) is m
    assert list(layer.parameters()) == []


def test_refusals_of_the_server() -> None:
    norm = LayeredServer(horizontal(server={"batch_norm": True}), 3, STREAMS, torch.float64).layer(0)
    with refused(DataError, key="server.batch_norm", value=True):
        norm.update(torch.zeros(1, 64, dtype=torch.float64), None)
    mean = LayeredServer(horizontal(aggregate="mean"), 3, STREAMS, torch.float64).layer(0)
    with refused(DataError, key="aggregate", value="mean"):
        mean.combine([torch.zeros(1, 128, dtype=torch.float64)], [torch.arange(1)], 1)
