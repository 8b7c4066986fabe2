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
_FEWEST: Final = 100  # validation nodes
_FEWEST_OF_SECOND: Final = 10  # of the second largest class among these
_LEAST_GAIN: Final = 1e-3  # of the mean loss: two fits of one loss differ by less


@dataclass(frozen=True)
class RegressionInputs:
    """Inputs of the regression for n nodes: ``columns``, float64 [n, C] each, have one weight each.

    The first are the network's log-probabilities. ``slopes``, float64 [n, K], have a weight each for every class.
    """

    columns: Sequence[Floats]
    slopes: Floats

    def of(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> RegressionInputs:
        """The inputs of some of the nodes."""
        return RegressionInputs([column[rows] for column in self.columns], self.slopes[rows])

    def sums(self, weights: Floats) -> Floats:
        """Weighted sum of the inputs: logits [n, C]; ``weights`` are one for each column, then [K, C] of slopes."""
        of_columns, of_slopes = np.split(weights, [len(self.columns)])
        total = sum(weight * column for weight, column in zip(of_columns, self.columns, strict=True))
        return np.asarray(total + self.slopes @ of_slopes.reshape(self.slopes.shape[1], self.columns[0].shape[1]))

    def sums_by(self, weights: Sequence[Floats] | Floats, folds: _Labels) -> Floats:
        """Logits [n, C], each node's by the weights of its fold; ``folds`` int64 [n]."""
        found = np.empty(self.columns[0].shape)
        for fold, own in enumerate(weights):
            found[folds == fold] = self.of(folds == fold).sums(own)
        return found


@dataclass(frozen=True)
class Regression:
    """A logistic regression for labels, int64 [n], with class weights ``by_class`` [C] in its loss."""

    labels: _Labels
    by_class: Floats

    def likely(self, logits: Floats) -> Floats:
        """Log-probability of every label times its class's weight: [n], of logits [n, C]."""
        from scipy.special import log_softmax  # noqa: PLC0415 - slow to import, and one party asks for it

        found = log_softmax(logits, axis=1)[np.arange(len(self.labels)), self.labels]
        return np.asarray(found * self.by_class[self.labels])

    def fitted(self, said: RegressionInputs, begun: Sequence[float] = (1.0,), pull: float = 0.0) -> Floats:
        """Fit weights of ``RegressionInputs.sums``: mean loss plus (1/n + pull)/2·|weights − (begun, 0, …, 0)|²."""
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
            likely, drawn = (
                self.likely(logits).sum() / self.by_class[self.labels].sum(),
                (1 / len(shares) + pull) * away,
            )
            return float(away @ drawn / 2 - likely), slopes + drawn

        return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x)

    def across_folds(self, said: RegressionInputs, folds: _Labels) -> Floats:
        """Fit weights once for each fold, without its nodes: float64 [folds, number of weights]."""
        kept = (folds != fold for fold in range(_FOLDS))
        return np.stack([Regression(self.labels[rows], self.by_class).fitted(said.of(rows)) for rows in kept])


@dataclass(frozen=True)
class Stacking:
    """A fitted stacking: ``weights``, float64 [folds + 1, K], the last row fitted on all validation nodes; or none.

    ``judged`` are the validation nodes, int64 [V], and ``folds`` their folds, int64 [V]: while these nodes stay, each
    gets weights fitted without it. ``usual``, float64 [C + 1], are the classes' shares of training nodes and the
    mean of log(1 + n), as of the training: later labels do not move them.
    """

    weights: Tensor
    judged: Tensor
    folds: Tensor
    usual: Tensor

    def is_of(self, classes: int) -> bool:
        """Whether all tensors have the dtypes, shapes and ranges of a stacking for so many classes."""
        rows, many = (_FOLDS + 1, 4 + 2 * classes) if len(self.weights) else (0, 0), (len(self.judged),)
        forms = [(torch.float64, rows), (torch.int64, many), (torch.int64, many), (torch.float64, (classes + 1,))]
        sound = [(each.dtype, tuple(each.shape)) for each in vars(self).values()] == forms
        sound = sound and bool(((self.folds >= 0) & (self.folds < _FOLDS)).all() and (self.usual[:-1] > 0).all())
        return sound and bool(torch.cat([self.weights.ravel(), self.usual]).isfinite().all())

    def logits(self, logits: Tensor, graph: PartyGraph) -> Tensor:
        """Add what the holder's edges say to the logits [N, C] of its first N nodes; unchanged without weights."""
        if not len(self.weights):
            return logits
        said, (*of_folds, whole) = _regression_inputs(logits, graph, self.usual.numpy()), self.weights.numpy()
        found, val = said.sums(whole), graph.val_mask
        if val is not None and torch.equal(val[: len(logits)].nonzero()[:, 0], self.judged):
            found[self.judged.numpy()] = said.of(self.judged.numpy()).sums_by(of_folds, self.folds.numpy())
        return torch.from_numpy(found)


