import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import nightly
from tests.nn.graphs import dense, random_adjacency


def slow(adjacency, kind, x):
    matrix = dense(adjacency)
    degrees = matrix.sum(1, keepdim=True)
    if kind in ("sum", "edge sum"):
        return matrix @ x
    if kind == "mean":
        return torch.where(degrees > 0, matrix @ x / degrees.clamp(min=1e-300), 0.0)
    if kind == "self_loop_mean":
        return (matrix @ x + 0.25 * x) / (degrees + 0.25)
    if kind == "gcn":
        with_loops = matrix + torch.eye(len(matrix), dtype=matrix.dtype)
        root = with_loops.sum(1).rsqrt()
        return root[:, None] * (with_loops @ (root[:, None] * x))
    source, target = adjacency.edge_index
    messages = x[source] if adjacency.edge_weight is None else adjacency.edge_weight[:, None] * x[source]
    rows = [messages[target == v] for v in range(adjacency.num_nodes)]
    return torch.stack([row.max(0).values if len(row) else torch.zeros_like(x[0]) for row in rows])


def fast(adjacency, kind, x):
    if kind.startswith("edge"):
        return getattr(adjacency.by_edge, kind.removeprefix("edge "))(x.index_select(0, adjacency.edge_index[0]))
    if kind == "self_loop_mean":
        return adjacency.self_loop_mean(x, 0.25)
    return getattr(adjacency, kind)(x)


KINDS = ["sum", "mean", "self_loop_mean", "gcn", "maximum", "edge sum", "edge maximum"]


@nightly
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    nodes=st.integers(1, 9),
    edges=st.integers(0, 25),
    dim=st.integers(1, 4),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_the_dense_computation(kind, nodes, edges, dim, weighted, seed):
    adjacency = random_adjacency(nodes, edges, seed, weighted=weighted)
    x = torch.randn(nodes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(fast(adjacency, kind, x), slow(adjacency, kind, x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient(kind, weighted):
    adjacency = random_adjacency(8, 20, weighted=weighted)
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda value: fast(adjacency, kind, value), (x,))
    (mine,) = torch.autograd.grad(fast(adjacency, kind, x).cos().sum(), x)
    (reference,) = torch.autograd.grad(slow(adjacency, kind, x).cos().sum(), x)
    torch.testing.assert_close(mine, reference)


def test_a_second_derivative_exists():
    adjacency = random_adjacency(6, 12)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda value: adjacency.mean(value) ** 2, (x,))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_any_number_of_threads(kind):
    adjacency = random_adjacency(500, 4000, dtype=torch.float32, weighted=True)
    x = torch.randn(500, 33, requires_grad=True)

    def both():
        out = fast(adjacency, kind, x)
        return out, torch.autograd.grad(out.square().sum(), x)[0]

    one = both()
    torch.set_num_threads(2)
    two = both()
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
