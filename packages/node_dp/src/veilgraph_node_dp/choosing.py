"""What a learner takes nodes for, and which of several networks it keeps, by its validation nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.judge import Objective

_SCALES: Final = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_LEAST: Final = 2  # of differences that have a deviation


@torch.no_grad()
def calibrate(logits: Tensor, labels: Tensor, judged: Tensor) -> Tensor:
    """Return log probabilities of logits [N, C], scaled by the best of nine factors from 1/4 to 4 on ``judged`` nodes.

    ``judged``: Tensor[N] bool, not trained on. This is temperature scaling (Guo et al. 2017).
    """
    losses = {scale: float(functional.cross_entropy(scale * logits[judged], labels[judged])) for scale in _SCALES}
    best: float = min(losses, key=losses.__getitem__)
    return (best * logits).log_softmax(dim=1)


@torch.no_grad()
def opinion_of(objective: Objective, graph: PartyGraph, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Calibrate logits [N, C] on validation nodes: return log probabilities, and probabilities with training labels.

    In the latter, training nodes have their labels, one-hot. ``graph`` has the objective's labels and masks.
    """
    labels, train, val = graph.labels, graph.train_mask, graph.val_mask
    assert labels is not None
    assert train is not None
    assert val is not None
    log_probabilities = calibrate(logits, labels, val)
    opinion = log_probabilities.exp()
    opinion[train] = functional.one_hot(labels[train], objective.classes).to(opinion.dtype)
    return log_probabilities, opinion


def one_standard_error_choice(objective: Objective, graph: PartyGraph, candidates: Sequence[Tensor]) -> int:
    """Return the index of the first of ``candidates`` within one standard error of the best on validation nodes.

    ``candidates`` are logits, Tensor[N, C] each, the simplest first. The standard error is of the difference of two, by
    paired bootstrap: Breiman, Friedman, Olshen & Stone 1984, section 3.4.3; Efron & Tibshirani 1993.
    """
    nodes, labels = objective.val_nodes, graph.labels
    if labels is None or not len(nodes):
        return 0
    scores = [objective.selecting(logits[nodes], labels[nodes]) for logits in candidates]
    best = max(range(len(candidates)), key=scores.__getitem__)
    generator = torch.Generator().manual_seed(0)
    draws = [nodes[torch.randint(len(nodes), (len(nodes),), generator=generator)] for _ in range(50)]
    of_best = [objective.selecting(candidates[best][drawn], labels[drawn]) for drawn in draws]
    for place in range(best):
        lead = [
            ahead - objective.selecting(candidates[place][drawn], labels[drawn])
            for ahead, drawn in zip(of_best, draws, strict=True)
        ]
        told = [each for each in lead if math.isfinite(each)]
        if len(told) < _LEAST or scores[best] - scores[place] <= stdev(told):
            return place
    return best
