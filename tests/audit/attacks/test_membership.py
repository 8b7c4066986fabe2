"""The membership attacks on posteriors of known distributions, and on overfit graph networks."""

import math

import numpy as np
import torch
from torch_geometric.data import Data

from research.attack_strength_models import PlainSettings, train_plain
from tests import nightly
from veilgraph.audit.members import SHADOW_THRESHOLD, confidence_scores, lira_scores, shadow_scores
from veilgraph.audit.statistics import intervals, measure, verdict
from veilgraph.graph.builtin import synthetic_data


def posteriors_of(logits, labels, classes=3):
    """Posteriors whose label has the given logits, the rest shared evenly; [..., T] → [..., T, C]."""
    share = 1 / (1 + np.exp(-np.asarray(logits, dtype=float)))
    of_label = np.eye(classes, dtype=bool)[labels]
    return np.where(of_label, share[..., None], (1 - share[..., None]) / (classes - 1))


def known_targets(random, shift, count=120, models=24):
    """Each target with a difficulty of its own; members' logits are ``shift`` higher than the out-models'."""
    labels, truth = random.integers(3, size=count), np.arange(count) < count // 2
    difficulty = random.normal(scale=4, size=count)
    logits = difficulty + random.normal(size=count) + shift * truth
    outside = difficulty + random.normal(size=(models, count))
    return posteriors_of(logits, labels), labels, truth, posteriors_of(outside, labels)


def test_confidence_is_the_logit_of_the_highest_posterior_or_of_the_labels():
    posteriors = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    np.testing.assert_allclose(confidence_scores(posteriors), [math.log(0.7 / 0.3), math.log(4)])
    np.testing.assert_allclose(confidence_scores(posteriors, np.array([1, 1])), [math.log(0.25), math.log(4)])
    # In float32 both are 1 at the label; what is left for the others still orders them.
    sure = torch.tensor([[30.0, 0.0], [40.0, 0.0], [2000.0, 0.0]]).softmax(1).numpy()
    assert (sure[:, 0] == 1).all()
    scores = confidence_scores(sure)
    np.testing.assert_allclose(scores[:2], [30, 40], rtol=1e-5)
    assert scores[1] < scores[2] < math.inf


def test_the_shadow_attack_learns_what_the_threshold_misses():
    """A model that is less sure of its members: the confidence attack is misled, the shadow attack learns it."""
    random = np.random.default_rng(3)
    posteriors, _, truth, _ = known_targets(random, 1.0)
    shadow, _, shadow_truth, _ = known_targets(random, 1.0)
    posteriors, shadow = (
        posteriors_of(np.where(members, 1.0, 4.0) + random.normal(size=len(members)), 0 * members.astype(int))
        for members in (truth, shadow_truth)
    )
    assert measure(confidence_scores(posteriors), truth).auc < 0.1
    learned = measure(shadow_scores(posteriors, shadow, shadow_truth), truth)
    assert learned.auc > 0.9
    assert learned.advantage(SHADOW_THRESHOLD) > 0.7


def test_lira_is_the_z_score_against_the_out_models():
    random = np.random.default_rng(4)
    logits, outside = random.normal(size=5), random.normal(size=(6, 5))
    labels = np.array([0, 1, 2, 1, 0])
    out = np.ones((6, 5), dtype=bool)
    out[0, 1] = out[3, 1] = out[5, 4] = False
    spoiled = np.where(out, outside, 30.0)  # what models trained with a target say of it must not count
    given = posteriors_of(logits, labels), labels, posteriors_of(spoiled, labels), out
    means = [outside[out[:, target], target].mean() for target in range(5)]
    squares = sum(((outside[out[:, target], target] - means[target]) ** 2).sum() for target in range(5))
    shared = math.sqrt(squares / (out.sum() - 5))
    np.testing.assert_allclose(lira_scores(*given), (logits - means) / shared, rtol=1e-6)


def overfit_posteriors(data, labels, members, seed):
    """Posteriors of all nodes from a network with nothing against overfitting.

    GraphSAGE has weights for a node's own row. GCN gives the mean over a neighbourhood, in which members and others are
    mixed: how sure it is hardly tells them apart (AUC 0.54 to 0.61), and the shadow attack knows no labels.
    """
    data = Data(x=data.x, edge_index=data.edge_index, y=labels)
    network = PlainSettings("GraphSAGE", width=32, epochs=100)
    return train_plain(data, members, int(labels.max()) + 1, network, seed=seed).outputs(data).posteriors


def noisy(labels, seed):
    """Three labels in ten are drawn anew: those can be known only by heart."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(int(labels.max()) + 1, labels.shape, generator=generator)
    return torch.where(torch.rand(len(labels), generator=generator) < 0.3, drawn, labels)


def half(nodes, seed):
    return torch.randperm(nodes, generator=torch.Generator().manual_seed(seed)) < nodes // 2


@nightly
def test_an_overfit_network_gives_its_members_away_to_every_attack():
    data, auxiliary = (synthetic_data(num_features=200, seed=seed) for seed in (1, 2))
    labels, auxiliary_labels = noisy(data.y, 7), noisy(auxiliary.y, 8)
    members, shadow_members = half(400, 0), half(400, 5)
    posteriors = overfit_posteriors(data, labels, members, seed=0)
    shadow = overfit_posteriors(auxiliary, auxiliary_labels, shadow_members, seed=1)
    trained = [mask for seed in (100, 101, 102) for mask in (half(400, seed), ~half(400, seed))]
    outside = np.stack([overfit_posteriors(data, labels, mask, 10 + seed) for seed, mask in enumerate(trained)])
    known, truth = labels.numpy(), members.numpy()
    scores = {
        "confidence": confidence_scores(posteriors, known),
        "shadow": shadow_scores(posteriors, shadow, shadow_members.numpy()),
        "LiRA": lira_scores(posteriors, known, outside, ~torch.stack(trained).numpy()),
    }
    for name, found in scores.items():
        assert intervals(found, truth, seed=0, confidence=0.99)["auc"].low > 0.5, name
        assert verdict(found, truth, level=0.001, seed=0).found, name
    assert measure(scores["shadow"], truth).advantage(SHADOW_THRESHOLD) > 0.25
    # The same scores say nothing of a half that the network was not trained on as such.
    assert not any(verdict(found, half(400, 9).numpy(), level=0.01, seed=0).found for found in scores.values())
