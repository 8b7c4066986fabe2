"""Plain models that somebody would try first: of a graph they see columns, means over neighbours and degrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

from veilgraph.comparison.figures import Floats
from veilgraph.graph.features import to_numbers
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import DTYPE, EVERY

TREES: Final = 150
"""Of boosting, for each class."""
FEW_COLUMNS: Final = 600
"""Of a wide table those that differ most from node to node are averaged over neighbours."""
_MOST_VALUES: Final = 1 << 24  # of columns of means over a number of hops, 128 MiB
_HOPS: Final = (1, 2, 4)  # of the regression, which has nothing else that reaches further


def logistic(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """Logistic regression on a graph's columns and their means over neighbours: probabilities [N, C].

    Means are over one, two and four hops, of all edges and of each relation, with degrees. Validation nodes choose the
    penalty, and whether means are used at all. ``balanced``: classes weigh alike. Columns of words are scaled
    together, others each by itself. Wide tables are averaged over neighbours in the columns that differ most.
    """
    own = to_numbers(graph.features)
    are_words = sp.issparse(own)
    rows = [[own]]
    if graph.num_edges:
        most = max(FEW_COLUMNS, _MOST_VALUES // max(1, graph.num_nodes))
        near = around(graph, most_varied(own, most)[0], _HOPS, also_merged=True)
        rows.append([own, *(each.rows for each in near)])
    # A word that few training nodes have would count as much as any, were it scaled by itself.
    joined = [sp.hstack([_of_length_1(part) for part in parts], "csr") for parts in rows] if are_words else [
        np.concatenate(parts, axis=1) for parts in rows
    ]  # fmt: skip

    def model(strength: float) -> Any:  # noqa: ANN401 - of a library without types
        inverse = LogisticRegression(C=strength, max_iter=1000, class_weight="balanced" if balanced else None)
        return inverse if are_words else make_pipeline(StandardScaler(), inverse)

    strengths = (1.0, 10.0, 100.0) if are_words else (0.003, 0.03, 0.3)
    return _best_model(graph, [(x, partial(model, each)) for x in joined for each in strengths], balanced=balanced)


def _of_length_1(part: Any) -> sp.csr_matrix:  # noqa: ANN401 - dense or sparse
    """Scale columns by one number, so that the mean square of a row's length is 1."""
    found = sp.csr_matrix(part, dtype=np.float64)
    square = found.multiply(found).sum() / max(1, found.shape[0])
    return found / np.sqrt(square) if square else found


