"""What noisy rows say about classes: linear discriminants, learnt from another classifier's opinion of every node.

A network that is trained on noisy rows learns the noise. Here the label holder's own classifier, which has seen none of
them, gives every node a probability of each class; with these as weights the rows of all N nodes, not of the few with
labels, tell where each class lies, and Bayes' rule adds the two up. The noise's variance is known, and a class mean
is drawn towards the overall mean by as much as noise alone would have moved it (positive-part James-Stein): the more
noise, the less is said, and with nothing but noise, nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SCALES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_SMALLEST_EIGENVALUE = 1e-3  # of the mean one: fewer nodes than columns leave directions without any variance


@torch.no_grad()
def calibrated(logits: Tensor, labels: Tensor, judged: Tensor) -> Tensor:
    """Log probabilities, neither over- nor underconfident on the judged nodes (temperature scaling, Guo et al. 2017).

    Args:
        logits: Tensor[N, C].
        labels: Tensor[N] int64.
        judged: Tensor[N] bool, nodes that were not trained on.

    Returns:
        Tensor[N, C], log softmax of the logits times one of nine factors from 1/4 to 4.
    """
    losses = {scale: float(functional.cross_entropy(scale * logits[judged], labels[judged])) for scale in _SCALES}
    best: float = min(losses, key=losses.__getitem__)
    return (best * logits).log_softmax(dim=1)


@torch.no_grad()
def class_evidence(rows: Tensor, opinion: Tensor, noise_variance: Tensor) -> Tensor:
    """Log p(row | class), up to what is the same for all classes.

    Linear discriminant analysis with the classes' shared covariance (Fisher 1936).

    Args:
        rows: Tensor[N, d], noisy.
        opinion: Tensor[N, C], probabilities of the classes at each node.
        noise_variance: Tensor[d], of the noise on one entry of each column. Columns of one variance are drawn towards
            the overall mean together.

    Returns:
        Tensor[N, C] in the dtype of ``rows``; zeros where the noise explains all class means.
    """
    centred, weights = (rows - rows.mean(dim=0)).double(), opinion.double()
    variances = noise_variance.double().clone()
    groups = [variances == value for value in sorted(set(variances.tolist()))]
    for alike in groups if len(groups) > 1 else ():  # of one size, or the largest would hide the others' eigenvalues
        size = centred[:, alike].square().mean().clamp_min(1e-300)
        centred[:, alike] /= size.sqrt()
        variances[alike] /= size
    sizes = weights.sum(dim=0).clamp_min(1e-12)
    means = (weights.T @ centred) / sizes[:, None]
    spread = weights.square().sum(dim=0) / sizes.square()
    for alike in groups:
        by_noise = variances[alike].sum() * spread
        lengths = means[:, alike].square().sum(dim=1).clamp_min(1e-300)
        means[:, alike] *= (1 - by_noise / lengths).clamp_min(0)[:, None]
    within = (centred.T @ centred) / len(rows) - (means.T * (sizes / len(rows))) @ means
    eigenvalues, axes = torch.linalg.eigh(within)
    smallest = max(float(variances.min()) / 2, _SMALLEST_EIGENVALUE * float(eigenvalues.clamp_min(0).mean()), 1e-30)
    directions: Tensor = means @ (axes / eigenvalues.clamp_min(smallest)) @ axes.T
    evidence: Tensor = centred @ directions.T - (directions * means).sum(dim=1) / 2
    return evidence.to(rows.dtype)
