from typing import Any

import pytest
import torch

from research.grid import Cell, run_cell
from research.local import train_local_private
from veilgraph.graph.dataset import load_whole
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.samples.shipped import shipped_job, with_overrides


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
