"""How the label holder uses noisy votes at home: their likelihood under every class of a node (``plan``).

With n_k votes for class k in a node's row, of R_k on average, and noise on each,

    log P(row | class c) = log mean_r Π_k Σ_n Poisson(n; r·S_ck)·Noise(row_k − n),

S the shares of classes among the neighbours of a node of class c, over the label holder's own edges, and r rates like
those of its own degrees, as large as the noisy counts are on average. That is added to the model's log-probabilities,
or to those that its classes have by the validation nodes; two weights of the sum are fitted on the validation nodes.
All of this is computed from what the label holder has and was told, so it costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.stacking import Floats, Regression, RegressionInputs
from veilgraph.privacy.geometric import variance

_RATES: Final = np.linspace(0.05, 0.95, 8)  # quantiles of degrees that stand for all of them
_MOST_VOTES: Final = 400  # of one class at a node: more say no more
_FAR: Final = 40.0  # times 1/ε: noise is farther out with a chance of e^-40
_WIDEST: Final = 20_000  # counts on either side that are told apart, so that 1/ε may be up to 500
_LEAST: Final = 1e-12  # of a probability, before its logarithm
_USUAL: Final = (1.0, 0.25)
"""Weights where no validation node says other ones: a node's votes are less independent than the law above has them."""
_RIDGE: Final = 1e-2  # on how far weights are from these
_TRUSTED: Final = 4.0  # nodes of each predicted class that count as rightly predicted, before any is looked at
LEAST_LEFT: Final = 0.2  # of what votes add: what is less was at most 0.2 points wherever it was measured
# how much more the noise's variance counts than the votes' own: by docs/figures/sealed-privacy.json
_BY_NOISE: Final = 3.0


def left_by_noise(votes: float, epsilon: float) -> float:
    """The share of the votes' benefit that noise of ε leaves, 0 to 1; ``votes``: mean number at a node."""
    return votes / (votes + _BY_NOISE * variance(epsilon))


def epsilon_for(votes: float) -> float:
    """The least ε, rounded up to a tenth, whose noise leaves ``LEAST_LEFT`` of the benefit of so many votes a node."""
    return math.ceil(20 * math.asinh(math.sqrt(_BY_NOISE * LEAST_LEFT / (2 * (1 - LEAST_LEFT) * votes)))) / 10


@dataclass(frozen=True)
class LabelKnowledge:
    """What the label holder knows of the R nodes whose votes are opened.

    Attributes:
        graph: its own, with labels and splits, of common nodes.
        rows: Tensor[R] int64, the nodes; None: all.
    """

    graph: PartyGraph
    classes: int
    rows: Tensor | None = None

    def of(self, name: str) -> npt.NDArray[np.bool_]:
        """Which of the nodes are in split ``name`` ("train", "val" or "test"): bool [R]."""
        mask, found = getattr(self.graph, f"{name}_mask"), torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        found = found if mask is None else mask
        return np.asarray((found if self.rows is None else found[self.rows]).numpy())

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The nodes' labels, [R]; −1 where unknown."""
        assert self.graph.labels is not None
        return np.asarray((self.graph.labels if self.rows is None else self.graph.labels[self.rows]).numpy())


def with_votes(
    scores: Tensor, votes: Tensor, epsilon: float, known: LabelKnowledge, *, classes_alone: bool = False
) -> Tensor:
    """Combine the model's logits and noisy votes at ε, each float64 [R, C], into logits of the same shape.

    Both are weighed by a fit on validation nodes. ``classes_alone``: of ``scores`` only the largest counts.
    """
    said = class_log_probabilities(scores.argmax(1), known) if classes_alone else scores.log_softmax(1)
    own, judged = said.numpy(), known.of("val") & (known.labels >= 0)
    told = vote_log_likelihood(votes.numpy(), epsilon, known, own.argmax(1))
    both, weights = RegressionInputs([own, told], np.empty((len(own), 0))), np.array(_USUAL)
    if judged.any():
        weights = Regression(known.labels[judged], np.ones(known.classes)).fitted(both.of(judged), _USUAL, _RIDGE)
    return torch.from_numpy(both.sums(weights))


