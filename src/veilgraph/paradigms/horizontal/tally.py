"""Scores over the labels of several holders: each adds up its own, and only the sums are opened among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.graph.party import PartyGraph
from veilgraph.nn.correction import corrected_losses
from veilgraph.protocol.scores import Scores

SPLITS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class Tally:
    """What adds up: of every split the sum of the losses, and how many nodes of each class were taken for each.

    Attributes:
        losses: Tensor[3] float64, of training, validation and test nodes.
        confusion: Tensor[3, C, C] float64, true class by predicted class.
    """

    losses: Tensor
    confusion: Tensor

    def flat(self) -> Tensor:
        """All numbers: Tensor[3 + 3·C²]."""
        return torch.cat([self.losses, self.confusion.reshape(-1)])

    @classmethod
    def of_flat(cls, numbers: Tensor, classes: int) -> Tally:
        """What ``flat`` flattened."""
        return cls(numbers[:3], numbers[3:].view(3, classes, classes))

    def scores(self) -> Scores:
        """Of all that was added up. AUC is None: it does not follow from sums."""
        train, val, test = self.confusion
        return Scores(
            train_loss=_mean(self.losses[0], train),
            val_loss=_mean(self.losses[1], val),
            train_accuracy=_accuracy(train),
            val_accuracy=_accuracy(val),
            test_accuracy=_accuracy(test) if bool(test.any()) else None,
            val_f1=_macro_f1(val),
            test_f1=_macro_f1(test) if bool(test.any()) else None,
        )


def total_loss(logits: Tensor, labels: Tensor, transition: Tensor | None) -> Tensor:
    """Sum of the nodes' cross-entropies, corrected where labels were perturbed.

    Args:
        logits: Tensor[n, C].
        labels: Tensor[n] int64.
        transition: Tensor[C, C], P(label = j | true label = i); None: the labels are true.
    """
    if transition is not None:
        return corrected_losses(logits, labels, transition).sum()
    return functional.cross_entropy(logits, labels, reduction="sum")


def tally(graph: PartyGraph, logits: Tensor, classes: int, transition: Tensor | None = None) -> Tally:
    """One holder's own part.

    Args:
        graph: the holder's; without labels nothing is added.
        logits: Tensor[N_p, C] of its nodes.
        classes: C.
        transition: as for ``total_loss``.
    """
    losses = torch.zeros(3, dtype=torch.float64)
    confusion = torch.zeros(3, classes, classes, dtype=torch.float64)
    for index, name in enumerate(SPLITS):
        mask: Tensor | None = getattr(graph, name)
        if graph.labels is None or mask is None or not bool(mask.any()):
            continue
        labels, found = graph.labels[mask], logits[mask].double()
        losses[index] = total_loss(found, labels, transition)
        pairs = labels * classes + found.argmax(dim=1)
        confusion[index] = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    return Tally(losses, confusion)


def _mean(loss: Tensor, confusion: Tensor) -> float:
    count = float(confusion.sum())
    return float(loss) / count if count else math.nan


def _accuracy(confusion: Tensor) -> float:
    count = float(confusion.sum())
    return float(confusion.diagonal().sum()) / count if count else math.nan


def _macro_f1(confusion: Tensor) -> float:
    """Mean of the F1 of every class that occurs among labels or predictions."""
    both = confusion.sum(dim=0) + confusion.sum(dim=1)
    occurs = both > 0
    return float((2 * confusion.diagonal()[occurs] / both[occurs]).mean()) if bool(occurs.any()) else math.nan
