"""Learning from released features and labels: what is read, what is chosen by, and that it learns."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.settings import DenoiseSettings, KPropSettings

from research.local import train_local_private
from research.local_private import LocalPrivateNetwork, NoisyLabels
from tests import nightly
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.dataset import split_randomly
from veilgraph.graph.party import PartyGraph
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


def noisy(keep: float, seed: int = 0, settings: dict[str, object] | None = None) -> NoisyLabels:
    """Randomised response on GRAPH's labels, three classes."""
    labels = true_labels()
    generator = torch.Generator().manual_seed(seed)
    moved = (labels + torch.randint(1, 3, labels.shape, generator=generator)) % 3
    kept = torch.rand(labels.shape, generator=generator) < keep
    transition = torch.full((3, 3), (1 - keep) / 2, dtype=torch.float64).fill_diagonal_(keep)
    return NoisyLabels(torch.where(kept, labels, moved), transition, DenoiseSettings.model_validate(settings or {}))


@nightly
def test_true_labels_of_training_and_validation_nodes_are_never_read() -> None:
    released = noisy(0.6)
    assert GRAPH.train_mask is not None
    assert GRAPH.val_mask is not None
    hidden = torch.where(GRAPH.train_mask | GRAPH.val_mask, 0, true_labels())
    graphs = GRAPH, replace(GRAPH, labels=hidden)
    results = [train_local_private(NETWORK, TRAIN, graph, RAW, released, seed=0) for graph in graphs]
    summaries = [{**result.summary, "seconds_per_step": None} for result in results]
    assert summaries[0] == summaries[1]


@nightly
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
    assert scores.values["test_accuracy"] == 1
    assert scores.values["val_accuracy"] == pytest.approx(float(agreeing))
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
