"""Stacking at home: the logits that a label holder was told, beside what its own edges and labels say of those nodes.

A regression on validation nodes (stacked generalisation, Wolpert 1992) adds up, for every class c of a node,

    log p_c                              of the network
    mean of log p_c, log of mean p_c     over its neighbours that are not trained on
    log(n_c + π_c)                       n_c of its neighbours' training labels
    a shift, and a slope in log(1 + n)   n neighbours that are trained on

with one weight for each of the first four, and a shift and a slope for every class. π are the shares of classes among
training nodes, and what a node without neighbours has. A trained node's label is in its logits: such neighbours count
by their labels, and only others by their logits. Nobody else is asked, and nothing is told.

Logits stay as they are unless five-fold cross-validation shows, by more than a standard error of the loss, that edges
add to what a scale and shifts of the logits reach, with no fewer nodes right, or of two classes no lower precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor

from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.judge import average_precision

Floats = npt.NDArray[np.float64]
_Labels = npt.NDArray[np.int64]
_FOLDS: Final = 5
_FEWEST: Final = 20  # validation nodes
_LEAST_GAIN: Final = 1e-3  # of the mean loss: two fits of one loss differ by less
_LEAST: Final = 1e-12  # of a share, before its logarithm


@dataclass(frozen=True)
class Said:
    """What is said of n nodes: ``columns`` [n, C], whose first is a network's, and ``slopes`` [n, K] of every class."""

    columns: Sequence[Floats]
    slopes: Floats

    def of(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Said:
        """Some of the nodes."""
        return Said([column[rows] for column in self.columns], self.slopes[rows])

    def alone(self) -> Said:
        """What the network says, and a shift of every class."""
        return Said(self.columns[:1], self.slopes[:, :1])

    def sums(self, weights: Floats) -> Floats:
        """Logits [n, C]; ``weights`` are one for each column, then those of slopes [K, C]."""
        of_columns, of_slopes = np.split(weights, [len(self.columns)])
        total = sum(weight * column for weight, column in zip(of_columns, self.columns, strict=True))
        return np.asarray(total + self.slopes @ of_slopes.reshape(self.slopes.shape[1], self.columns[0].shape[1]))

    def sums_by(self, weights: Sequence[Floats] | Floats, folds: _Labels) -> Floats:
        """Logits [n, C], of each node by the weights of its fold."""
        found = np.empty(self.columns[0].shape)
        for fold, own in enumerate(weights):
            found[folds == fold] = self.of(folds == fold).sums(own)
        return found


@dataclass(frozen=True)
class Regression:
    """Cross-entropy of labels, int64 [n], each class with its own of ``by_class`` [C]."""

    labels: _Labels
    by_class: Floats

    def likely(self, logits: Floats) -> Floats:
        """The log-probability of every label times its class's weight: [n], of [n, C]."""
        from scipy.special import log_softmax  # noqa: PLC0415 - slow to import, and one party asks for it

        found = log_softmax(logits, axis=1)[np.arange(len(self.labels)), self.labels]
        return np.asarray(found * self.by_class[self.labels])

    def fitted(self, said: Said, begun: Sequence[float] = (1.0,), pull: float = 0.0) -> Floats:
        """Weights for ``Said.sums`` of least mean loss plus (1/n + pull)/2 times |weights − (begun, 0, …, 0)|²."""
        from scipy.optimize import minimize  # noqa: PLC0415 - as above
        from scipy.special import softmax  # noqa: PLC0415

        shares = self.by_class[self.labels] / self.by_class[self.labels].sum()
        start = np.zeros(len(said.columns) + said.slopes.shape[1] * len(self.by_class))
        start[: len(begun)] = begun

        def loss(weights: Floats) -> tuple[float, Floats]:
            logits, away = said.sums(weights), weights - start
            error = softmax(logits, axis=1)
            error[np.arange(len(shares)), self.labels] -= 1
            error *= shares[:, None]
            slopes = np.concatenate([[(error * each).sum() for each in said.columns], (said.slopes.T @ error).ravel()])
            drawn = (1 / len(shares) + pull) * away
            return float(
                away @ drawn / 2 - self.likely(logits).sum() / self.by_class[self.labels].sum()
            ), slopes + drawn

        return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x)

    def across_folds(self, said: Said, folds: _Labels) -> Floats:
        """Weights [folds, K], each fitted without the nodes of its fold."""
        kept = (folds != fold for fold in range(_FOLDS))
        return np.stack([Regression(self.labels[rows], self.by_class).fitted(said.of(rows)) for rows in kept])


