"""The online likelihood-ratio attack on posteriors of known distributions."""

import numpy as np
import pytest
from scipy.stats import norm

from tests.errors import refused
from veilgraph.audit.members import lira_scores, online_lira_scores
from veilgraph.audit.statistics import measure
from veilgraph.core.errors import DataError


def posteriors_of(logits, labels, classes=3):
    """Posteriors whose label has the given logits, the rest shared evenly; [..., T] → [..., T, C]."""
    share = 1 / (1 + np.exp(-np.asarray(logits, dtype=float)))
    of_label = np.eye(classes, dtype=bool)[labels]
    return np.where(of_label, share[..., None], (1 - share[..., None]) / (classes - 1))


def known_targets(gain, models=16, count=600, seed=0):
    """Targets that differ in how sure models are of them, and in how much surer with them: by 0 or by 2·``gain``."""
    random = np.random.default_rng(seed)
    labels, truth = random.integers(3, size=count), np.arange(count) < count // 2
    difficulty, gains = random.normal(scale=3, size=count), gain * 2 * random.integers(2, size=count)
    halves = [random.random(count) < 0.5 for _ in range(models // 2)]
    members = np.stack([side for half in halves for side in (half, ~half)])
    logits = difficulty + random.normal(size=count) + gains * truth
    trained = difficulty + random.normal(size=(models, count)) + gains * members
    return posteriors_of(logits, labels), labels, posteriors_of(trained, labels), members, truth


def test_who_knows_how_much_a_target_gains_finds_more_than_who_does_not():
    posteriors, labels, models, members, truth = known_targets(3.0)
    online = measure(online_lira_scores(posteriors, labels, models, members), truth)
    offline = measure(lira_scores(posteriors, labels, models, ~members), truth)
    assert online.auc > 0.8
    assert online.auc > offline.auc + 0.05
    assert online.advantage(0.0) > 0.4


def test_where_training_changes_nothing_nothing_is_found():
    posteriors, labels, models, members, truth = known_targets(0.0, count=2000)
    assert abs(measure(online_lira_scores(posteriors, labels, models, members), truth).auc - 0.5) < 0.04


def test_scores_are_the_ratio_of_the_two_normals():
    labels, members = np.zeros(3, dtype=int), np.array([[True] * 3, [True] * 3, [False] * 3, [False] * 3])
    logits = np.array([[2.0, 3, 1], [4, 5, 2], [0, 1, -2], [1, 3, 1]])
    found = online_lira_scores(posteriors_of([2.5, 0, 1], labels), labels, posteriors_of(logits, labels), members)
    own, (inside, outside) = (
        np.array([2.5, 0, 1]),
        (norm(side.mean(0), np.sqrt(side.var(0, ddof=1).mean())) for side in (logits[:2], logits[2:])),
    )
    expected = inside.logpdf(own) - outside.logpdf(own)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, m: (p[:, :2], m), {"key": "model_posteriors"}),
        (lambda p, m: (p, m.astype(int)), {"key": "members"}),
        (lambda p, m: (p, m | True), {"key": "members"}),
        (lambda p, m: (p, m & False), {"key": "members"}),
        (lambda p, m: (p[:1].repeat(4, axis=0), m), {"key": "model_posteriors"}),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    posteriors, labels, models, members, _ = known_targets(1.0, models=4, count=8)
    members = np.array([[True], [True], [False], [False]]).repeat(8, axis=1)
    with refused(DataError, **words):
        online_lira_scores(posteriors, labels, *change(models, members))
