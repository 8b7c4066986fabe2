"""Membership inference: which nodes a model was trained on, from the posteriors that it gives them.

Each attack returns one score per target, higher = more likely a member, for ``statistics.measure``. Posteriors of
shadow and out-models come from the caller, who trains them on what the adversary has.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from veilgraph.audit.roc import Floats, checked_targets
from veilgraph.core.errors import DataError

SHADOW_THRESHOLD = 0.0
"""The threshold of ``shadow_scores`` that was fixed on the shadow targets."""
MIN_MODELS = 2
"""The fewest models per target, of those with it and of those without: a variance needs two."""

_SMALLEST = 1e-30
"""Below every share that a softmax in float32 tells from nothing in effect; keeps logits finite."""
_SUM_TOLERANCE = 1e-3


def confidence_scores(posteriors: NDArray[Any], labels: NDArray[Any] | None = None) -> Floats:
    """Confidence attack, unsupervised: models are surer of what they were trained on.

    Args:
        posteriors: [T, C], one distribution over the classes per target.
        labels: [T] integers, the classes that the adversary knows the targets to have; None if it knows none.

    Returns:
        [T] float64, logit of the label's posterior, or of the highest; the order is that of the posterior itself,
        but a posterior that rounds to 1 still tells itself from others.

    Raises:
        DataError: ``posteriors`` are not distributions, or ``labels`` do not fit them.

    Source: Duddu et al. 2020 (highest posterior); Yeom et al. 2018 (loss of the label).
    """
    shares = _checked_posteriors("posteriors", posteriors)
    classes = shares.argmax(axis=1) if labels is None else _checked_labels("labels", labels, shares)
    return _logits_of(shares, classes)


def shadow_scores(
    posteriors: NDArray[Any],
    shadow_posteriors: NDArray[Any],
    shadow_members: NDArray[Any],
    *,
    labels: NDArray[Any] | None = None,
    shadow_labels: NDArray[Any] | None = None,
) -> Floats:
    """Shadow-model attack: a classifier learns on a model of the adversary's own how members differ from others.

    A logistic regression on the logits of the sorted posteriors, and of the label's posterior where labels are known;
    members and non-members weigh the same however many there are.

    Args:
        posteriors: [T, C], the targets' from the attacked model.
        shadow_posteriors: [S, C], from a model trained alike on an auxiliary graph.
        shadow_members: [S] bool, which of those it was trained on.
        labels: [T] integers, or None.
        shadow_labels: [S] integers, given if and only if ``labels`` are.

    Returns:
        [T] float64, log-odds of membership; ``SHADOW_THRESHOLD`` is the classifier's own decision.

    Raises:
        DataError: an array breaks a rule, the class counts differ, labels are given on one side only, or there are
            too few shadow members or non-members (``roc.MIN_TARGETS``).

    Source: Shokri et al. 2017; Salem et al. 2019 (sorted posteriors); Duddu et al. 2020 (graphs).
    """
    shares = _checked_posteriors("posteriors", posteriors)
    shadow = _checked_posteriors("shadow_posteriors", shadow_posteriors)
    if shares.shape[1] != shadow.shape[1]:
        raise DataError(
            f"shadow_posteriors: has {shadow.shape[1]} classes and posteriors {shares.shape[1]}; train the shadow "
            "model on the same classes"
        )
    if (labels is None) != (shadow_labels is None):
        raise DataError("labels: they and shadow_labels go together; give both or neither")
    inputs, shadow_inputs = _features("labels", shares, labels), _features("shadow_labels", shadow, shadow_labels)
    _, members = checked_targets(shadow_inputs[:, 0], shadow_members, "shadow_members")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    scores: Floats = classifier.fit(shadow_inputs, members).decision_function(inputs)
    return scores


def lira_scores(
    posteriors: NDArray[Any],
    labels: NDArray[Any],
    out_posteriors: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    own_variance: bool = False,
) -> Floats:
    """Offline likelihood-ratio attack (LiRA): is a target's confidence one that models without it would give?

    A model's confidence in a target is φ = ln(p_y/(1 − p_y)). The out-models' give the target a normal N(μ, σ²), and
    the evidence of membership is 1 − Pr[Z > φ] for Z from it. Returned is z = (φ − μ)/σ, which orders the targets
    alike (the evidence is Φ(z)) and does not round to 1.

    Args:
        posteriors: [T, C], from the attacked model.
        labels: [T] integers.
        out_posteriors: [M, T, C], from M models trained as the attacked one was.
        out: [M, T] bool, True where the model was trained without the target, at least ``MIN_MODELS`` a target;
            None: no model was trained with any.
        own_variance: whether σ is each target's own, which pays from some 64 out-models on; else one σ is
            estimated from all targets' deviations from their own μ.

    Returns:
        [T] float64, z.

    Raises:
        DataError: an array breaks a rule, a target has too few out-models, or a variance is 0.

    Source: Carlini et al. 2022 (the offline attack; one σ where out-models are few).
    """
    shares = _checked_posteriors("posteriors", posteriors)
    classes = _checked_labels("labels", labels, shares)
    outside = np.asarray(out_posteriors)
    if outside.ndim != 3 or outside.shape[1:] != shares.shape:
        raise DataError(f"out_posteriors: {outside.shape} must be [models, {shares.shape[0]}, {shares.shape[1]}]")
    logits = (
        np.stack(
            [_logits_of(_checked_posteriors(f"out_posteriors[{m}]", model), classes) for m, model in enumerate(outside)]
        )
        if len(outside)
        else np.empty((0, len(shares)))
    )
    used = np.ones(logits.shape, dtype=np.bool_) if out is None else _checked_out(out, logits.shape)
    mean, deviation = normals(logits, used, "without", own_variance=own_variance)
    return (_logits_of(shares, classes) - mean) / deviation


def normals(
    logits: Floats, used: NDArray[np.bool_], side: Literal["with", "without"], *, own_variance: bool
) -> tuple[Floats, Floats]:
    """μ and σ, [T] each, of what models say of targets.

    Args:
        logits: [M, T].
        used: [M, T] bool, which of them count: of the models that were trained with a target, or of those without.
        side: which of both, for messages.
        own_variance: whether each target has one of its own.

    Raises:
        DataError: a target has too few models, or a variance is 0.
    """
    counts = used.sum(axis=0)
    if counts.min() < MIN_MODELS:
        target = int(counts.argmin())
        raise DataError(
            f"members: target {target} has {counts[target]} models that were trained {side} it, and LiRA needs at "
            f"least {MIN_MODELS}: train more"
        )
    mean = np.where(used, logits, 0).sum(axis=0) / counts
    squares = (np.where(used, logits - mean, 0) ** 2).sum(axis=0)
    shared = np.full(len(counts), squares.sum() / (counts - 1).sum())
    variance = squares / (counts - 1) if own_variance else shared
    if not (variance > 0).all():
        raise DataError(
            f"model_posteriors: target {int(variance.argmin())} has the same confidence in every model {side} it; "
            "train them with different seeds, and take own_variance=False where there are few"
        )
    return mean, np.sqrt(variance)


def _features(name: str, shares: Floats, labels: NDArray[Any] | None) -> Floats:
    """Inputs of the shadow attack's classifier, [n, C] or [n, C + 1]: no class has a place of its own."""
    ordered = np.sort(shares, axis=1)[:, ::-1]
    columns = [_logits_of(ordered, np.full(len(ordered), place)) for place in range(ordered.shape[1])]
    if labels is not None:
        columns.append(_logits_of(shares, _checked_labels(name, labels, shares)))
    return np.stack(columns, axis=1)


