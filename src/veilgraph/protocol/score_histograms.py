"""How well scores rank positives above others, from histograms of both, and how far that can be off."""

from __future__ import annotations

import torch
from torch import Tensor


def bins_of(scores: Tensor, bins: int) -> Tensor:
    """The bin of each score s, by s/(1 + |s|), which keeps the order: Tensor[M] int64 in 0..bins−1, finest near 0."""
    s = scores.double()
    share = (s / (1 + s.abs()) + 1) / 2
    return (share * bins).long().clamp(0, bins - 1)


def histogram(scores: Tensor, bins: int) -> Tensor:
    """How many scores are in each bin, Tensor[bins] float64."""
    return torch.bincount(bins_of(scores, bins), minlength=bins).double()


def binned_auc(found: Tensor, others: Tensor) -> tuple[float, float] | None:
    """Area under the ROC curve, two of one bin counting half, and the most that it can be off.

    Of P·Q comparisons of a positive with another, only those within a bin are not known.

    Args:
        found: Tensor[bins], histogram of the positives: of nodes of a class, or pairs with an edge.
        others: Tensor[bins], of all others.

    Returns:
        None where there are none of one sort.
    """
    comparisons = float(found.sum() * others.sum())
    if not comparisons:
        return None
    below = others.cumsum(0) - others
    tied = float((found * others).sum()) / 2
    return (float((found * below).sum()) + tied) / comparisons, tied / comparisons


def binned_precision(found: Tensor, others: Tensor) -> tuple[float, float] | None:
    """Average precision, in the middle of the best and the worst order within the bins, and how far these are from it.

    Args:
        found: as for ``binned_auc``, and ``others`` likewise.
        others: see there.

    Returns:
        None where there are no positives.
    """
    positives = found.flip(0).round().long()
    total = int(positives.sum())
    if not total:
        return None
    negatives = others.flip(0)
    place = torch.repeat_interleave(torch.arange(len(positives)), positives)
    rank = torch.arange(1, total + 1).double()
    before = (negatives.cumsum(0) - negatives)[place]
    best, worst = (rank / (rank + above) for above in (before, before + negatives[place]))
    high, low = float(best.mean()), float(worst.mean())
    return (high + low) / 2, (high - low) / 2
