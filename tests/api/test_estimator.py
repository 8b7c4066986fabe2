"""The estimator: a job with scikit-learn's manners."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from torch_geometric.data import Data

import veilgraph as vg
from tests.errors import refused
from veilgraph.core.arguments import WRONG_TYPE
from veilgraph.core.errors import ConfigError, DataError

JOB: dict[str, Any] = {"model": {"dim": 4}, "train": {"epochs": 2, "patience": None}}
HORIZONTAL: dict[str, Any] = {"paradigm": "horizontal", "train": {"epochs": 2, "patience": None}}


@pytest.fixture(scope="module")
def whole() -> Data:
    return vg.datasets.load("synthetic", seed=3)


@pytest.fixture
def estimator(tmp_path: Path) -> vg.FederatedNodeClassifier:
    return vg.FederatedNodeClassifier(JOB, out=tmp_path / "run")


def test_parameters_are_got_set_and_cloned(tmp_path: Path) -> None:
    made = vg.FederatedNodeClassifier(JOB, holders=["bank", "shop"], seed=4)
    assert made.get_params() == {
        "job": JOB,
        "holders": ["bank", "shop"],
        "split": (0.6, 0.2, 0.2),
        "seed": 4,
        "out": None,
        "ids": None,
        "ledgers": None,
    }
    copied = clone(made.set_params(seed=5, out=str(tmp_path)))
    assert copied is not made
    assert copied.get_params() == made.get_params()
    assert (copied.seed, copied.job) == (5, JOB)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - scikit-learn's
        made.set_params(epochs=3)
    assert "epochs" in str(caught.value)


def test_one_graph_is_divided_and_predicted(estimator: vg.FederatedNodeClassifier, whole: Data, tmp_path: Path) -> None:
    assert estimator.fit(whole) is estimator
    divided = vg.fit(JOB, vg.simulate.vertically(whole, 2, seed=0), tmp_path / "by-hand")
    chances = estimator.predict_proba()
    assert np.array_equal(chances, divided.predictions.probabilities.numpy())
    assert np.array_equal(estimator.predict(whole), chances.argmax(axis=1))
    assert np.array_equal(estimator.predict([7, 2]), chances[[7, 2]].argmax(axis=1))
    assert estimator.score() == estimator.run_.metrics["test_accuracy"]
    labels = whole.y.numpy()
    assert estimator.score([7, 2], labels[[7, 2]]) == accuracy_score(labels[[7, 2]], estimator.predict([7, 2]))
    assert estimator.score(whole, labels) == accuracy_score(labels, estimator.predict())


def test_classes_may_have_names(estimator: vg.FederatedNodeClassifier, whole: Data) -> None:
    names = np.array(["b", "c", "a"])[whole.y.numpy()]
    estimator.fit(whole, names)
    assert estimator.classes_.tolist() == ["a", "b", "c"]
    assert set(estimator.predict()) <= {"a", "b", "c"}
    assert 0 <= estimator.score(whole, names) <= 1
    assert whole.y.dtype.is_floating_point is False
    with refused(DataError, code="length", key="y"):
        clone(estimator).fit(whole, names[:-1])


def test_a_graph_without_masks_is_split(whole: Data, tmp_path: Path) -> None:
    bare = Data(x=whole.x, edge_index=whole.edge_index, y=whole.y)
    made = vg.FederatedNodeClassifier(JOB, split=(0.5, 0.25, 0.25), seed=2, out=tmp_path / "run").fit(bare)
    by_hand = vg.datasets.split(bare, train=0.5, val=0.25, test=0.25, seed=2)
    expected = vg.fit(JOB, vg.simulate.vertically(by_hand, 2, seed=2), tmp_path / "by-hand")
    assert np.array_equal(made.predict_proba(), expected.predictions.probabilities.numpy())
    assert bare.get("train_mask") is None


def test_graphs_of_nodes_of_their_own_are_divided_by_nodes(whole: Data, tmp_path: Path) -> None:
    made = vg.FederatedNodeClassifier(HORIZONTAL, holders=3, out=tmp_path / "run").fit(whole)
    assert made.run_.job.data.names == ("A", "B", "C")
    assert len(made.predict()) < whole.num_nodes


def test_holders_bring_their_graphs(estimator: vg.FederatedNodeClassifier, whole: Data) -> None:
    parties = vg.simulate.vertically(whole, ["bank", "shop"], seed=1)
    assert estimator.fit(parties).predict(parties).shape == (whole.num_nodes,)
    assert estimator.run_.job.data.names == ("bank", "shop")
    with refused(ConfigError, code=WRONG_TYPE, key="y"):
        clone(estimator).fit(parties, whole.y)


def test_what_it_cannot_take_is_refused(estimator: vg.FederatedNodeClassifier, whole: Data, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        estimator.predict()
    with pytest.raises(NotFittedError):
        estimator.score()
    with refused(ConfigError, code=WRONG_TYPE, key="X", value="numpy.ndarray"):
        estimator.fit(np.zeros((3, 2)))
    with refused(ConfigError, code=WRONG_TYPE, key="split"):
        clone(estimator).set_params(split=0.5).fit(Data(x=whole.x, edge_index=whole.edge_index, y=whole.y))
    node_dp = {"paradigm": "node-dp", "release": {"features": {"epsilon": 8, "low": -9, "high": 9}}}
    with refused(DataError, code="divided", key="X"):
        clone(estimator).set_params(job=node_dp).fit(whole)
    estimator.fit(whole)
    for other in (whole.clone(), {"A": whole}, whole.x, "all"):
        with refused(ConfigError, code=WRONG_TYPE, key="X"):
            estimator.predict(other)
    with refused(ConfigError, key="nodes"):
        estimator.predict([whole.num_nodes])