def _logits_of(shares: Floats, classes: NDArray[np.intp]) -> Floats:
    """ln(p/(1 − p)), [n], of each row's class; 1 − p is summed from the others, where it does not cancel to 0."""
    rows = np.arange(len(shares))
    others = shares.copy()
    others[rows, classes] = 0
    right, wrong = shares[rows, classes], others.sum(axis=1)
    logits: Floats = np.log(np.maximum(right, _SMALLEST)) - np.log(np.maximum(wrong, _SMALLEST))
    return logits


def _checked_posteriors(name: str, posteriors: NDArray[Any]) -> Floats:
    shares = np.asarray(posteriors, dtype=np.float64)
    if shares.ndim != 2 or shares.shape[1] < 2 or not len(shares):
        raise DataError(f"{name}: {shares.shape} must be [targets, classes] with at least 1 target and 2 classes")
    wrong = ~((shares >= 0).all(axis=1) & (np.abs(shares.sum(axis=1) - 1) <= _SUM_TOLERANCE))
    if wrong.any():
        raise DataError(f"{name}: [{int(wrong.argmax())}] is not a distribution over the classes; give softmax outputs")
    return shares


def _checked_labels(name: str, labels: NDArray[Any], shares: Floats) -> NDArray[np.intp]:
    classes = np.asarray(labels)
    if classes.shape != (len(shares),) or not np.issubdtype(classes.dtype, np.integer):
        raise DataError(f"{name}: {classes.shape} of {classes.dtype} must be [{len(shares)}] integers: one per target")
    if classes.min() < 0 or classes.max() >= shares.shape[1]:
        raise DataError(f"{name}: must lie in 0..{shares.shape[1] - 1}; leave out targets whose class is not known")
    return classes.astype(np.intp)


def _checked_out(out: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    used = np.asarray(out)
    if used.shape != shape or used.dtype != np.bool_:
        raise DataError(f"out: {used.shape} of {used.dtype} must be {list(shape)} bool: models by targets")
    return used
