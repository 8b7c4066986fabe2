import sys

import pytest
import torch
from torch import nn
from torch_geometric.nn import APPNP, GCNConv, GINConv, GraphConv, SAGEConv
from torch_geometric.nn.aggr import VariancePreservingAggregation
from veilgraph_testing.local_model import LocalModelConformance

from tests.errors import refused
from tests.nn.graphs import random_adjacency
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.rules import Relation
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.protocol.job_file import parse_job

DIM = 8


def build(kind, *, seed=0, holders=2, last_round=False, custom=None, dtype=torch.float64, **changes):
    return build_local(
        local_settings({"model": kind, **changes}),
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


class TestSageMean(LocalModelConformance):
    name = "sage-mean"


class TestSageMeanFromTheAverage(LocalModelConformance):
    name, said = "sage-mean", {"start": "average"}

    def test_the_seed_fixes_everything(self):
        """Its first weights are not drawn: a node starts as the mean of itself and its neighbours' mean."""
        h, adjacency = embedding(), random_adjacency()
        for seed in (0, 1):
            model = self.build(seed=seed, hops=1, activation="none")
            torch.testing.assert_close(model(h, h, adjacency, None), (h + adjacency.mean(h)) / 2)


class TestSageLstm(LocalModelConformance):
    name = "sage-lstm"


class TestSagePool(LocalModelConformance):
    name = "sage-pool"


class TestSageVpa(LocalModelConformance):
    name = "sage-vpa"


class TestGcn(LocalModelConformance):
    name = "gcn"


class TestGat(LocalModelConformance):
    name = "gat"


class TestGin(LocalModelConformance):
    name = "gin"


class TestAppnp(LocalModelConformance):
    name = "appnp"


class TestRelational(LocalModelConformance):
    name, relations = "relational", (Relation("calls"), Relation("pays", hops=1), Relation("100 % shares. of"))


class TestRelationalOfEdgesAlike(LocalModelConformance):
    name = "relational"


class TestCustomModel(LocalModelConformance):
    name, hops = "custom", (2,)

    def custom(self):
        return lambda dim: Conv(dim, dim, 0.5)


def test_a_job_of_a_first_model_spells_out_the_settings_of_all_of_them():
    """Its hash is of them: one key less would be another job."""
    keys = {"model", "hops", "activation", "normalize", "dropout", "teleport", "heads", "fanout", "start"}
    for name in ("sage-mean", "sage-lstm", "sage-pool", "gcn", "gat", "gin", "appnp", "custom"):
        assert local_settings({"model": name, "teleport": 0.3}).model_dump().keys() == keys | {"learning_rate"}


def test_every_model_is_held_to_the_suite():
    named = [each.name for each in LocalModelConformance.__subclasses__()]
    assert set(named) >= set(LOCAL_MODELS.own)


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


def test_sage_vpa_is_pyg():
    h, adjacency, model = embedding(), random_adjacency(), build("sage-vpa", hops=1, activation="none", correlation=0)
    conv = SAGEConv(DIM, DIM, aggr=VariancePreservingAggregation(), bias=False).double()
    update = model.hops[0].update.weight.data
    conv.lin_r.weight.data, conv.lin_l.weight.data = update[:, :DIM], update[:, DIM:]
    torch.testing.assert_close(model(h, h, adjacency, None), conv(h, adjacency.edge_index))


def test_a_unit_variance_sum_keeps_the_variance_of_independent_neighbours_whatever_the_weights():
    """Of two neighbours and of fifty, of weight 1 and of 1,000: a mean's falls with their number, a sum's grows."""
    for weights in (torch.ones(2), torch.ones(50), torch.full((50,), 1000.0), torch.arange(1.0, 51)):
        sources = torch.arange(1, len(weights) + 1)
        edges = torch.stack([sources, torch.zeros_like(sources)])
        adjacency = Adjacency.of_edges(edges, weights, len(weights) + 1, torch.float64)
        h = torch.randn(len(weights) + 1, 40_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert adjacency.unit_variance_sum(h)[0].var().item() == pytest.approx(1, abs=0.04)
        assert not adjacency.unit_variance_sum(h)[1:].any()
        torch.testing.assert_close(
            adjacency.mean(h)[0] * weights.sum() / weights.norm(), adjacency.unit_variance_sum(h)[0]
        )


def test_a_unit_variance_sum_of_neighbours_that_are_alike_keeps_their_variance_and_a_hub_drowns_nobody():
    """Were they not taken to be alike, a hub's would be larger by the root of their number."""
    for correlation, neighbours in ((0.02, 3), (0.02, 20_000), (0.3, 50), (1, 50)):
        sources = torch.arange(1, neighbours + 1)
        edges = torch.stack([sources, torch.zeros_like(sources)])
        adjacency = Adjacency.of_edges(edges, torch.ones(neighbours), neighbours + 1, torch.float64)
        ones = torch.ones(neighbours + 1, 1, dtype=torch.float64)
        variance = (1 - correlation) * neighbours + correlation * neighbours**2
        found = adjacency.unit_variance_sum(ones, correlation)[0].item()
        assert found == pytest.approx(neighbours / variance**0.5)
        assert found < correlation**-0.5 + 1e-9
        assert adjacency.unit_variance_sum(ones, 1)[0].item() == pytest.approx(1)


def test_a_node_whose_edges_weigh_nothing_has_a_unit_variance_sum_of_nothing():
    adjacency = Adjacency.of_edges(torch.tensor([[1, 2], [0, 0]]), torch.zeros(2), 3, torch.float64)
    for correlation in (0, 0.5, 1):
        assert not adjacency.unit_variance_sum(torch.ones(3, 2, dtype=torch.float64), correlation).any()


def test_neighbours_are_taken_to_be_as_alike_as_is_said():
    h, adjacency = embedding(), random_adjacency(weighted=True)
    told = {
        rho: build("sage-vpa", hops=1, activation="none", correlation=rho)(h, h, adjacency, None) for rho in (0, 0.4, 1)
    }
    torch.testing.assert_close(told[1], build("sage-mean", hops=1, activation="none")(h, h, adjacency, None))
    assert not torch.allclose(told[0], told[0.4])
    with refused(ConfigError, key="model.local.correlation"):
        parse_job({"model": {"local": {"model": "sage-vpa", "correlation": 1.5}}})


def no_loops(adjacency):
    keep = adjacency.edge_index[0] != adjacency.edge_index[1]
    weight = adjacency.edge_weight[keep]
    return Adjacency.of_edges(adjacency.edge_index[:, keep], weight, adjacency.num_nodes, torch.float64)


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


def test_gat_multiplies_attention_by_weights():
    """A weight of 2 is two edges, and a loop of the graph's own replaces none."""
    h, model = embedding(), build("gat", hops=1)
    once = Adjacency.of_edges(torch.tensor([[0, 1, 2], [3, 3, 3]]), torch.tensor([1.0, 2, 1]), 12, torch.float64)
    twice = Adjacency.of_edges(torch.tensor([[0, 1, 1, 2], [3, 3, 3, 3]]), None, 12, torch.float64)
    torch.testing.assert_close(model(h, h, once, None), model(h, h, twice, None))


def test_gat_leaves_no_file_in_the_temporary_folder():
    build("gat")
    made = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    assert not [name for name, file in made.items() if "WeightedAttention" in name or "WeightedAttention" in file]


def test_sage_pool_and_lstm_multiply_what_neighbours_say():
    h, weighted = embedding(), random_adjacency(weighted=True)
    source, target = weighted.edge_index
    pool, lstm = (build(kind, hops=1, activation="none").hops[0] for kind in ("sage-pool", "sage-lstm"))
    most, last = torch.zeros_like(h), torch.zeros_like(h)
    for node in range(12):
        weight = weighted.edge_weight[target == node, None]
        if len(weight):
            most[node] = (weight * pool.pool(h).relu()[source[target == node]]).amax(dim=0)
            last[node] = lstm.lstm(weight * h[source[target == node]])[0][-1]
    torch.testing.assert_close(pool.aggregate(h, weighted, None), most)
    torch.testing.assert_close(lstm.aggregate(h, weighted, None), last)


def test_drawn_neighbours_have_their_own_weights_in_a_maximum_and_boosted_ones_in_a_sum():
    adjacency = Adjacency.of_edges(torch.tensor([[1, 2, 3], [0, 0, 0]]), torch.tensor([2.0, 2, 2]), 4, torch.float64)
    (drawn,) = Sampler(adjacency, 1, 1).around(torch.tensor([0]), generator()).layers(1)
    ones = torch.ones(2, 1, dtype=torch.float64)
    assert [each.item() for each in (drawn.sum(ones), drawn.mean(ones), drawn.maximum(ones))] == [6, 1, 2]
    torch.testing.assert_close(drawn.edge_weight, torch.tensor([2.0], dtype=torch.float64))


class Conv(nn.Module):
    def __init__(self, in_dim, out_dim, p=0.0):
        super().__init__()
        self.conv, self.drop = GraphConv(in_dim, out_dim), nn.Dropout(p)

    def forward(self, x, edge_index, edge_weight=None):
        return self.drop(self.conv(x, edge_index, edge_weight))


class TestCustom:
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
        model = build("custom", custom=lambda dim: Conv(dim, 5))
        with refused(ConfigError, key="local.model", value="custom"):
            model(h, h, random_adjacency(), None)

    def test_weights_that_the_module_does_not_take_are_refused(self):
        h = embedding()
        model = build("custom", custom=lambda dim: SAGEConv(dim, dim))
        model(h, h, random_adjacency(), None)
        with refused(ConfigError, key="local.model", value="custom"):
            model(h, h, random_adjacency(weighted=True), None)

    @pytest.mark.parametrize(("kind", "custom"), [("custom", None), ("gcn", lambda dim: Conv(dim, dim))])
    def test_the_setting_and_the_module_go_together(self, kind, custom):
        with refused(ConfigError, key="local.model", value=kind):
            build(kind, custom=custom)
