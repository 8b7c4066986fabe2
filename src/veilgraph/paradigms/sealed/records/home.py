"""What the label holder of a sealed job with noise on training records does at home: its own model, and the sum.

The model is boosted trees (``boosting``) on up to 256 columns and their means over its edges, and a ridge regression on
columns after 0 to 4 hops, added up by a regression on validation nodes. A training node's opinion is of models that
were fitted without its fold, or residuals would be too small. What others' columns add is fitted on validation nodes
too, and own edges are stacked on the sum (``stacking``). Nothing is sent for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import log_softmax
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_numbers
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.boosting import FOLDS, Examples
from veilgraph.paradigms.sealed.inputs import neighbours
from veilgraph.paradigms.sealed.plan import OwnData
from veilgraph.paradigms.sealed.records.rows import outputs_of, residuals_of
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.stacking import Floats, Regression, RegressionInputs, fit_stacking

_MOST_COLUMNS: Final = 256  # that trees are fitted to, and axes of more that a ridge regression is
_FAR: Final = 32.0  # deviations at which columns are clipped
_HOPS: Final = ((0,), (0, 1, 2), (2, 4), (0, 2, 4))
_PENALTIES: Final = (1e-3, 1e-2, 0.1, 0.3, 1.0)
_BIAS: Final = 3.0  # so large a column is hardly penalised


@dataclass(frozen=True)
class Home:
    """The label holder's common nodes: its graph, and how many classes there are."""

    graph: PartyGraph
    classes: int

    def __post_init__(self) -> None:
        labels, val = self._labels, self._mask("val")
        if len(np.unique(labels[val])) < 2:
            raise DataError(
                f"party {self.graph.party!r}: privacy weighs what is told of others' columns by common validation "
                "nodes, and these are of fewer than two classes; mark more",
                key="privacy.unit",
                party=self.graph.party,
            )

    @property
    def _labels(self) -> np.ndarray:
        assert self.graph.labels is not None
        return self.graph.labels.numpy()

    def _mask(self, name: str) -> np.ndarray:
        mask = getattr(self.graph, f"{name}_mask")
        return np.zeros(self.graph.num_nodes, bool) if mask is None else np.asarray(mask.numpy())

    def opinions(self) -> Tensor:
        """Log-probabilities of classes by own data, of training nodes without their own label: float64 [N, C]."""
        columns, adjacency = _standard(self.graph), _adjacency(self.graph)
        said = [log_softmax(self._ridge(columns, adjacency), axis=1)]
        if self.graph.num_features <= _MOST_COLUMNS:
            said.append(self._boosted(torch.from_numpy(columns)))
        return torch.from_numpy(log_softmax(self._sum(said), axis=1))

    def with_scores(self, opinions: Tensor, scores: Tensor, by_class: Tensor | None) -> Tensor:
        """Add scores [N, outputs], 0 at training nodes, and own edges to the opinions [N, C]: logits [N, C]."""
        told = scores.numpy()
        told = told if told.shape[1] > 1 else np.concatenate([-told / 2, told / 2], 1)
        told = told / (np.sqrt((told[self._mask("val")] ** 2).mean()) + 1e-300)
        logits = torch.from_numpy(log_softmax(self._sum([opinions.numpy(), told]), axis=1))
        return fit_stacking(logits, self.graph, by_class).logits(logits, self.graph)

    def with_bits(self, opinions: Tensor, bits: Tensor, by_class: Tensor | None) -> Tensor:
        """Add log-likelihood ratios of bits [N, holders], 0 or 1, and own edges to the opinions [N, 2]: logits [N, 2].

        Ratios are fitted on validation nodes, and left out where these, across folds, are told better without.
        """
        said, val = [opinions.numpy()], self._mask("val")
        told = np.where(self._mask("train")[:, None], 0.0, bits.numpy() - 0.5)
        with_bits = [*said, *(np.stack([-column, column], 1) for column in told.T)]
        judged, shift = Regression(self._labels[val], np.ones(self.classes)), np.ones((len(told), 1))
        folds = np.arange(int(val.sum())) % FOLDS
        likely = []
        for each in (said, with_bits):
            inputs = RegressionInputs(each, shift).of(val)
            likely.append(float(judged.likely(inputs.sums_by(judged.across_folds(inputs, folds), folds)).sum()))
        logits = torch.from_numpy(log_softmax(self._sum(with_bits if likely[1] > likely[0] else said), axis=1))
        return fit_stacking(logits, self.graph, by_class).logits(logits, self.graph)

    def _sum(self, said: list[Floats]) -> Floats:
        """Add [N, C] each, and a shift of every class, by weights fitted on validation nodes."""
        inputs, val = RegressionInputs(said, np.ones((len(said[0]), 1))), self._mask("val")
        weights = Regression(self._labels[val], np.ones(self.classes)).fitted(inputs.of(val))
        return inputs.sums(weights)

    def _boosted(self, columns: Tensor) -> Floats:
        seen = torch.cat([columns, neighbours(columns, self.graph.edge_index, _weights(self.graph))], 1)
        rows = torch.from_numpy(self._mask("train")).nonzero()[:, 0]
        found = Examples(seen[rows], torch.from_numpy(self._labels)[rows]).scores(seen, self.classes)
        return np.asarray(log_softmax(np.concatenate([np.zeros((len(found), 1)), found.numpy()], 1), axis=1))

    def _ridge(self, columns: Floats, adjacency: sp.csr_array) -> Floats:
        """Ridge regression with hops and penalty by validation nodes: [N, C], training nodes' across folds."""
        hopped, train = [columns], self._mask("train")
        for _ in range(max(map(max, _HOPS))):
            hopped.append(adjacency @ hopped[-1])
        rows = [
            np.concatenate([*(hopped[hop] for hop in hops), np.full((len(columns), 1), _BIAS)], 1) for hops in _HOPS
        ]
        val, labels = self._mask("val"), self._labels
        judged = Regression(labels[val], np.ones(self.classes))
        best, place, penalty, found = -np.inf, 0, 0.0, np.empty(0)
        for at, each in enumerate(rows):
            for how, fitted in zip(_PENALTIES, self._solved(each, train, _PENALTIES), strict=True):
                inputs = RegressionInputs([fitted[val]], np.ones((int(val.sum()), 1)))
                quality = float(judged.likely(inputs.sums(judged.fitted(inputs))).mean())
                if quality > best:
                    best, place, penalty, found = quality, at, how, fitted
        found, folds = found.copy(), np.arange(len(train)) % FOLDS
        for fold in range(FOLDS):
            left = train & (folds == fold)
            found[left] = self._solved(rows[place], train & ~left, [penalty])[0][left]
        return found

    def _solved(self, rows: Floats, train: np.ndarray, penalties: list[float] | tuple[float, ...]) -> list[Floats]:
        """Solve for each penalty, and give every node's centred one-hot prediction: [N, C] each."""
        targets = np.eye(self.classes)[self._labels[train]] - 1 / self.classes
        values, vectors = np.linalg.eigh(rows[train].T @ rows[train])
        values, made, right = np.maximum(values, 0), rows @ vectors, vectors.T @ (rows[train].T @ targets)
        return [made @ (right / (values + 3 * each * values.mean() + 1e-9)[:, None]) for each in penalties]


