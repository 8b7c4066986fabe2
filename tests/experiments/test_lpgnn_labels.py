from typing import Any

import pytest
import torch

from research.grid import Cell, run_cell
from research.local import train_local_private
from research.lpgnn_labels import LABEL_EPSILONS, LPGNN_LABELS
from research.paper_tables import TABLES
from veilgraph.core.errors import ConfigError
from veilgraph.graph.dataset import load_whole
from veilgraph.paradigms.node_dp.settings import node_dp
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.samples.shipped import shipped_job, with_overrides

ENTRIES = LPGNN_LABELS["lpgnn-labels"].entries


def cell(kind, labels=None):
    changes = {
        "data.dataset": "synthetic",
        "data.holders": 3,
        "data.stratify": False,
        "release.features.low": -10.0,
        "release.features.high": 10.0,
        "model.dim": 8,
        "release.labels": labels and {"holder": "B", **labels},
        "train.epochs": 2,
    }
    settings = with_overrides(shipped_job("cora-local"), changes)
    return Cell("tiny", "synthetic", "row", kind, settings, kind, 0)


def whole() -> Any:
    """The data undivided, all labels true."""
    return load_whole(cell("raw").job.data, "A", 0)


@pytest.fixture
def given(monkeypatch):
    """What the last training was given: graph, features, labels."""
    found: list[Any] = []

    def spying(settings, train, graph, features, labels, **options):
        found[:] = [graph, features, labels]
        return train_local_private(settings, train, graph, features, labels, **options)

    monkeypatch.setattr("research.local.train_local_private", spying)
    return found


def test_the_table_is_one_job_per_data_set_with_so_much_noise_on_labels():
    assert TABLES["lpgnn-labels"] is LPGNN_LABELS["lpgnn-labels"]
    assert len(ENTRIES) == 3 * 4 * 4
    for entry in ENTRIES:
        job = entry.settings
        released = node_dp(job).release
        assert released.labels is not None
        assert released.features is not None
        assert entry.row == f"{entry.dataset}, ε of labels = {released.labels.epsilon}"
        assert released.features.epsilon == 1.0
        assert node_dp(job).model == node_dp(shipped_job(f"{entry.dataset}-local")).model
    assert {entry.row for entry in ENTRIES if entry.dataset == "cora"} == {
        f"cora, ε of labels = {epsilon}" for epsilon in LABEL_EPSILONS
    }


@pytest.mark.parametrize("kind", ["released", "believed"])
def test_training_has_what_was_released_and_test_nodes_their_true_labels(kind, given):
    finished = run_cell(cell(kind, {"epsilon": 1.0}))
    assert (finished.engine, finished.sent_bytes) == ("plaintext", None)
    graph, features, released = given
    true, response = whole(), LabelResponse(1.0, graph.num_classes)
    seen = graph.labels if kind == "believed" else released.labels
    assert (released is None) == (kind == "believed")
    assert torch.equal(seen[true.test_mask], true.labels[true.test_mask])
    known = true.train_mask | true.val_mask
    kept = float((seen == true.labels)[known].double().mean())
    spread = (response.keep_probability * (1 - response.keep_probability) / int(known.sum())) ** 0.5
    assert abs(kept - response.keep_probability) < 6 * spread
    # A's own column, and a feature or more of every node at each of B and C.
    assert features.values.shape == (true.num_nodes, 1 + true.num_features)
    assert float(features.offset[0]) == 0
    assert not torch.equal(features.values.to_dense()[:, 1:], true.features)


def test_labels_that_are_not_private_are_the_true_ones(given):
    run_cell(cell("released"))
    assert given[2] is None
    assert torch.equal(given[0].labels, whole().labels)


def test_there_must_be_released_labels_to_believe():
    with pytest.raises(ConfigError, match=r"'believed' takes released labels for the true ones; give release.labels"):
        run_cell(cell("believed"))
