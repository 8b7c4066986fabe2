"""Learning from released features and labels: what is read, what is chosen by, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from research.local import degree_features, random_features, train_local_private
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.dataset import split_randomly
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp.settings import DenoiseSettings, KPropSettings
from veilgraph.paradigms.node_dp.twin import (
    LocalPrivateNetwork,
    NoisyLabels,
)
from veilgraph.privacy.local_features import AffineFeatures
from veilgraph.protocol.job import TrainSettings
from veilgraph.tables.settings import SplitFractions

HALF = SplitFractions(train=0.5, val=0.25, test=0.25, seed=0)
GRAPH = split_randomly(PartyGraph.from_data("a", synthetic_data(seed=1)), HALF)
TRAIN = TrainSettings(epochs=60, patience=20)
NETWORK = KPropSettings(hops=4, dim=16, dropout=0.5)
RAW = AffineFeatures(GRAPH.features)


def true_labels() -> Tensor:
    assert GRAPH.labels is not None
    return GRAPH.labels


def one_of_many(columns: int = 50, seed: int = 0) -> AffineFeatures:
    """What multi-bit releases with m = 1 and so little ε that the signs say nothing."""
    generator = torch.Generator().manual_seed(seed)
    count = GRAPH.num_nodes
    signs = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1
    chosen = torch.randint(0, columns, (count,), generator=generator)
    values = torch.sparse_csr_tensor(torch.arange(count + 1), chosen, signs, (count, columns), check_invariants=True)
    return AffineFeatures(values, 500.0, 0.5)


def noisy(keep: float, seed: int = 0, settings: dict[str, object] | None = None) -> NoisyLabels:
    """Randomised response on GRAPH's labels, three classes."""
    labels = true_labels()
    generator = torch.Generator().manual_seed(seed)
    moved = (labels + torch.randint(1, 3, labels.shape, generator=generator)) % 3
    kept = torch.rand(labels.shape, generator=generator) < keep
    transition = torch.full((3, 3), (1 - keep) / 2, dtype=torch.float64).fill_diagonal_(keep)
    return NoisyLabels(torch.where(kept, labels, moved), transition, DenoiseSettings.model_validate(settings or {}))


def majority() -> float:
    labels, test = true_labels(), GRAPH.test_mask
    return float(labels[test].bincount().max() / labels[test].numel())


def test_a_gcn_on_raw_features_is_a_network_without_hops() -> None:
    result = train_local_private(NETWORK.model_copy(update={"hops": 0}), TRAIN, GRAPH, RAW, seed=0)
    assert result.summary["test_accuracy"] > 0.8
    assert 1 <= result.summary["best_epoch"] <= 60


def test_the_graph_alone_tells_much_where_the_released_features_tell_nothing() -> None:
    result = train_local_private(NETWORK, TRAIN, GRAPH, one_of_many(), seed=0)
    assert result.summary["test_accuracy"] > majority() + 0.2


def test_random_and_degree_features() -> None:
    random = random_features(GRAPH.num_nodes, 24, 0)
    assert torch.equal(random.values, random_features(GRAPH.num_nodes, 24, 0).values)
    assert not torch.equal(random.values, random_features(GRAPH.num_nodes, 24, 1).values)
    assert 0 <= float(random.values.min()) < float(random.values.max()) < 1
    values = degree_features(GRAPH).values.to_dense()
    assert torch.equal(values.argmax(1).double(), GRAPH.degrees())
    assert torch.equal(values.sum(1), torch.ones(GRAPH.num_nodes))
    plain = NETWORK.model_copy(update={"hops": 0})
    raw, *others = (
        train_local_private(plain, TRAIN, GRAPH, features, seed=0).summary["test_accuracy"]
        for features in (RAW, random, degree_features(GRAPH))
    )
    assert raw > max(others)


