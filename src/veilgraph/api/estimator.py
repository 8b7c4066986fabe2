"""Training with scikit-learn's manners, for studies on one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from veilgraph import datasets, simulate
from veilgraph.api.fit import Job, fit, settings_of
from veilgraph.core.arguments import check_several, wrong_type
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.pyg_data import check_one_graph
from veilgraph.runtime.launch.inputs import GivenIds, GivenParties
from veilgraph.runtime.store.lifetime import GivenLedgers
from veilgraph.runtime.store.predictions import Predictions

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data


class FederatedNodeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A node classifier of several holders, trained by ``fit`` of a job with all of them on this machine.

    It is a simulation: one process has every holder's data, and what each learns of the others is what the job's
    paradigm says, no more protected and no less. It is no estimator of rows of X either: it is transductive, and
    predicts nodes of the graphs that it was fitted to. So ``GridSearchCV`` and ``cross_val_score``, which divide rows,
    are of no use; ``veilgraph_tuning.tune`` chooses settings. Splits are the graphs' masks.

    Args:
        job: as for ``vg.fit``; it names no data. None: the default job.
        holders: how many one graph is divided among, or their names.
        split: shares of the labelled nodes to train, validate and test on, where one graph has no masks.
        seed: of that division and split.
        out: the run's directory, new in each ``fit``; default: one under ``runs``, by name and time, which is kept.
        ids: as for ``vg.fit``.
        ledgers: as for ``vg.fit``: every ``fit``, ``predict`` and ``score`` pays from them.

    Attributes:
        run_: the ``Run``: history, audit, report.
        classes_: [C], what is predicted.
    """

    def __init__(
        self,
        job: Job | None = None,
        holders: int | Sequence[PartyId] = 2,
        split: tuple[float, float, float] = (0.6, 0.2, 0.2),
        seed: int = 0,
        out: str | os.PathLike[str] | None = None,
        ids: GivenIds | None = None,
        ledgers: GivenLedgers | None = None,
    ) -> None:
        self.job, self.holders, self.split, self.seed, self.out = job, holders, split, seed, out
        self.ids, self.ledgers = ids, ledgers

    def fit(self, X: Data | GivenParties, y: Any = None) -> Self:  # noqa: ANN401 - as scikit-learn has it
        """Trains with all holders.

        Args:
            X: one ``Data``, which is divided among ``holders`` (by ``simulate.vertically`` or, for a job whose holders
                have nodes of their own, ``horizontally``); or what each holder brings, as ``vg.fit`` takes it.
            y: of one ``Data``, in place of its ``y``: one class per node, of numbers or text.

        Raises:
            VeilgraphError: as ``vg.fit``.
        """
        parties, classes = (X, None) if isinstance(X, Mapping | list | tuple) else self._divide(X, y)
        if isinstance(X, Mapping | list | tuple) and y is not None:
            raise wrong_type("y", y, "None where holders bring labels with their graphs", "give them as Data.y")
        job, out = {} if self.job is None else self.job, None if self.out is None else os.fspath(self.out)
        run = fit(job, parties, out, ids=self.ids, ledgers=self.ledgers)
        self.run_, self.graphs_ = run, X
        count = run.predictions.probabilities.shape[1]
        self.classes_ = np.arange(count) if classes is None else classes
        return self

    def predict(self, X: Any = None) -> np.ndarray:  # noqa: ANN401
        """Classes of nodes [n], those of the highest ``predict_proba``, which has the same ``X``."""
        found = self._predictions(X)
        return np.asarray(self.classes_[found.classes.numpy()])

    def predict_proba(self, X: Any = None) -> np.ndarray:  # noqa: ANN401
        """Calibrated probabilities [n, C] of nodes, by all holders together.

        Args:
            X: rows of the nodes; or None, or what was fitted: all nodes, horizontally the evaluator's.

        Raises:
            ConfigError: a row is no node, X is another graph than what was fitted, or the job opens classes alone.
            NotFittedError: of scikit-learn, before ``fit``.
        """
        found = self._predictions(X)
        if found.classes_alone:
            raise ConfigError(
                "predict_proba: the job opens classes alone, and no probabilities; use predict, or train with output: "
                "probabilities",
                key="output",
                value="classes",
            )
        return np.asarray(found.probabilities.numpy())

    def _predictions(self, X: Any) -> Predictions:  # noqa: ANN401
        check_is_fitted(self, "run_")
        nodes = None if X is None or X is self.graphs_ else X
        check_several("X", nodes, "rows of the nodes that were fitted")
        return self.run_.predict(nodes)

    def score(self, X: Any = None, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ANN401
        """Accuracy: of nodes X with classes y; without both, of the test nodes."""
        if X is None and y is None:
            check_is_fitted(self, "run_")
            return float(self.run_.metrics["test_accuracy"])
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _divide(self, whole: Any, y: Any) -> tuple[GivenParties, np.ndarray | None]:  # noqa: ANN401
        """Divide a graph, with labels ``y`` if given, among the holders; return their parts and the classes' names."""
        check_one_graph("X", whole)
        data, classes, job = whole.clone(), None, settings_of({} if self.job is None else self.job)
        if job.duties.releasing:  # the others' edges would not count
            raise DataError("X: one holder has all edges in this job; give what each brings", key="X", code="divided")
        if y is not None:
            classes, codes = np.unique(np.asarray(y), return_inverse=True)
            if codes.shape != (data.num_nodes,):
                raise DataError(
                    f"y: {len(codes)} classes for {data.num_nodes} nodes; give one of each node", key="y", code="length"
                )
            data.y = torch.from_numpy(codes)
        if data.get("train_mask") is None:
            if not isinstance(self.split, tuple | list) or len(self.split) != 3:
                raise wrong_type("split", self.split, "three shares", "give (train, val, test)")
            train, val, test = self.split
            data = datasets.split(data, train=train, val=val, test=test, seed=self.seed)
        divide = simulate.vertically if job.is_aligned else simulate.horizontally
        return divide(data, self.holders, seed=self.seed), classes
