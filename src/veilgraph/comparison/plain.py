"""What somebody would try first: models that know nothing of graphs, or of neighbours no more than their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph

Floats = NDArray[np.float64]

_HOPS: Final = 2
TREES: Final = 150
"""Of boosting, for each class."""
_MOST_COLUMNS: Final = 600
"""Boosting takes means over neighbours of so many columns at most, those that differ most from node to node."""


def logistic(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """A logistic regression on a graph's columns: probabilities [N, C].

    Args:
        graph: with labels and masks.
        seed: of its draws.
        balanced: whether classes weigh alike.
    """

    def model(strength: float) -> Any:  # noqa: ANN401 - of a library without types
        inverse = LogisticRegression(C=strength, max_iter=1000, class_weight="balanced" if balanced else None)
        return make_pipeline(StandardScaler(with_mean=False), inverse)

    return _best(graph, _columns(graph), [partial(model, strength) for strength in (0.003, 0.03, 0.3)])


def boosting(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """Boosted trees on a graph's columns and, for each relation, their means over two hops, and degrees.

    Arguments are those of ``logistic``.
    """
    own = _columns(graph)
    dense = own.toarray() if sp.issparse(own) else own
    most = max(1, _MOST_COLUMNS // max(1, len(graph.relations)))
    if dense.shape[1] > most:
        dense = dense[:, np.sort(np.argsort(-dense.var(axis=0), kind="stable")[:most])]
    parts = [dense]
    for place in range(max(1, len(graph.relations))):
        mean, degrees = _means(graph, place if graph.relations else None)
        rows = dense
        for _ in range(_HOPS):
            rows = mean @ rows
            parts.append(rows)
        parts.append(degrees[:, None])
    x = np.concatenate(parts, axis=1)

    def model(leaves: int, rate: float) -> Any:  # noqa: ANN401 - of a library without types
        return HistGradientBoostingClassifier(
            max_leaf_nodes=leaves,
            learning_rate=rate,
            max_iter=TREES,
            early_stopping=False,
            class_weight="balanced" if balanced else None,
            random_state=seed,
        )

    return _best(graph, x, [partial(model, *pair) for pair in ((4, 0.05), (15, 0.05), (31, 0.1))])


def _best(graph: PartyGraph, x: Any, models: list[Callable[[], Any]]) -> Floats:  # noqa: ANN401 - dense or sparse
    """Of several, the one with the lowest loss on validation nodes."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    labels, train, val = graph.labels.numpy(), graph.train_mask.numpy(), graph.val_mask.numpy()
    classes = graph.num_classes or int(labels.max()) + 1
    found, least = np.zeros((len(labels), classes)), np.inf
    for make in models:
        model = make().fit(x[train], labels[train])
        likely = np.zeros((len(labels), classes))
        likely[:, model.classes_] = model.predict_proba(x)
        loss = log_loss(labels[val], likely[val], labels=range(classes))
        if loss < least:
            found, least = likely, loss
    return found


def _columns(graph: PartyGraph) -> Any:  # noqa: ANN401 - dense or sparse
    return to_scipy(graph.features) if is_sparse(graph.features) else graph.features.double().numpy()


def _means(graph: PartyGraph, relation: int | None) -> tuple[sp.csr_matrix, Floats]:
    """The matrix of means over neighbours of a relation [N, N], and degrees [N]; None: over all edges."""
    if relation is not None:
        assert graph.edge_relation is not None
        graph = graph.with_edges(torch.nonzero(graph.edge_relation == relation).ravel())
    source, target = graph.edge_index.numpy()
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight.double().numpy()
    matrix = sp.csr_matrix((weight, (target, source)), shape=(graph.num_nodes, graph.num_nodes))
    degrees = np.asarray(matrix.sum(axis=1)).ravel()
    scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    return sp.diags(scale) @ matrix, degrees


PLAIN: Final[Mapping[str, Callable[..., Floats]]] = {"logistic": logistic, "boosting": boosting}
ABOUT_PLAIN: Final[Mapping[str, str]] = {
    "logistic": "a logistic regression on the columns",
    "boosting": "boosted trees on the columns, their means over neighbours and over neighbours' neighbours, and the "
    "degree, each relation apart",
}
"""What they are, by name; of whose data follows."""
