import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected, to_undirected

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.features import compact, scale_features, scale_together
from veilgraph.graph.partition import split_for_learner, split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.nn.propagate import Adjacency

NAMES = ["A", "B", "C"]


def split(data, names=NAMES, seed=0, **changes):
    return split_vertically(data, names=names, label_holder="B", seed=seed, **changes)


def edge_set(edge_index):
    return set(map(tuple, edge_index.T.tolist()))


def numbers(tensor):
    return tensor.tolist()


def columns(features):
    return sorted(map(tuple, features.to_dense().T.tolist()))


def test_columns_and_edges_are_an_exact_partition():
    data = synthetic_data(100, 12, seed=3)
    parts = split(data)
    assert columns(torch.cat([part.features for part in parts], dim=1)) == columns(data.x)
    assert not torch.equal(parts[0].features, data.x[:, :4])  # dealt, not cut in order
    assert sum(part.num_edges for part in parts) == data.num_edges
    assert set.union(*(edge_set(part.edge_index) for part in parts)) == edge_set(data.edge_index)
    assert all(is_undirected(part.edge_index) for part in parts)
    assert [part.labels is not None for part in parts] == [False, True, False]
    assert [part.party for part in parts] == NAMES
    assert torch.equal(parts[1].test_mask, data.test_mask)
    assert parts[1].num_classes == 3


@settings(max_examples=25)
@given(
    features=st.integers(2, 9),
    edges=st.integers(0, 20),
    shares=st.lists(st.floats(0.01, 100), min_size=2, max_size=2),
    directed=st.booleans(),
    seed=st.integers(0, 50),
)
def test_any_graph(features, edges, shares, directed, seed):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, 6, (2, edges), generator=generator)  # loops and copies too
    edge_index = edge_index if directed else torch.cat([edge_index, edge_index.flip(0)], dim=1)
    weight = 1 + torch.arange(edge_index.shape[1], dtype=torch.float32)
    x = torch.randn(6, features, generator=generator)
    parts = split_vertically(
        Data(x=x, edge_index=edge_index, edge_weight=weight),
        names=["A", "B"],
        feature_proportions=shares,
        edge_proportions=shares,
        label_holder="A",
        seed=seed,
    )
    assert sum(part.num_features for part in parts) == features
    assert min(part.num_features for part in parts) >= 1
    assert abs(parts[0].num_features - min(max(features * shares[0] / sum(shares), 1), features - 1)) <= 1
    triples = [
        (*edge, number)
        for part in parts
        for edge, number in zip(part.edge_index.T.tolist(), numbers(part.edge_weight), strict=True)
    ]
    assert sorted(triples) == sorted(
        (*edge, number) for edge, number in zip(edge_index.T.tolist(), weight.tolist(), strict=True)
    )
    assert not edge_set(parts[0].edge_index) & edge_set(parts[1].edge_index)
    if not directed:
        assert all(edge_set(part.edge_index) == edge_set(part.edge_index.flip(0)) for part in parts)


def test_proportions():
    data = synthetic_data(200, 20, seed=1)
    parts = split(data, feature_proportions=(0.6, 0.3, 0.1), edge_proportions=(1, 2, 7))
    assert [part.num_features for part in parts] == [12, 6, 2]
    pairs = data.num_edges // 2
    for part, share in zip(parts, (0.1, 0.2, 0.7), strict=True):
        assert abs(part.num_edges / 2 - pairs * share) <= 1


def test_sparse_features_stay_sparse():
    x = (torch.rand(50, 40, generator=torch.Generator().manual_seed(0)) < 0.05).float()
    data = synthetic_data(50, 40)
    data.x = compact(x)
    assert data.x.layout == torch.sparse_csr
    parts = split(data)
    assert all(part.features.layout == torch.sparse_csr for part in parts)
    pooled = pool(parts, "B")
    assert pooled.features.layout == torch.sparse_csr
    assert columns(pooled.features) == columns(x)


def test_too_few_columns():
    with refused(DataError, key="features"):
        split(synthetic_data(40, 2))


@pytest.mark.parametrize("argument", ["feature_proportions", "edge_proportions"])
@pytest.mark.parametrize("value", [(1, 2), (1, 0, 1), (1, float("nan"), 1), (1, float("inf"), 1)])
def test_bad_proportions(argument, value):
    with refused(DataError, key=argument):
        split(synthetic_data(40, 6), **{argument: value})


@pytest.mark.parametrize("name", ["", "server"])
def test_a_name_that_no_holder_may_have(name):
    with refused(DataError, key="party", party=name):
        split(synthetic_data(60, 12), names=["B", name])


