"""Online likelihood-ratio attack on membership: models trained with a target against models trained without it.

The offline attack (``membership.lira_scores``) asks only whether a confidence is one that models without the target
would give. An adversary who has the target itself can train on it as well, and so knows how much its own confidence
rises with it: little for an easy target, much for one that is hard.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilgraph.audit.attacks.membership import confidence_scores, normals
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError


def online_lira_scores(
    posteriors: NDArray[Any],
    labels: NDArray[Any],
    model_posteriors: NDArray[Any],
    members: NDArray[Any],
    *,
    own_variance: bool = False,
) -> Floats:
    """Log-likelihood ratio of a target's confidence under models with it, and under models without it.

    A model's confidence in a target is φ = ln(p_y/(1 − p_y)). Models with the target give it a normal
    N(μ_in, σ²_in), models without it N(μ_out, σ²_out), and the score is ln N(φ; in) − ln N(φ; out).

    Args:
        posteriors: [T, C], from the attacked model.
        labels: [T] integers, the classes that the targets are known to have.
        model_posteriors: [M, T, C], from M models trained as the attacked one was.
        members: [M, T] bool, which targets each was trained on; two or more with and without every target.
        own_variance: whether each target has variances of its own, which pays from some 64 models on; else one is
            estimated for all targets from models with them, and one from models without them.

    Returns:
        [T] float64, higher = more likely a member; 0 is the point where both are as likely.

    Raises:
        DataError: an array breaks a rule, a target has too few models, or a variance is 0.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", section V, algorithm 1; pooled
        variances: section VI.
    """
    own = confidence_scores(posteriors, labels)
    models, inside = np.asarray(model_posteriors), np.asarray(members)
    if models.ndim != 3 or models.shape[1:] != np.shape(posteriors):
        raise DataError(
            f"model_posteriors: {models.shape} must be [models, {', '.join(map(str, np.shape(posteriors)))}]"
        )
    if inside.shape != models.shape[:2] or inside.dtype != np.bool_:
        raise DataError(f"members: {inside.shape} of {inside.dtype} must be {list(models.shape[:2])} bool")
    logits = np.stack([confidence_scores(model, labels) for model in models]) if len(models) else np.empty(inside.shape)
    return _log_normal(own, *normals(logits, inside, "with", own_variance=own_variance)) - _log_normal(
        own, *normals(logits, ~inside, "without", own_variance=own_variance)
    )


def _log_normal(own: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Logarithms of the densities, less a constant."""
    return np.asarray(-((own - mean) ** 2) / (2 * deviation**2) - np.log(deviation))
