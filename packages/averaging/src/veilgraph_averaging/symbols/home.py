"""What a holder makes at home of the symbols that it was told: log-probabilities beside those of its own model.

Its own model is the network of a union of itself alone. With n_k neighbours at others whose symbol is k, H the shares
of classes among the neighbours of a node of each class over its own edges, and R the law of the randomised response,

    Σ_k n_k·log (H·R)_ck,    log (n_k + 1)/(n + C)

are the likelihood of these symbols under each class c, and their smoothed shares. Where every node answers, what
symbols mean follows from those that its own training nodes have, in place of H·R. A regression on validation nodes adds
them to the same two of its own neighbours, and to its own model; they are left out unless cross-validation finds them
better. Nothing of it is sent. Measured in ``research/union_privacy.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from veilgraph.graph.features import is_sparse, scale_features
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.inputs import edges_once
from veilgraph.paradigms.sealed.stacking import Floats, Regression, RegressionInputs
from veilgraph.paradigms.union.inputs import pad_rows
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.paradigms.union.twin import alone
from veilgraph.protocol.figures import ACCURACY, AUC
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective, area_under_curve
from veilgraph.protocol.plain_fitting import PlainResult

_PULL: Final = 0.03  # of the regression's weights towards the holder by itself
_FOLDS: Final = 5
_LEAST: Final = 1e-12  # of a column's size
_TWO: Final = 2


def own_job(graph: PartyGraph, seed: int) -> UnionJob:
    """Return the job of a union that the holder of ``graph`` trains alone, at its defaults."""
    edges = edges_once(graph.edge_index)
    directed = not torch.equal(edges, edges_once(edges.flip(0)))
    other = "others" if graph.party != "others" else "rest"  # a union has two holders at least; this one trains alone
    data = {"label_holder": graph.party, "holders": [graph.party, other]}
    model = {"directed": directed}
    return union(parse_job({"paradigm": "union", "preset": "auto", "seed": seed, "data": data, "model": model}))


def standardised(graph: PartyGraph) -> PartyGraph:
    """Return the graph with each column of its own nodes at mean 0 and variance 1; sparse rows at length 1."""
    own = replace(graph.common_part(), num_common=None)
    rows = scale_features(own, "length" if is_sparse(own.features) else "standard").features.to_dense()
    return replace(graph, features=pad_rows(rows, graph.num_nodes))


def own_model(graph: PartyGraph, ids: Sequence[str], seed: int) -> PlainResult:
    """Train a holder's own model; ``output`` are the logits of its own nodes, Tensor[n, C]."""
    return alone(own_job(graph, seed), standardised(graph), ids, lambda _: None)


def judged_by(graph: PartyGraph, classes: int) -> str:
    """Name the figure on a holder's validation nodes that says whether symbols help, which its verdict is by as well.

    AUC, where there are two classes and nodes of both; else accuracy.
    """
    assert graph.labels is not None
    assert graph.val_mask is not None
    both = len(set(graph.labels[graph.val_mask].tolist())) == _TWO
    return AUC.name if classes == _TWO and both else ACCURACY.name