def check_classes_of_bits(job: SealedJob, party: PartyId, classes: int) -> None:
    """Raise ``DataError`` where the job opens one bit a node, and labels are of more than two classes."""
    if job.bits is not None and classes > 2:
        raise DataError(
            f"party {party!r}: its labels are of {classes} classes, and privacy.unit=node opens one bit a node, which "
            "is of two; set privacy.unit to training-record, or merge classes",
            key="privacy.unit",
            value="node",
            party=party,
        )


def with_residuals(own: OwnData, opinions: Tensor, graph: PartyGraph, multiplier: float) -> OwnData:
    """Add ``residuals`` and ``told`` to what the label holder puts in, of its opinions [N, C]."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    trained = graph.train_mask
    residuals = torch.zeros((len(opinions), outputs_of(opinions.shape[1])), dtype=torch.float64)
    residuals[trained] = residuals_of(opinions[trained].exp(), graph.labels[trained], multiplier)
    return replace(own, residuals=residuals, told=(~trained).to(torch.float64)[:, None])


def _standard(graph: PartyGraph) -> Floats:
    """Own columns with mean 0 and deviation 1, clipped; of many their first axes, of one deviation together: [N, d]."""
    found = to_numbers(graph.features)
    if found.shape[1] <= _MOST_COLUMNS:
        dense = found.toarray() if sp.issparse(found) else np.asarray(found, dtype=np.float64)
        return np.asarray(((dense - dense.mean(0)) / (dense.std(0) + 1e-12)).clip(-_FAR, _FAR), dtype=np.float64)
    from sklearn.utils.extmath import randomized_svd  # noqa: PLC0415 - slow to import, for wide data alone

    whole = sp.csr_array(found).astype(np.float64)
    lengths = np.sqrt(np.asarray(whole.multiply(whole).sum(axis=1)).ravel())
    left, sizes, _ = randomized_svd(
        sp.diags_array(1 / np.maximum(lengths, 1e-12)) @ whole, _MOST_COLUMNS, random_state=0
    )
    axes = left * sizes
    return np.asarray(axes / (axes.std() + 1e-12))


def _weights(graph: PartyGraph) -> Tensor | None:
    return None if graph.edge_weight is None else graph.edge_weight.to(torch.float64)


def _adjacency(graph: PartyGraph) -> sp.csr_array:
    """D^(−1/2)·(A + I)·D^(−1/2) of own edges between N nodes, 0 or 1, no loops: [N, N]."""
    (source, target), nodes = graph.edge_index.numpy(), graph.num_nodes
    kept = source != target
    near = sp.csr_array((np.ones(int(kept.sum())), (target[kept], source[kept])), (nodes, nodes))
    near.data[:] = 1
    whole = near + sp.eye_array(nodes, format="csr")
    roots = sp.diags_array(1 / np.sqrt(np.asarray(whole.sum(axis=1)).ravel()))
    return sp.csr_array(roots @ whole @ roots)