def fit_stacking(logits: Tensor, graph: PartyGraph, by_class: Tensor | None = None) -> Stacking:
    """Fit a stacking on the validation nodes among a holder's first N, of their logits [N, C].

    It has no weights where edges add nothing or there are too few such nodes. ``by_class``, Tensor[C], are the class
    weights of the training loss, and count here too.
    """
    (nodes, classes), labels, val = logits.shape, graph.labels, graph.val_mask
    nobody, usual = torch.empty(0, dtype=torch.int64), _usual(graph, nodes, classes)
    none = Stacking(torch.empty((0, 0), dtype=torch.float64), nobody, nobody, torch.from_numpy(usual))
    if labels is None or val is None or graph.train_mask is None:
        return none
    judged = val[:nodes].nonzero()[:, 0]
    counts = labels[judged].bincount(minlength=classes).sort().values
    if len(judged) < _FEWEST or counts[-2] < _FEWEST_OF_SECOND:
        return none
    said, known = _regression_inputs(logits, graph, usual).of(judged.numpy()), labels[judged].numpy()
    network, folds = RegressionInputs(said.columns[:1], said.slopes[:, :1]), np.empty(len(judged), np.int64)
    folds[np.argsort(known, kind="stable")] = np.arange(len(folds)) % _FOLDS  # every class is in all of them
    regression = Regression(known, np.ones(classes) if by_class is None else by_class.double().numpy())
    weights, alone = regression.across_folds(said, folds), regression.across_folds(network, folds)
    found = said.sums_by(weights, folds)
    gained = regression.likely(found) - regression.likely(network.sums_by(alone, folds))
    least = max(gained.std() / len(gained) ** 0.5, _LEAST_GAIN)
    if not gained.mean() > least or _quality(found, known) < _quality(said.columns[0], known):
        return none
    whole = np.vstack([weights, regression.fitted(said)])
    return Stacking(torch.from_numpy(whole), judged, torch.from_numpy(folds), torch.from_numpy(usual))


def fit_best_stacking(
    said: Sequence[Tensor], graph: PartyGraph, by_class: Tensor | None = None
) -> tuple[int, Stacking]:
    """Fit a stacking to each of several logits [N, C], and return place and stacking of the best.

    That has the lowest loss on validation nodes, with class weights as ``fit_stacking`` has them; the first of several,
    and where there are too few such nodes.
    """
    fitted = [fit_stacking(each, graph, by_class) for each in said]
    val, labels, (nodes, classes) = graph.val_mask, graph.labels, said[0].shape
    if len(said) == 1 or val is None or labels is None or int(val[:nodes].sum()) < _FEWEST:
        return 0, fitted[0]
    judged = val[:nodes].nonzero()[:, 0]
    known = Regression(labels[judged].numpy(), np.ones(classes) if by_class is None else by_class.double().numpy())
    likely = [
        float(known.likely(of.logits(each, graph)[judged].double().numpy()).sum())
        for of, each in zip(fitted, said, strict=True)
    ]
    place = likely.index(max(likely))
    return place, fitted[place]


def _quality(logits: Floats, labels: _Labels) -> float:
    """Average precision of two classes; accuracy where that is None."""
    precision = average_precision(torch.from_numpy(logits), torch.from_numpy(labels))
    return float((logits.argmax(1) == labels).mean()) if precision is None else precision


def _adjacency_and_labels(graph: PartyGraph, nodes: int, classes: int) -> tuple[csr_array, Floats]:
    """Adjacency of the first N nodes, target by source, 0 or 1 [N, N], and one-hot training labels, else 0 [N, C]."""
    source, target = graph.edge_index.numpy()
    kept = (source != target) & (source < nodes) & (target < nodes)
    near = csr_array((np.ones(int(kept.sum())), (target[kept], source[kept])), (nodes, nodes))
    near.data[:] = 1  # whatever one has recorded twice
    own = np.zeros((nodes, classes))
    if graph.labels is not None and graph.train_mask is not None:
        trained = graph.train_mask[:nodes].numpy()
        own[trained, graph.labels[:nodes].numpy()[trained]] = 1
    return near, own


def _usual(graph: PartyGraph, nodes: int, classes: int) -> Floats:
    """Compute ``Stacking.usual``, float64 [C + 1]; a class without training nodes counts as half a node."""
    near, own = _adjacency_and_labels(graph, nodes, classes)
    shares = np.maximum(own.sum(0), 0.5) / max(1.0, own.sum())
    return np.append(shares, np.log1p((near @ own).sum(1)).mean())


def _regression_inputs(logits: Tensor, graph: PartyGraph, kept: Floats) -> RegressionInputs:
    """Make the module's inputs for the first N nodes, from logits [N, C], own edges and ``Stacking.usual``."""
    logs, (nodes, classes) = logits.double().log_softmax(1).numpy(), logits.shape
    near, own = _adjacency_and_labels(graph, nodes, classes)
    others, usual = 1 - own.sum(1, keepdims=True), kept[:-1]
    counts, judging = near @ own, 1 + near @ others
    columns = [
        logs,
        (near @ (others * logs) + np.log(usual)) / judging - np.log(usual),
        np.log((near @ (others * np.exp(logs)) + usual) / judging / usual),
        np.log((counts + usual) / usual),
    ]
    return RegressionInputs(columns, np.stack([np.ones(nodes), np.log1p(counts.sum(1)) - kept[-1]], 1))
