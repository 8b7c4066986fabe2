"""Pairs of nodes: sampled, divided, refused."""

import numpy as np

from veilgraph.audit.pairs import sample_pairs


class TestPairs:
    def test_a_sample_is_balanced_and_true(self):
        edges = np.array([[0, 1, 1, 2, 3, 5, 5], [1, 0, 2, 3, 4, 5, 0]])
        links = {(0, 1), (1, 2), (2, 3), (3, 4), (0, 5)}
        found = sample_pairs(edges, 6, seed=3)
        pairs = [tuple(pair) for pair in found.pairs.tolist()]
        assert len(set(pairs)) == len(pairs) == 10
        assert all(first < second for first, second in pairs)
        assert {pair for pair, linked in zip(pairs, found.truth, strict=True) if linked} == links
        assert found.truth.sum() == 5


def test_pairs_that_are_left_out_are_not_drawn_as_unlinked_ones():
    edges, known = np.array([[0, 1], [1, 2]]), np.array([[0, 4, 3], [2, 3, 3]])
    for seed in range(20):
        found = sample_pairs(edges, 5, seed=seed, left_out=known)
        others = {tuple(pair) for pair in found.pairs[~found.truth].tolist()}
        assert not others & {(0, 2), (3, 4), (0, 1), (1, 2)}
