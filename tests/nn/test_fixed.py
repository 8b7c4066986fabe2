"""The embedding without trained weights."""

import pytest
import torch

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.fixed import random_projection


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