def class_log_probabilities(predicted: Tensor, known: LabelKnowledge) -> Tensor:
    """Log-probabilities of true classes given predicted ones, int64 [R], counted on validation nodes: [R, C]."""
    classes, found = known.classes, predicted.numpy()
    judged = known.of("val") & (known.labels >= 0)
    counts = _TRUSTED * np.eye(classes) + 1 / classes
    np.add.at(counts, (found[judged], known.labels[judged]), 1.0)
    return torch.from_numpy(np.log(counts / counts.sum(1, keepdims=True))[found])


def vote_log_likelihood(
    votes: Floats, epsilon: float, known: LabelKnowledge, predicted: npt.NDArray[np.int64]
) -> Floats:
    """Log-likelihood of each row of noisy votes [R, C] under each class, up to a constant: [R, C]; 0 at training nodes.

    ``predicted`` are the rows' classes by the model. All is 0 where 1/ε is so large that votes say nothing.
    """
    counted = ~known.of("train")
    found = np.zeros(votes.shape)
    if not counted.any() or (math.isfinite(epsilon) and _FAR / epsilon > _WIDEST):
        return found
    rows = votes[counted]
    reach = 0 if math.isinf(epsilon) else math.ceil(_FAR / epsilon)
    values = np.clip(np.rint(rows), -reach, _MOST_VOTES + reach).astype(np.int64)
    rates = _rates(known, counted) * max(float(rows.sum(1).mean()), _RATES[0])
    found[counted] = _log_likelihood(values, epsilon, _neighbour_classes(known, predicted), rates)
    return found


def _log_likelihood(values: npt.NDArray[np.int64], epsilon: float, shares: Floats, rates: Floats) -> Floats:
    """Log-likelihood of noisy counts [n, C] under each class, by the module's law with S and r: [n, C]."""
    from scipy.special import gammaln, xlogy  # noqa: PLC0415 - slow to import, and one party asks for it

    classes, least, n = len(shares), int(values.min()), np.arange(_MOST_VOTES + 1)
    apart = np.arange(least, int(values.max()) + 1)[:, None] - n
    noise = (
        (apart == 0).astype(float) if math.isinf(epsilon) else math.tanh(epsilon / 2) * np.exp(-epsilon * abs(apart))
    )
    found = np.full(values.shape, -np.inf)
    for rate in rates:
        mean = rate * shares  # [class of the node, class of a vote]
        law = np.exp(xlogy(n[:, None, None], mean) - mean - gammaln(n + 1)[:, None, None])
        table = np.log(np.tensordot(noise, law, 1) + _LEAST)
        for label in range(classes):
            each = sum(table[values[:, vote] - least, label, vote] for vote in range(classes))
            found[:, label] = np.logaddexp(found[:, label], each)
    return found - math.log(len(rates))


def _rates(known: LabelKnowledge, counted: npt.NDArray[np.bool_]) -> Floats:
    """Relative total vote rates, with mean 1: quantiles of own degrees, or of an exponential law without own edges."""
    degrees = torch.bincount(known.graph.edge_index[1], minlength=known.graph.num_nodes)
    own = (degrees if known.rows is None else degrees[known.rows]).numpy()[counted]
    spread = np.quantile(own, _RATES) if own.any() else -np.log(1 - _RATES)
    return np.asarray(np.maximum(spread / spread.mean(), 0.05))


def _neighbour_classes(known: LabelKnowledge, predicted: npt.NDArray[np.int64]) -> Floats:
    """Shares of classes among the neighbours, over own edges, of training nodes of each class: [C, C], rows sum to 1.

    A neighbour counts with its label if it is trained on, else with its predicted class, if it has one.
    """
    graph, nodes = known.graph, known.graph.num_nodes
    assert graph.labels is not None
    assert graph.train_mask is not None
    trained, labels = graph.train_mask.numpy(), graph.labels.numpy()
    opinions = np.full(nodes, -1)
    opinions[slice(None) if known.rows is None else known.rows.numpy()] = predicted
    opinions[trained] = labels[trained]
    source, target = graph.edge_index.numpy()
    kept = trained[target] & (opinions[source] >= 0) & (source != target)
    counts = np.eye(known.classes) + 1 / known.classes
    np.add.at(counts, (labels[target[kept]], opinions[source[kept]]), 1.0)
    return np.asarray(counts / counts.sum(1, keepdims=True))