def test_equal_seeds_train_alike() -> None:
    first, again, other = (LocalPrivateNetwork(NETWORK, TRAIN, GRAPH, RAW, seed=seed) for seed in (3, 3, 4))
    losses = [[network.train_step(epoch) for epoch in (1, 2, 3)] for network in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(first.infer(), again.judged())


@pytest.mark.parametrize("settings", [{"denoise_steps": 0}, {"denoise_steps": 2, "targets": "soft"}, {}])
def test_labels_that_keep_the_truth_train_as_well_as_true_ones(settings: dict[str, object]) -> None:
    released = noisy(1.0, settings=settings)
    result = train_local_private(NETWORK, TRAIN, GRAPH, RAW, released, seed=0)
    assert torch.equal(released.labels, true_labels())
    assert result.summary["test_accuracy"] > 0.75


def test_denoising_beats_forward_correction_on_noisy_labels() -> None:
    train = TrainSettings(epochs=60, patience=None, select_by="loss")
    scores = {
        steps: [
            train_local_private(
                NETWORK, train, GRAPH, RAW, noisy(0.5, seed, {"denoise_steps": steps, "targets": "soft"}), seed=seed
            ).summary["test_accuracy"]
            for seed in range(3)
        ]
        for steps in (0, 4)
    }
    assert sum(scores[4]) > sum(scores[0])


def test_true_labels_of_training_and_validation_nodes_are_never_read() -> None:
    released = noisy(0.6)
    assert GRAPH.train_mask is not None
    assert GRAPH.val_mask is not None
    hidden = torch.where(GRAPH.train_mask | GRAPH.val_mask, 0, true_labels())
    graphs = GRAPH, replace(GRAPH, labels=hidden)
    results = [train_local_private(NETWORK, TRAIN, graph, RAW, released, seed=0) for graph in graphs]
    summaries = [{**result.summary, "seconds_per_step": None} for result in results]
    assert summaries[0] == summaries[1]


def test_released_labels_of_test_nodes_are_never_read() -> None:
    released = noisy(0.6)
    assert GRAPH.test_mask is not None
    blank = replace(released, labels=torch.where(GRAPH.test_mask, -1, released.labels))
    results = [train_local_private(NETWORK, TRAIN, GRAPH, RAW, labels, seed=0) for labels in (released, blank)]
    assert results[0].summary["test_accuracy"] == results[1].summary["test_accuracy"]


def test_the_epoch_is_chosen_by_released_labels_and_judged_by_true_ones() -> None:
    released = noisy(0.6)
    network = LocalPrivateNetwork(NETWORK, TRAIN, GRAPH, RAW, released, seed=0)
    assert GRAPH.val_mask is not None
    right = 20 * torch.nn.functional.one_hot(true_labels(), 3).float()
    scores = network.score(right)
    agreeing = (released.labels == true_labels())[GRAPH.val_mask].double().mean()
    assert scores.test_accuracy == 1
    assert scores.val_accuracy == pytest.approx(float(agreeing))
    log_likelihood = released.transition.log()[true_labels(), released.labels][GRAPH.val_mask].mean()
    assert scores.val_loss == pytest.approx(-float(log_likelihood), rel=1e-4)


def test_what_is_refused() -> None:
    with refused(DataError, key="features"):
        LocalPrivateNetwork(NETWORK, TRAIN, GRAPH, AffineFeatures(torch.ones(3, 2)), seed=0)
    balanced = TrainSettings(class_weights="balanced")
    with refused(ConfigError, key="train.class_weights", value="balanced"):
        LocalPrivateNetwork(NETWORK, balanced, GRAPH, RAW, noisy(0.6), seed=0)
    two = replace(noisy(0.6), transition=torch.eye(2))
    with refused(DataError, key="labels"):
        LocalPrivateNetwork(NETWORK, TRAIN, GRAPH, RAW, two, seed=0)
    bare = replace(GRAPH, labels=None, train_mask=None, val_mask=None, test_mask=None, num_classes=None)
    with refused(DataError, party="a"):
        LocalPrivateNetwork(NETWORK, TRAIN, bare, RAW, noisy(0.6), seed=0)
