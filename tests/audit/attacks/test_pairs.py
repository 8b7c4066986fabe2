"""Pairs of nodes: sampled, divided, refused."""

import numpy as np
import pytest

from veilgraph.audit.pairs import sample_pairs


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


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

    def test_a_seed_fixes_it(self, random):
        edges = random.integers(50, size=(2, 200))
        first, again, other = (sample_pairs(edges, 50, seed=seed, links=20).pairs.tolist() for seed in (1, 1, 2))
        assert first == again != other
        assert len(first) == 40

    def test_a_split_keeps_the_balance(self, random):
        whole = sample_pairs(random.integers(50, size=(2, 200)), 50, seed=0, links=50)
        known, rest = whole.split(0.2, seed=0)
        assert (len(known.truth), known.truth.sum(), len(rest.truth), rest.truth.sum()) == (20, 10, 80, 40)
        assert not set(map(tuple, known.pairs)) & set(map(tuple, rest.pairs))


def test_pairs_that_are_left_out_are_not_drawn_as_unlinked_ones():
    edges, known = np.array([[0, 1], [1, 2]]), np.array([[0, 4, 3], [2, 3, 3]])
    for seed in range(20):
        found = sample_pairs(edges, 5, seed=seed, left_out=known)
        others = {tuple(pair) for pair in found.pairs[~found.truth].tolist()}
        assert not others & {(0, 2), (3, 4), (0, 1), (1, 2)}