class TestPool:
    def test_a_split_graph_comes_back(self):
        data = synthetic_data(80, 10)
        parts = split(data)
        pooled = pool(parts, "B")
        pooled.validate()
        assert torch.equal(pooled.features, torch.cat([part.features for part in parts], dim=1))
        assert edge_set(pooled.edge_index) == edge_set(data.edge_index)
        assert pooled.edge_weight is None
        assert numbers(pooled.labels) == numbers(data.y)

    def test_a_common_edge_counts_as_often_as_it_is_held(self):
        def part(name, edges, weight=None):
            return PartyGraph(
                name, torch.ones(3, 1), to_undirected(torch.tensor(edges).T), weight, torch.tensor([0, 1, -1])
            )

        for weight in (None, torch.tensor([2.0, 2.0])):
            parts = [part("A", [[0, 1], [1, 2]]), part("B", [[0, 1]], weight)]
            pooled = pool(parts, "A")
            assert pooled.num_edges == 4
            x = torch.eye(3)
            sums = [Adjacency.from_graph(graph, torch.float32).sum(x) for graph in parts]
            assert torch.equal(Adjacency.from_graph(pooled, torch.float32).sum(x), sums[0] + sums[1])

    def test_nodes_of_a_single_holder_are_left_out(self):
        data = synthetic_data(40, 4)
        whole = [PartyGraph.from_data("A", data), PartyGraph.from_data("B", data)]
        known = [PartyGraph.from_data("A", data, num_common=30), PartyGraph.from_data("B", data, num_common=30)]
        pooled = pool(known, "A")
        assert torch.equal(pooled.features, pool(whole, "A").features[:30])
        assert pooled.edge_index.max() < 30
        inside = (data.edge_index < 30).all(dim=0)
        assert edge_set(pooled.edge_index) == edge_set(data.edge_index[:, inside])
        assert numbers(pooled.labels) == numbers(data.y[:30])

    def test_what_is_refused(self):
        small, large = synthetic_data(40, 4), synthetic_data(41, 4)
        graphs = [PartyGraph.from_data("A", small), PartyGraph.from_data("B", large)]
        with refused(DataError, key="holders"):
            pool(graphs, "A")
        with refused(DataError, key="label_holder", value="C"):
            pool(graphs[:1], "C")


class TestScaling:
    x = torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.0, 5.0], [0.0, 0.0, 5.0], [-1.0, 1.0, 5.0]], dtype=torch.float64)

    def scaled(self, x, scaling):
        return scale_features(PartyGraph("A", x, torch.empty(2, 0, dtype=torch.int64)), scaling).features

    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(
        ("scaling", "rows", "expected"),
        [
            ("row", [[1, 3], [0, 0], [-1, 1]], [[0.25, 0.75], [0, 0], [-0.5, 0.5]]),
            ("length", [[3, 4], [0, 0], [0, -2]], [[0.6, 0.8], [0, 0], [0, -1]]),
        ],
    )
    def test_rows(self, scaling, rows, expected, sparse, dtype):
        x = torch.tensor(rows, dtype=dtype)
        out = self.scaled(x.to_sparse_csr() if sparse else x, scaling)
        assert (out.layout == torch.sparse_csr) == sparse
        torch.testing.assert_close(out.to_dense(), torch.tensor(expected, dtype=dtype))

    @pytest.mark.parametrize("sparse", [False, True])
    def test_standard(self, sparse):
        out = self.scaled(self.x.to_sparse_csr() if sparse else self.x, "standard")
        assert out.layout == torch.strided
        torch.testing.assert_close(out.mean(0), torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(out.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))

    @pytest.mark.parametrize("scaling", ["standard", "together"])
    def test_numbers_that_are_too_large_to_be_scaled(self, scaling):
        graph = PartyGraph(
            "A", torch.tensor([[1.5e308], [1.6e308]], dtype=torch.float64), torch.empty(2, 0, dtype=torch.int64)
        )
        with refused(DataError, key="features", party="A"):
            scale_features(graph, scaling) if scaling == "standard" else scale_together([graph, graph], "standard")


# For a learner that knows the graph


def learned(learner="B", labels_at="B", names=NAMES, seed=0, data=None):
    whole = PartyGraph.from_data("whole", data or synthetic_data(100, 12, seed=3))
    return whole, split_for_learner(whole, names=names, learner=learner, labels_at=labels_at, seed=seed)


@pytest.mark.parametrize("labels_at", ["B", "C"])
def test_the_learner_has_all_edges_and_the_others_all_columns(labels_at):
    whole, parts = learned(labels_at=labels_at)
    assert [part.party for part in parts] == NAMES
    a, b, c = parts
    assert torch.equal(b.edge_index, whole.edge_index)
    assert (a.num_edges, c.num_edges) == (0, 0)
    assert b.num_features == 1
    assert not bool(b.features.to_dense().any()), "a holder has a column; this one says nothing"
    assert columns(torch.cat([a.features, c.features], dim=1)) == columns(whole.features)
    assert (a.num_features, c.num_features) == (6, 6)
    assert not torch.equal(a.features, whole.features[:, :6]), "dealt, not cut in order"
    for part in parts:
        has = part.party == labels_at
        assert (part.labels is not None, part.num_classes) == (has, 3 if has else None)
        for mask in ("train_mask", "val_mask", "test_mask"):
            given = getattr(part, mask)
            assert given is None if not has else torch.equal(given, getattr(whole, mask))


def test_weights_stay_with_the_edges_of_the_learner_and_sparse_columns_stay_sparse():
    data = synthetic_data(100, 40, seed=3)
    data.edge_weight = torch.rand(data.num_edges)
    data.x = torch.where(torch.rand(100, 40, generator=torch.Generator().manual_seed(0)) < 0.05, data.x, 0.0)
    whole, (a, b) = learned(learner="A", labels_at="A", names=["A", "B"], data=data)
    assert torch.equal(a.edge_weight, whole.edge_weight)
    assert b.edge_weight is None
    assert b.features.layout == torch.sparse_csr
    assert torch.equal(b.features.to_dense(), data.x)


def test_features_of_edges_go_with_their_edges():
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 6, (2, 20), generator=generator)
    numbers = torch.arange(20.0).unsqueeze(1).repeat(1, 2)
    data = Data(x=torch.ones(6, 2), edge_index=edge_index, edge_attr=numbers)
    for part in split_vertically(data, names=["A", "B"], label_holder="A", seed=0):
        assert part.edge_features is not None
        assert torch.equal(edge_index[:, part.edge_features[:, 0].long()], part.edge_index)
