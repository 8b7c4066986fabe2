"""The embedding without trained weights."""

import pytest
import torch

from veilgraph.core.randomness import LearningStreams
from veilgraph.paradigms.vertical.once import project, random_projection


@pytest.mark.parametrize(("columns", "dim"), [(50, 8), (8, 8), (3, 8), (1, 1)])
def test_a_projection_is_orthonormal_and_always_the_same(columns: int, dim: int) -> None:
    projection = random_projection(columns, dim, LearningStreams(1, "A"), torch.float64)
    assert projection.shape == (columns, dim)
    smaller = projection.T @ projection if columns >= dim else projection @ projection.T
    assert float((smaller - torch.eye(min(columns, dim))).abs().max()) < 1e-12
    assert torch.equal(projection, random_projection(columns, dim, LearningStreams(1, "A"), torch.float64))
    if min(columns, dim) > 1:
        for other in (LearningStreams(2, "A"), LearningStreams(1, "B")):
            assert not torch.equal(projection, random_projection(columns, dim, other, torch.float64))


@pytest.mark.parametrize("sparse", [False, True])
def test_one_nodes_values_are_not_in_the_last_bits_of_the_others(sparse: bool) -> None:
    """Products of dense and of sparse matrices round differently, and a node's zeros must not choose between them."""
    generator = torch.Generator().manual_seed(0)
    columns = 400
    projection = random_projection(columns, 8, LearningStreams(1, "A"), torch.float32)
    features = torch.randn(9, columns, generator=generator)
    features[:, columns // 5 :] = 0
    full, empty = features.clone(), features.clone()
    full[-1], empty[1:] = 1.0, 0.0
    rows = []
    for matrix in (full, features, empty):
        given = matrix.to_sparse_csr() if sparse else matrix
        rows.append(project(given, projection))
        torch.testing.assert_close(rows[-1], matrix @ projection, rtol=1e-5, atol=1e-6)
    assert torch.equal(rows[0][0], rows[1][0])
    assert torch.equal(rows[0][0], rows[2][0])
    assert rows[0].dtype == torch.float32
