"""Features from h^0 under a W that the adversary can compute: exact where it has all of W, chance where it has none."""

import numpy as np
import pytest

from veilgraph.audit.reconstruction import exact_share, sparse_rows, without_own
from veilgraph.audit.statistics import measure

NODES, COLUMNS, WIDTH = 60, 100, 32


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


def words(random: np.random.Generator, share: float = 0.05) -> np.ndarray:
    return (random.random((NODES, COLUMNS)) < share).astype(np.float64)


def test_sparse_rows_come_out_exactly_of_a_known_w_and_not_at_all_of_another(random: np.random.Generator) -> None:
    x = words(random)
    w, other = random.normal(size=(2, COLUMNS, WIDTH))
    found = sparse_rows(x @ w, w)
    assert exact_share(found, x) > 0.9
    assert measure(found.ravel(), x.ravel() > 0).auc > 0.99
    wrong = sparse_rows(x @ w, other)
    assert exact_share(wrong, x) < 0.1
    assert abs(measure(wrong.ravel(), x.ravel() > 0).auc - 0.5) < 0.06


def test_the_own_part_is_taken_out_whatever_the_unit(random: np.random.Generator) -> None:
    own, drawn = random.normal(size=(NODES, 9)), random.normal(size=(9, WIDTH))
    others = 0.5 * random.normal(size=(NODES, WIDTH))
    for unit in (2.0**12, 1.0, 2.0**-12):
        rest = without_own((own @ drawn + others) * unit, own, drawn, others=False)
        assert rest == pytest.approx(others)
    more = own @ random.normal(size=drawn.shape)
    regressed = without_own(own @ drawn + others + more, own, drawn, others=True)
    assert np.abs(regressed - others).mean() < 0.5 * np.abs(more).mean()