@dataclass(frozen=True)
class Stacking:
    """What a training found: ``weights``, float64 [folds + 1, K], the last of all validation nodes; or none.

    ``judged`` are the validation nodes, int64 [V], and ``folds`` their folds, int64 [V]: where nodes are judged as they
    were, each has weights that were fitted without it, in later predictions too.
    """

    weights: Tensor
    judged: Tensor
    folds: Tensor

    def logits(self, logits: Tensor, graph: PartyGraph) -> Tensor:
        """With what a holder's edges add, float64 [N, C], of its first N nodes' [N, C]."""
        if not len(self.weights):
            return logits
        said, (*of_folds, whole) = _said(logits, graph), self.weights.numpy()
        found, val = said.sums(whole), graph.val_mask
        if val is not None and torch.equal(val[: len(logits)].nonzero()[:, 0], self.judged):
            judged = self.judged.numpy()
            found[judged] = said.of(judged).sums_by(of_folds, self.folds.numpy())
        return torch.from_numpy(found)


def fitted(logits: Tensor, graph: PartyGraph, by_class: Tensor | None = None) -> Stacking:
    """Of least loss on the validation nodes among a holder's first N, by their logits [N, C]; none where edges add
    nothing.

    ``by_class``, Tensor[C], are the classes' weights in the training loss; they count here too.
    """
    (nodes, classes), labels, val = logits.shape, graph.labels, graph.val_mask
    none = Stacking(torch.empty((0, 0), dtype=torch.float64), *[torch.empty(0, dtype=torch.int64)] * 2)
    if labels is None or val is None or graph.train_mask is None or val[:nodes].sum() < _FEWEST:
        return none
    judged = val[:nodes].nonzero()[:, 0]
    said, known, folds = (
        _said(logits, graph).of(judged.numpy()),
        labels[judged].numpy(),
        np.empty(len(judged), np.int64),
    )
    folds[np.argsort(known, kind="stable")] = np.arange(len(folds)) % _FOLDS  # every class is in all of them
    regression = Regression(known, np.ones(classes) if by_class is None else by_class.double().numpy())
    weights, alone = regression.across_folds(said, folds), regression.across_folds(said.alone(), folds)
    found = said.sums_by(weights, folds)
    gained = regression.likely(found) - regression.likely(said.alone().sums_by(alone, folds))
    least = max(gained.std() / len(gained) ** 0.5, _LEAST_GAIN)
    if gained.mean() <= least or _rank(found, known) < _rank(said.columns[0], known):
        return none
    whole = np.vstack([weights, regression.fitted(said)])
    return Stacking(torch.from_numpy(whole), judged, torch.from_numpy(folds))


def _rank(logits: Floats, labels: _Labels) -> float:
    precision = average_precision(torch.from_numpy(logits), torch.from_numpy(labels))
    return float((logits.argmax(1) == labels).mean()) if precision is None else precision


def _said(logits: Tensor, graph: PartyGraph) -> Said:
    assert graph.labels is not None
    assert graph.train_mask is not None
    logs, (nodes, classes) = logits.double().log_softmax(1).numpy(), logits.shape
    labels, trained = graph.labels[:nodes].numpy(), graph.train_mask[:nodes].numpy()
    source, target = graph.edge_index.numpy()
    kept = (source != target) & (source < nodes) & (target < nodes)
    adjacency = csr_array((np.ones(int(kept.sum())), (target[kept], source[kept])), (nodes, nodes))
    own, others = np.zeros((nodes, classes)), (~trained).astype(np.float64)[:, None]
    own[trained, labels[trained]] = 1
    usual = np.maximum(own.sum(0) / max(1, trained.sum()), _LEAST)
    counts, judging = adjacency @ own, 1 + adjacency @ others
    told = np.log1p(counts.sum(1))
    columns = [
        logs,
        (adjacency @ (others * logs) + np.log(usual)) / judging - np.log(usual),
        np.log((adjacency @ (others * np.exp(logs)) + usual) / judging / usual),
        np.log((counts + usual) / usual),
    ]
    return Said(columns, np.stack([np.ones(nodes), told - told.mean()], 1))
