"""Who predicts an attribute from embeddings: several families of models, each trained afresh.

A family is given what the attacker knows and gives probabilities of the rest; what counts as its answer is the class
whose probability is most above its share among the known nodes, so that rare classes count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from veilgraph.audit.pairs import fit_quietly
from veilgraph.protocol.view import Floats

Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MLP_EPOCHS: Final = 100
_LANDMARKS: Final = 300
_NEIGHBOURS: Final = 15


@dataclass(frozen=True, eq=False)
class View:
    """What an attacker has.

    Attributes:
        rows: [N, d] float64, the embeddings, of mean 0 and standard deviation 1 in each column.
        codes: [N] int64, the attribute; read at known nodes alone.
        classes: how many values it has.
        known: [N] bool, the nodes whose value the attacker knows.
        near: [N, N], the edges with rows that sum to 1; None where they are not public.
        seed: of the models.
    """

    rows: Floats
    codes: Codes
    classes: int
    known: Flags
    near: sp.csr_array | None
    seed: int


Attacker = Callable[[View, Flags], Floats]
"""(view, targets [N] bool) → probabilities of the targets, [T, C]."""


def _logistic(seed: int, known: int) -> Any:  # noqa: ANN401 - scikit-learn has no types
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import

    return LogisticRegression(max_iter=500)


def _mlp(seed: int, known: int) -> Any:  # noqa: ANN401 - as above
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415 - as above

    return MLPClassifier(
        (64, 64), alpha=0.01, max_iter=_MLP_EPOCHS, early_stopping=known >= 200, n_iter_no_change=8, random_state=seed
    )


def _kernel(seed: int, known: int) -> Any:  # noqa: ANN401 - as above
    from sklearn.kernel_approximation import Nystroem  # noqa: PLC0415 - as above
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - as above
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415 - as above

    landmarks = Nystroem(n_components=min(_LANDMARKS, known), random_state=seed)
    return make_pipeline(landmarks, LogisticRegression(C=10.0, max_iter=500))


def _neighbours(seed: int, known: int) -> Any:  # noqa: ANN401 - as above
    from sklearn.neighbors import KNeighborsClassifier  # noqa: PLC0415 - as above

    return KNeighborsClassifier(min(_NEIGHBOURS, known), weights="distance")


def _boosting(seed: int, known: int) -> Any:  # noqa: ANN401 - as above
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415 - as above

    return HistGradientBoostingClassifier(max_iter=100, early_stopping=known >= 1000, random_state=seed)


def _on_rows(make: Callable[[int, int], Any]) -> Attacker:
    def attack(view: View, targets: Flags) -> Floats:
        known = view.known
        model = make(view.seed, int(known.sum()))
        return _fitted_on(model, view.rows[known], view.codes[known], view.rows[targets], view.classes)

    return attack


def _evened(view: View, rows: Floats, targets: Flags) -> Floats:
    """An MLP on known nodes that are drawn with replacement so that classes are even: else it gives up on rare ones.

    Its probabilities are turned back to those of the classes' shares.
    """
    places, random = view.known.nonzero()[0], np.random.default_rng(view.seed)
    codes = view.codes[places]
    shares = np.bincount(codes, minlength=view.classes) / len(codes)
    drawn = random.choice(places, size=len(places), p=1 / (shares[codes] * len(codes) * (shares > 0).sum()))
    found = (
        _fitted_on(_mlp(view.seed, len(places)), rows[drawn], view.codes[drawn], rows[targets], view.classes) * shares
    )
    return np.asarray(found / np.maximum(found.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny))


def _mlp_on_rows(view: View, targets: Flags) -> Floats:
    return _evened(view, view.rows, targets)


def _graph(view: View, targets: Flags) -> Floats:
    """A GNN over the edges: rows of two hops beside a node's own, and what its neighbours' known values are (SIGN).

    Source: Frasca et al. 2020, SIGN; known values beside features as in Shi et al. 2021, UniMP.
    """
    return _evened(view, _hops(view, view.rows), targets)


def _edges_alone(view: View, targets: Flags) -> Floats:
    """The same without embeddings: what public edges and known values tell anyway."""
    return _evened(view, _hops(view, view.rows[:, :0]), targets)


def _hops(view: View, rows: Floats) -> Floats:
    near = view.near
    assert near is not None  # asked for with public edges alone
    told = np.zeros((len(rows), view.classes))
    told[view.known, view.codes[view.known]] = 1
    told[view.known] -= told[view.known].mean(axis=0)
    once, twice = near @ rows, near @ (near @ rows)
    heard = near @ told  # of other nodes: there are no loops
    back = np.asarray((near.multiply(near.T)).sum(axis=1)).reshape(-1, 1)  # what comes back to a node of its own
    return np.hstack([rows, once, twice, heard, near @ heard - back * told])


FAMILIES: Final[Mapping[str, Attacker]] = {
    "logistic": _on_rows(_logistic),
    "mlp": _mlp_on_rows,
    "kernel": _on_rows(_kernel),
    "neighbours": _on_rows(_neighbours),
    "boosting": _on_rows(_boosting),
}
"""Families that need embeddings alone."""
GRAPH_FAMILIES: Final[Mapping[str, Attacker]] = {"gnn": _graph, "edges-alone": _edges_alone}
"""Families that need the edges, too; the last has no embeddings."""


def _fitted_on(model: Any, rows: Floats, codes: Codes, others: Floats, classes: int) -> Floats:  # noqa: ANN401 - as above
    """Probabilities of every class, 0 of those that the attacker does not know."""
    fit_quietly(model, rows, codes)
    found = np.zeros((len(others), classes))
    found[:, model.classes_] = model.predict_proba(others)
    return found