@dataclass(frozen=True)
class AtHome:
    """A holder's own nodes, n of C classes, and what its own model says of them: ``own``, float64 [n, C]."""

    graph: PartyGraph
    own: Floats
    by_class: Floats  # class weights [C]

    @classmethod
    def of(cls, graph: PartyGraph, logits: Tensor, seed: int) -> AtHome:
        """Take a holder's graph, and its own model's logits of its own nodes, Tensor[n, C]."""
        common = replace(graph.common_part(), num_common=None)
        weights = Objective(common, own_job(graph, seed).train, torch.float64).weights
        by_class = np.ones(logits.shape[1]) if weights is None else weights.numpy()
        return cls(common, logits.double().log_softmax(1).numpy(), by_class)

    def mixed(self, counts: Tensor, law: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits of own nodes without symbols and with them, float64 [n, C] each; the same where left out.

        ``counts``, float64 [n, C], are of symbols at a node; ``law`` [C, C] is P(symbol | class), None: count it.
        """
        votes = self._own_votes()
        mixing = self._shares_by_class(votes)
        first = [np.log(votes @ mixing.T + 0.5), _log_shares(votes)]
        told = counts.numpy()
        means = self._shares_by_class(told) if law is None else mixing @ law.numpy()
        more = [*first, told @ np.log(means).T, _log_shares(told)]
        without = self._fitted(first, self._judged)
        if not self._crossed(more) > self._crossed(first):
            return torch.from_numpy(without), torch.from_numpy(without)
        return torch.from_numpy(without), torch.from_numpy(self._fitted(more, self._judged))

    @property
    def _labels(self) -> NDArray[np.int64]:
        assert self.graph.labels is not None
        return np.asarray(self.graph.labels.numpy())

    @property
    def _trained(self) -> NDArray[np.bool_]:
        assert self.graph.train_mask is not None
        return np.asarray(self.graph.train_mask.numpy())

    @property
    def _judged(self) -> NDArray[np.bool_]:
        assert self.graph.val_mask is not None
        return np.asarray(self.graph.val_mask.numpy())

    def _own_votes(self) -> Floats:
        """Count classes of neighbours over own edges, both ways: labels of training nodes, else the model's classes."""
        nodes, classes = self.own.shape
        first, second = edges_once(self.graph.edge_index).numpy()
        near = csr_array((np.ones(2 * len(first)), (np.r_[first, second], np.r_[second, first])), (nodes, nodes))
        near.data[:] = 1.0
        said = np.eye(classes)[self.own.argmax(1)]
        said[self._trained] = np.eye(classes)[self._labels[self._trained]]
        return np.asarray(near @ said)

    def _shares_by_class(self, counts: Floats) -> Floats:
        """Shares of what is counted at training nodes of each class: [C, C], rows sum to 1."""
        one_hot = np.eye(counts.shape[1])[self._labels[self._trained]]
        found = 1 + one_hot.T @ counts[self._trained]
        return np.asarray(found / found.sum(1, keepdims=True))

    def _crossed(self, more: Sequence[Floats]) -> float:
        """The figure on validation nodes, each by weights that are fitted without its fold: AUC, or accuracy."""
        judged, found = self._judged.nonzero()[0], np.empty(self.own.shape)
        folds = np.empty(len(judged), np.int64)
        folds[np.argsort(self._labels[judged], kind="stable")] = np.arange(len(judged)) % _FOLDS
        for fold in range(_FOLDS):
            fitting = self._judged.copy()
            fitting[judged[folds == fold]] = False
            if fitting.any():
                found[judged[folds == fold]] = self._fitted(more, fitting)[judged[folds == fold]]
        return self._figure(found[judged], self._labels[judged])

    def _figure(self, logits: Floats, labels: NDArray[np.int64]) -> float:
        if judged_by(self.graph, logits.shape[1]) == AUC.name:
            found = area_under_curve(torch.from_numpy(logits), torch.from_numpy(labels))
            if found is not None:
                return found
        return float((logits.argmax(1) == labels).mean())

    def _fitted(self, more: Sequence[Floats], fitting: NDArray[np.bool_]) -> Floats:
        """Fit the weights of all columns on some validation nodes; logits [n, C]."""
        columns = [self.own, *(each - each[self._judged].mean(0) for each in more)]
        units = [math.sqrt(float((each[self._judged] ** 2).mean())) + _LEAST for each in columns]
        inputs = RegressionInputs(
            [each / unit for each, unit in zip(columns, units, strict=True)], np.ones((len(columns[0]), 1))
        )
        regression = Regression(self._labels[fitting], self.by_class)
        return inputs.sums(regression.fitted(inputs.of(fitting), (units[0],), _PULL))


def _log_shares(counts: Floats) -> Floats:
    """Log of smoothed shares of what is counted at a node: [n, C]."""
    return np.asarray(np.log((counts + 1) / (counts.sum(1, keepdims=True) + counts.shape[1])))


class Learnt(nn.Module):
    """A holder's logits of its own nodes, Tensor[n, C], without symbols and with them: what its model file keeps."""

    learnt: Tensor
    without: Tensor
    found: Tensor

    def __init__(self, nodes: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("learnt", torch.tensor(False))
        self.register_buffer("without", torch.zeros((nodes, classes), dtype=torch.float64))
        self.register_buffer("found", torch.zeros((nodes, classes), dtype=torch.float64))

    def keep(self, without: Tensor, found: Tensor) -> None:
        """Keep both."""
        self.without, self.found = without, found
        self.learnt.fill_(value=True)
