"""Scores over the answers of several holders: each adds up its own, and only the sums are opened among them."""

from __future__ import annotations

import math
from statistics import fmean
from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.correction import corrected_losses
from veilgraph.nn.facts import FactNetwork
from veilgraph.paradigms.horizontal.regression import Regression
from veilgraph.paradigms.horizontal.settings import LearntSettings
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.score_histograms import binned_auc, binned_precision, histogram
from veilgraph.protocol.scores import Scores, weights_of_counts

_RANKED: Final = MASKS[1:]
"""Splits whose nodes are ranked."""
_MOST_BINS, _FEWEST_BINS = 200, 50
"""Of a histogram with two classes, and with many: a class of C > 2 has one of its own."""
_PAIR: Final = 2


class Classification:
    """Cross-entropy of C classes; scores of summed losses, class counts and score histograms.

    A tally is the sum of the losses of training, validation and test nodes; how many nodes of each class were taken for
    each in these, true class by predicted class; and, of validation and test nodes, for K classes how many nodes of the
    class, and of the others, have a log-odds of it in each of B bins: Tensor[3 + 3·C² + 4·K·B] float64. Of two classes
    K is 1, for the second; of more it is C.

    Args:
        classes: C.
        transition: Tensor[C, C], P(label = j | true label = i); None: the labels are true.
        network: keeps the training nodes of each class as its facts, by which a balanced loss is weighed; None: the
            loss weighs all nodes alike.

    Attributes:
        tally_bits: fractional bits of a tally that is added up.
        tally_size: numbers in a tally.
        sums_before: sizes of the sums before the first round.
    """

    tally_bits: ClassVar[int] = 20

    def __init__(self, classes: int, transition: Tensor | None = None, network: FactNetwork | None = None) -> None:
        self._classes, self._transition, self._network = classes, transition, network
        self._ranked = (1,) if classes == _PAIR else tuple(range(classes))
        self._bins = max(_FEWEST_BINS, _MOST_BINS // max(len(self._ranked), 1))
        self.tally_size = len(MASKS) * (1 + classes**2) + len(_RANKED) * len(self._ranked) * 2 * self._bins
        self.sums_before: tuple[int, ...] = () if network is None else (classes,)

    def gathered(self, graph: PartyGraph, _facts: Tensor) -> Tensor:
        """How many training nodes of each class a holder has: Tensor[C] float64."""
        if graph.labels is None or graph.train_mask is None:
            return torch.zeros(self._classes, dtype=torch.float64)
        return graph.labels[graph.train_mask].bincount(minlength=self._classes).double()

    def weights(self) -> Tensor | None:
        """n/(C·n_c) of every class over all holders' training nodes, Tensor[C] float64; None where all weigh alike."""
        return None if self._network is None else weights_of_counts(self._network.facts)

    @staticmethod
    def examples(graph: PartyGraph) -> int:
        """Number of a holder's training nodes with a label."""
        return 0 if graph.labels is None or graph.train_mask is None else int(graph.train_mask.sum())

    def loss(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """Sum of the training nodes' cross-entropies, of which there are some (SAPGNN eq. 15): Tensor[].

        Args:
            graph: of a holder.
            output: Tensor[N, C], logits of its nodes.
        """
        assert graph.labels is not None  # there are training nodes
        return self._loss(output[graph.train_mask], graph.labels[graph.train_mask])

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self._transition is not None:
            return corrected_losses(logits, labels, self._transition).sum()
        weights = self.weights()
        weights = None if weights is None else weights.to(logits.dtype)
        return functional.cross_entropy(logits, labels, weight=weights, reduction="sum")

    def tally(self, graph: PartyGraph, output: Tensor) -> Tensor:
        """A holder's part of what the scores follow from, nothing without labels. Arguments as for ``loss``."""
        losses = torch.zeros(len(MASKS), dtype=torch.float64)
        counts = torch.zeros(len(MASKS), self._classes**2, dtype=torch.float64)
        for index, name in enumerate(MASKS):
            mask: Tensor | None = getattr(graph, name)
            if graph.labels is None or mask is None or not bool(mask.any()):
                continue
            labels, found = graph.labels[mask], output[mask].double()
            losses[index] = self._loss(found, labels)
            pairs = labels * self._classes + found.argmax(dim=1)
            counts[index] = torch.bincount(pairs, minlength=self._classes**2)
        return torch.cat([losses, counts.reshape(-1), *self._histograms(graph, output)])

    def _histograms(self, graph: PartyGraph, output: Tensor) -> list[Tensor]:
        """Of log-odds, by split and class: of the class's nodes, then of the others, Tensor[B] float64 each."""
        found = []
        for name in _RANKED:
            mask: Tensor | None = getattr(graph, name)
            labels = torch.empty(0, dtype=torch.int64)
            if graph.labels is not None and mask is not None:
                labels, output_here = graph.labels[mask], output[mask].double()
            for each in self._ranked:
                odds = _log_odds(output_here, each) if len(labels) else torch.empty(0, dtype=torch.float64)
                is_of = labels == each
                found += [histogram(odds[is_of], self._bins), histogram(odds[~is_of], self._bins)]
        return found

    def confusion(self, total: Tensor) -> Tensor:
        """The counts of a sum of tallies: Tensor[3, C, C]."""
        start, classes = len(MASKS), self._classes
        return total[start : start + start * classes**2].view(start, classes, classes)

    def scores(self, total: Tensor) -> Scores:
        """Scores of all whose tallies were added up; AUC and average precision are those of the histograms."""
        train, val, test = self.confusion(total)
        counts = total[len(MASKS) * (1 + self._classes**2) :].round()
        val_ranks, test_ranks = counts.view(len(_RANKED), len(self._ranked), 2, self._bins)
        weights = self.weights()
        return Scores(
            train_loss=_mean(total[0], train, weights),
            val_loss=_mean(total[1], val, weights),
            val_auc=_auc(val_ranks, present=True),
            test_auc=_auc(test_ranks, present=False),
            val_ap=_precision(val_ranks),
            test_ap=_precision(test_ranks),
            train_accuracy=_mean(train.diagonal().sum(), train),
            val_accuracy=_mean(val.diagonal().sum(), val),
            test_accuracy=_mean(test.diagonal().sum(), test) if bool(test.any()) else None,
            val_f1=_macro_f1(val),
            test_f1=_macro_f1(test) if bool(test.any()) else None,
        )

    def predictions(self, output: Tensor) -> Predicted:
        """Probabilities of logits Tensor[N, C]."""
        return Predicted(output.detach().softmax(dim=1))


def learnt_task(
    task: LearntSettings,
    network: FactNetwork,
    outputs: int,
    transition: Tensor | None = None,
    *,
    balanced: bool = False,
) -> Classification | Regression:
    """Return what a job learns, and make room in its network for the sums that this needs first.

    Args:
        task: of the job.
        network: of a holder.
        outputs: width of its predict layer.
        transition: as for ``Classification``.
        balanced: whether classes weigh alike.
    """
    found = (
        Regression(task, network)
        if task.is_values
        else Classification(outputs, transition, network if balanced else None)
    )
    network.keep_facts(sum(found.sums_before))
    return found


def _mean(total: Tensor, confusion: Tensor, weights: Tensor | None = None) -> float:
    of_class = confusion.sum(dim=-1) if confusion.dim() > 1 else confusion
    count = float((of_class if weights is None else of_class * weights).sum())
    return float(total) / count if count else math.nan


def _log_odds(logits: Tensor, label: int) -> Tensor:
    """Of a class, Tensor[n]: its logit above the log of the others' summed exponentials."""
    others = torch.cat([logits[:, :label], logits[:, label + 1 :]], dim=1)
    return logits[:, label] - others.logsumexp(dim=1)


def _auc(ranks: Tensor, *, present: bool) -> float | None:
    """Mean AUC of the classes, of Tensor[K, 2, B].

    Args:
        ranks: histograms of a class's nodes and of the others.
        present: of the classes that have nodes alone, as validation nodes may lack one and still choose.
    """
    found = [None if (one := binned_auc(*each)) is None else one[0] for each in ranks]
    known = [one for one in found if one is not None]
    return fmean(known) if known and (present or len(known) == len(found)) else None


def _precision(ranks: Tensor) -> float | None:
    """Average precision of the second of two classes, of Tensor[1, 2, B]; None with more, or where one has no nodes."""
    found = binned_precision(*ranks[0]) if len(ranks) == 1 and bool(ranks[0, 1].any()) else None
    return None if found is None else found[0]


def _macro_f1(confusion: Tensor) -> float:
    """Mean of the F1 of every class that occurs among labels or predictions."""
    both = confusion.sum(dim=0) + confusion.sum(dim=1)
    occurs = both > 0
    return float((2 * confusion.diagonal()[occurs] / both[occurs]).mean()) if bool(occurs.any()) else math.nan
