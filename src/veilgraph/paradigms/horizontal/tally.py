"""Scores over the answers of several holders: each adds up its own, and only the sums are opened among them."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.correction import corrected_losses
from veilgraph.paradigms.horizontal.network import LayeredHolder
from veilgraph.paradigms.horizontal.regression import Regression
from veilgraph.paradigms.horizontal.settings import LearntSettings
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.scores import Scores


class Classification:
    """Cross-entropy of C classes; scores of summed losses and class counts.

    A tally is the sum of the losses of training, validation and test nodes, and how many nodes of each class were taken
    for each in these: Tensor[3 + 3·C²] float64, true class by predicted class.

    Args:
        classes: C.
        transition: Tensor[C, C], P(label = j | true label = i); None: the labels are true.

    Attributes:
        tally_bits: fractional bits of a tally that is added up.
        tally_size: numbers in a tally.
    """

    tally_bits: ClassVar[int] = 20

    def __init__(self, classes: int, transition: Tensor | None = None) -> None:
        self._classes, self._transition = classes, transition
        self.tally_size = len(MASKS) * (1 + classes**2)

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
        return functional.cross_entropy(logits, labels, reduction="sum")

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
        return torch.cat([losses, counts.reshape(-1)])

    def confusion(self, total: Tensor) -> Tensor:
        """The counts of a sum of tallies: Tensor[3, C, C]."""
        return total[len(MASKS) :].view(len(MASKS), self._classes, self._classes)

    def scores(self, total: Tensor) -> Scores:
        """Scores of all whose tallies were added up. AUC is None: it does not follow from sums."""
        train, val, test = self.confusion(total)
        return Scores(
            train_loss=_mean(total[0], train),
            val_loss=_mean(total[1], val),
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
    task: LearntSettings, network: LayeredHolder, outputs: int, transition: Tensor | None = None
) -> Classification | Regression:
    """Return what a job learns, and make room in its network for the sums that this needs first.

    Args:
        task: of the job.
        network: of a holder.
        outputs: width of its predict layer.
        transition: as for ``Classification``.
    """
    network.keep_facts(sum(task.sums_before))
    return Regression(task, network) if task.is_values else Classification(outputs, transition)


def _mean(total: Tensor, confusion: Tensor) -> float:
    count = float(confusion.sum())
    return float(total) / count if count else math.nan


def _macro_f1(confusion: Tensor) -> float:
    """Mean of the F1 of every class that occurs among labels or predictions."""
    both = confusion.sum(dim=0) + confusion.sum(dim=1)
    occurs = both > 0
    return float((2 * confusion.diagonal()[occurs] / both[occurs]).mean()) if bool(occurs.any()) else math.nan