def boosting(graph: PartyGraph, seed: int, *, balanced: bool) -> Floats:
    """Boosted trees on the columns and, by relation, their means over one and two hops and degrees: [N, C]."""
    dense, _ = most_varied(to_numbers(graph.features), max(1, FEW_COLUMNS // max(1, len(graph.relations))))
    x = np.concatenate([dense, *(each.rows for each in around(graph, dense, (1, 2)))], axis=1)

    def model(leaves: int, rate: float) -> Any:  # noqa: ANN401 - of a library without types
        return HistGradientBoostingClassifier(
            max_leaf_nodes=leaves,
            learning_rate=rate,
            max_iter=TREES,
            early_stopping=False,
            class_weight="balanced" if balanced else None,
            random_state=seed,
        )

    models = [partial(model, *pair) for pair in ((4, 0.05), (15, 0.05), (31, 0.1))]
    return _best_model(graph, [(x, make) for make in models], balanced=balanced)


def most_varied(columns: Any, most: int) -> tuple[Floats, Floats]:  # noqa: ANN401 - dense or sparse
    """The ``most`` columns that differ most from node to node, in their order: dense float64 [N, d], and places [d]."""
    places = np.arange(columns.shape[1])
    if len(places) > most:
        squares = columns.multiply(columns) if sp.issparse(columns) else columns**2
        varied = np.asarray(squares.mean(axis=0)).ravel() - np.asarray(columns.mean(axis=0)).ravel() ** 2
        places = np.sort(np.argsort(-varied, kind="stable")[:most])
        columns = columns[:, places]
    return np.asarray(columns.toarray() if sp.issparse(columns) else columns, np.float64), places


def across_apart(graph: PartyGraph) -> PartyGraph:
    """Of a holder's own nodes make links to others' nodes, whose columns it lacks, a relation of their own."""
    if graph.common == graph.num_nodes or graph.relations:
        return graph
    across = (graph.edge_index >= graph.common).any(0)
    relations = (replace(EVERY, name="links of its own"), replace(EVERY, name="links across"))
    return replace(graph, num_common=None, edge_relation=across.to(DTYPE), relations=relations)


class Around(NamedTuple):
    """Means of columns over so many ``hops`` of a relation's edges, float64 [N, d]; of 0 hops degrees [N, 1].

    ``way``: "into" or "out of" a node, where edges have a direction. ``relation``: its place; None: all edges.
    """

    relation: int | None
    way: str
    hops: int
    rows: Floats


def around(graph: PartyGraph, columns: Floats, hops: Sequence[int], *, also_merged: bool = False) -> Iterator[Around]:
    """By relation, the means of ``columns`` [N, d] over so many ``hops``, then degrees.

    Where edges have a direction, those into a node and those out of it are relations apart. ``also_merged``: all edges
    are one more relation.
    """
    relations: list[int | None] = list(range(len(graph.relations)))
    for relation in [*relations, None] if also_merged or not relations else relations:
        into = _adjacency(graph, relation)
        out = into.T.tocsr()
        for way, matrix in {"into": into, "out of": out}.items() if (into != out).nnz else (("", into),):
            degrees = np.asarray(matrix.sum(axis=1)).ravel()
            scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
            mean, rows = sp.diags(scale) @ matrix, columns
            for hop in range(1, max(hops) + 1):
                rows = mean @ rows
                if hop in hops:
                    yield Around(relation, way, hop, rows)
            yield Around(relation, way, 0, degrees[:, None])


def _best_model(graph: PartyGraph, tried: Sequence[tuple[Any, Callable[[], Any]]], *, balanced: bool) -> Floats:
    """Fit models to rows, and give probabilities [N, C] of the one with the lowest log loss on validation nodes."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    labels, train, val = graph.labels.numpy(), graph.train_mask.numpy(), graph.val_mask.numpy()
    classes = graph.num_classes or int(labels.max()) + 1
    weights = compute_sample_weight("balanced" if balanced else None, labels[val])

    def fitted(x: Any, make: Callable[[], Any]) -> Floats:  # noqa: ANN401 - dense or sparse
        likely, model = np.zeros((len(labels), classes)), make().fit(x[train], labels[train])
        likely[:, model.classes_] = model.predict_proba(x).astype(np.float64)
        return likely

    def loss(likely: Floats) -> float:
        return float(log_loss(labels[val], likely[val], labels=range(classes), sample_weight=weights))

    return min((fitted(*each) for each in tried), key=loss)


def _adjacency(graph: PartyGraph, relation: int | None) -> sp.csr_matrix:
    """The weights of a relation's edges, or of all, at [target, source]: [N, N]."""
    if relation is not None:
        assert graph.edge_relation is not None
        graph = graph.with_edges(torch.nonzero(graph.edge_relation == relation).ravel())
    source, target = graph.edge_index.numpy()
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight.double().numpy()
    return sp.csr_matrix((weight, (target, source)), shape=(graph.num_nodes, graph.num_nodes))


PLAIN: Final[Mapping[str, Callable[..., Floats]]] = {"logistic": logistic, "boosting": boosting}
ABOUT_PLAIN: Final[Mapping[str, str]] = {
    "logistic": "a logistic regression on the columns or, if that is better on validation nodes, also on their means "
    "over one, two and four hops and the degree, each relation apart",
    "boosting": "boosted trees on the columns, their means over neighbours and over neighbours' neighbours, and the "
    "degree, each relation apart",
}
"""Name of a plain model → what it is, in words; on whose data is said behind."""
