import pytest
import torch
from torch import nn
from torch_geometric.nn import APPNP, GCNConv, GINConv, SAGEConv

from tests.nn.graphs import random_adjacency, weighted_adjacency
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local import LOCAL_MODELS, CustomLocal, build_local
from veilgraph.nn.propagate import Adjacency
from veilgraph.nn.settings import LocalSettings

KINDS = sorted(LOCAL_MODELS)
DIM = 8


def build(kind, *, seed=0, holders=2, last_round=False, custom=None, dtype=torch.float64, **changes):
    return build_local(
        LocalSettings(model=kind, **changes),
        DIM,
        holders,
        last_round=last_round,
        streams=LearningStreams(seed, "A"),
        round=0,
        custom=custom,
        dtype=dtype,
    )


def embedding(nodes=12, seed=1):
    return torch.randn(nodes, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_shape_dtype_and_gradient(self, kind, dtype):
        model, h = build(kind, dtype=dtype, dropout=0.3), embedding().to(dtype).requires_grad_()
        out = model(h, h, random_adjacency(dtype=dtype), generator())
        assert out.shape == h.shape
        assert out.dtype == dtype
        out.sum().backward()
        assert h.grad is not None
        assert all(parameter.grad is not None for parameter in model.parameters())

    def test_the_seed_fixes_everything(self, kind):
        h, adjacency = embedding(), random_adjacency()
        before = torch.get_rng_state()
        results = [build(kind, dropout=0.5)(h, h, adjacency, generator()) for _ in range(2)]
        assert torch.equal(*results)
        assert torch.equal(before, torch.get_rng_state())
        if kind != "appnp":
            assert not torch.equal(results[0], build(kind, dropout=0.5, seed=1)(h, h, adjacency, generator()))
        assert not torch.equal(results[0], build(kind, dropout=0.5)(h, h, adjacency, generator(4)))

    def test_evaluation_has_no_randomness(self, kind):
        h, adjacency, model = embedding(), random_adjacency(), build(kind, dropout=0.5)
        assert torch.equal(model(h, h, adjacency, None), model(h, h, adjacency, None))

    def test_renaming_the_nodes_renames_the_result(self, kind):
        h, adjacency, model = embedding(), random_adjacency(), build(kind)
        new = torch.randperm(12, generator=generator())
        moved = torch.empty_like(h)
        moved[new] = h
        renamed = Adjacency.of_edges(new[adjacency.edge_index], None, 12, torch.float64)
        expected = model(h, h, adjacency, None)
        torch.testing.assert_close(model(moved, moved, renamed, None)[new], expected)

    def test_isolated_nodes_and_no_edges(self, kind):
        h, model = embedding(), build(kind)
        empty = Adjacency.of_edges(torch.empty(2, 0, dtype=torch.int64), None, 12, torch.float64)
        for randomness in (None, generator()):
            out = model(h, h, empty, randomness)
            assert torch.isfinite(out).all()
        some = random_adjacency()
        torch.testing.assert_close(model(h, h, some, None)[10:], model(h, h, empty, None)[10:])

    def test_one_node(self, kind):
        h = embedding(1)
        loop = Adjacency.of_edges(torch.zeros(2, 1, dtype=torch.int64), None, 1, torch.float64)
        assert torch.isfinite(build(kind)(h, h, loop, None)).all()

    def test_no_hops_return_the_input(self, kind):
        h = embedding()
        assert torch.equal(build(kind, hops=0, dropout=0.5)(h, h, random_adjacency(), generator()), h)

    def test_rows_have_length_1_in_the_last_round_only(self, kind):
        h, adjacency = embedding(), random_adjacency()
        h[11] = 0  # an isolated node without features stays zero instead of nan
        last, earlier = (build(kind, last_round=flag)(h, h, adjacency, None) for flag in (True, False))
        torch.testing.assert_close(last[:10].norm(dim=1), torch.ones(10, dtype=torch.float64))
        assert not torch.allclose(earlier[:10].norm(dim=1), torch.ones(10, dtype=torch.float64))
        assert torch.isfinite(last).all()


def test_sage_mean_is_equation_4():
    h, adjacency = embedding(), random_adjacency()
    model = build("sage-mean", hops=1, activation="none")
    weight = model.hops[0].update.weight
    expected = torch.cat([h, adjacency.mean(h)], dim=1) @ weight.T
    torch.testing.assert_close(model(h, h, adjacency, None), expected)


def test_sage_lstm_is_one_sequence_per_node():
    h, adjacency, model = embedding(), random_adjacency(), build("sage-lstm", hops=1, activation="none")
    hop = model.hops[0]
    last = torch.zeros_like(h)
    for node in range(12):
        neighbours = adjacency.edge_index[0, adjacency.edge_index[1] == node]
        if len(neighbours):
            last[node] = hop.lstm(h[neighbours])[0][-1]
    torch.testing.assert_close(model(h, h, adjacency, None), hop.update(torch.cat([h, last], dim=1)))


def test_sage_pool_is_pyg():
    h, adjacency, model = embedding(), random_adjacency(), build("sage-pool", hops=1, activation="none")
    conv = SAGEConv(DIM, DIM, aggr="max", project=True).double()
    conv.lin.load_state_dict(model.hops[0].pool.state_dict())
    update = model.hops[0].update.weight.data
    conv.lin_r.weight.data, conv.lin_l.weight.data = update[:, :DIM], update[:, DIM:]
    conv.lin_l.bias.data.zero_()
    torch.testing.assert_close(model(h, h, adjacency, None), conv(h, adjacency.edge_index))


def no_loops(adjacency):
    keep = adjacency.edge_index[0] != adjacency.edge_index[1]
    return weighted_adjacency(adjacency.edge_index[:, keep], adjacency.edge_weight[keep], adjacency.num_nodes)


def test_gcn_is_pyg():
    h, adjacency, model = embedding(), no_loops(random_adjacency(weighted=True)), build("gcn", hops=1)
    conv = GCNConv(DIM, DIM).double()
    conv.lin.weight.data = model.hops[0].weight.weight.data
    expected = conv(h, adjacency.edge_index, adjacency.edge_weight).tanh()
    torch.testing.assert_close(model(h, h, adjacency, None), expected)


def test_gin_is_pyg():
    h, adjacency, model = embedding(), random_adjacency(), build("gin", hops=1, activation="none")
    conv = GINConv(model.hops[0].mlp, train_eps=True)
    torch.testing.assert_close(model(h, h, adjacency, None), conv(h, adjacency.edge_index))


def test_appnp_has_no_weights_and_one_holder_is_the_plain_recursion():
    h, adjacency = embedding(), random_adjacency()
    model = build("appnp", hops=3, holders=1, teleport=0.2)
    assert not list(model.parameters())
    conv = APPNP(3, 0.2, normalize=False, add_self_loops=False)
    loops = torch.arange(12).repeat(2, 1)
    edges = torch.cat([adjacency.edge_index, loops], dim=1)
    weight = (1 / (adjacency.degrees + 1))[edges[1]]
    torch.testing.assert_close(model(h, h, adjacency, None), conv(h, edges, weight))


@pytest.mark.parametrize("kind", ["sage-mean", "gcn", "gin", "appnp"])
def test_edge_weights_count(kind):
    h, model = embedding(), build(kind)
    with_weights, without = random_adjacency(weighted=True), random_adjacency()
    assert not torch.allclose(model(h, h, with_weights, None), model(h, h, without, None))


class Conv(nn.Module):
    def __init__(self, in_dim, out_dim, p=0.0):
        super().__init__()
        self.conv, self.drop = SAGEConv(in_dim, out_dim), nn.Dropout(p)

    def forward(self, x, edge_index):
        return self.drop(self.conv(x, edge_index))


class TestCustom:
    def test_a_module_of_the_users(self):
        h, adjacency = embedding(), random_adjacency()
        results = [
            build("custom", custom=lambda dim: Conv(dim, dim, 0.5))(h, h, adjacency, generator()) for _ in range(2)
        ]
        assert torch.equal(*results)
        assert (results[0] == 0).any()

    def test_training_and_evaluation(self):
        h, adjacency = embedding(), random_adjacency()
        model = build("custom", custom=lambda dim: Conv(dim, dim, 0.5), last_round=True)
        before = torch.get_rng_state()
        model(h, h, adjacency, generator())
        assert torch.equal(before, torch.get_rng_state())
        assert model.module.training
        out = model(h, h, adjacency, None)
        assert not model.module.training
        torch.testing.assert_close(out.norm(dim=1), torch.ones(12, dtype=torch.float64))

    def test_a_wrong_width_is_refused(self):
        h = embedding()
        model = CustomLocal(Conv(DIM, 5).double())
        with pytest.raises(ConfigError, match=r"local.model='custom'.*\[12, 5\].*dim=8"):
            model(h, h, random_adjacency(), None)

    @pytest.mark.parametrize(("kind", "custom"), [("custom", None), ("gcn", lambda dim: Conv(dim, dim))])
    def test_the_setting_and_the_module_go_together(self, kind, custom):
        with pytest.raises(ConfigError, match=r"local.model"):
            build(kind, custom=custom)
