"""Membership: which nodes the model was trained on, from gradients, or from the posteriors that it gives them.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from veilgraph.audit.attack import AuditContext, Nodes, attack, scored
from veilgraph.audit.finding import Outcome
from veilgraph.audit.labels import STEPS, membership_scores
from veilgraph.audit.statistics import checked_targets
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.view import Floats, mean

SHADOW_THRESHOLD = 0.0
"""The threshold of ``shadow_scores`` that was fixed on the shadow targets."""
MIN_MODELS = 2
"""The fewest models per target, of those with it and of those without: a variance needs two."""

_MOST: Final = 2000
_SMALLEST: Final = 1e-30
"""Below every share that a softmax in float32 tells from nothing in effect; keeps logits finite."""


@attack("membership", "gradients", blind=True)
def from_gradients(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Rows of a gradient are larger where the loss is: at training nodes."""
    scores = membership_scores(mean(evidence.steps[:STEPS])[None])
    return Outcome(scores, case.members(target), note="Members: training nodes; all others are not.")


@attack("membership", "posteriors", "model")
def from_confidence(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Models are surer of what they were trained on (Duddu et al. 2020)."""
    return _compared(evidence, case, target, lambda rows, nodes: confidence_scores(rows[nodes]))


@attack("membership", "posteriors", "model")
def from_shadows(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """A classifier learns from a model of the adversary's own how members differ (Shokri et al. 2017)."""
    shadow, free = case.shadow_models(target)[0], case.free_nodes(target)
    members, posteriors = shadow[0][free], shadow[1][free]
    return _compared(
        evidence,
        case,
        target,
        lambda rows, nodes: shadow_scores(rows[nodes], posteriors, members),
        threshold=SHADOW_THRESHOLD,
        note=" The shadow model: a plaintext network, of the job's model settings, on other nodes of the graph.",
    )


@attack("membership", "posteriors", "model")
def from_likelihoods(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Is the confidence one that models without the node would have (offline LiRA, Carlini et al. 2022)?"""
    labels, outs = case.labels(target)[0], np.stack([posteriors for _, posteriors in case.shadow_models(target)])
    return _compared(
        evidence,
        case,
        target,
        lambda rows, nodes: lira_scores(rows[nodes], labels[nodes], outs[:, nodes]),
        note=f" {len(outs)} plaintext networks, trained without these nodes; the adversary knows their classes.",
    )


@attack("membership", "posteriors", "model")
def from_both_likelihoods(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Is the confidence rather one of models with the node, or of models without it (online LiRA)?"""
    labels, training, test, _ = case.labels(target)
    random = np.random.default_rng(case.seed)
    pools = [nodes[labels[nodes] >= 0] for nodes in (training, test)]
    size = min(_MOST, *map(len, pools))
    targets = np.concatenate([random.choice(pool, size=size, replace=False) for pool in pools])
    members, models = case.paired_models(target, targets)

    def scores(rows: Floats) -> Floats:
        return online_lira_scores(rows[targets], labels[targets], models, members)

    return Outcome(
        scores(evidence.matrix),
        np.arange(2 * size) < size,
        pooled=scored(scores, case.pooled_posteriors(target)),
        threshold=0.0,
        note=f"{size} training nodes against as many test nodes. {len(models)} plaintext networks, half of them "
        "trained with each of these nodes; the adversary knows their classes and that half of them are members. "
        "Pooled: the same on a network trained on everybody's plaintext.",
    )


def _compared(
    evidence: Evidence,
    case: AuditContext,
    target: PartyId,
    score: Callable[[Floats, Nodes], Floats],
    *,
    threshold: float | None = None,
    note: str = "",
) -> Outcome:
    labels, training, test, _ = case.labels(target)
    random = np.random.default_rng(case.seed)
    chosen = []
    for nodes in (training, test):
        known = nodes[labels[nodes] >= 0]
        chosen.append(known if len(known) <= _MOST else random.choice(known, size=_MOST, replace=False))
    targets = np.concatenate(chosen)
    return Outcome(
        score(evidence.matrix, targets),
        np.arange(len(targets)) < len(chosen[0]),
        pooled=scored(lambda rows: score(rows, targets), case.pooled_posteriors(target)),
        threshold=threshold,
        note=f"Training against test nodes.{note} Pooled: the same on a network trained on everybody's plaintext.",
    )


def confidence_scores(posteriors: NDArray[Any], labels: NDArray[Any] | None = None) -> Floats:
    """Confidence attack, unsupervised: models are surer of what they were trained on.

    Args:
        posteriors: [T, C], one distribution over the classes per target.
        labels: [T] integers, the classes that the adversary knows the targets to have; None if it knows none.

    Returns:
        [T] float64, logit of the label's posterior, or of the highest; the order is that of the posterior itself, but a
        posterior that rounds to 1 still tells itself from others.

    Source: Duddu et al. 2020 (highest posterior); Yeom et al. 2018 (loss of the label).
    """
    shares = _checked_posteriors("posteriors", posteriors)
    return _logits_of(shares, shares.argmax(axis=1) if labels is None else _checked_labels("labels", labels, shares))


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
    return np.asarray(classifier.fit(shadow_inputs, members).decision_function(inputs))


def lira_scores(
    posteriors: NDArray[Any],
    labels: NDArray[Any],
    out_posteriors: NDArray[Any],
    out: NDArray[Any] | None = None,
) -> Floats:
    """Offline likelihood-ratio attack (LiRA): is a target's confidence one that models without it would give?

    A model's confidence in a target is φ = ln(p_y/(1 − p_y)). The out-models' give the target a normal N(μ, σ²), and
    the evidence of membership is 1 − Pr[Z > φ] for Z from it. Returned is z = (φ − μ)/σ, which orders the targets alike
    (the evidence is Φ(z)) and does not round to 1.

    Args:
        posteriors: [T, C], from the attacked model.
        labels: [T] integers.
        out_posteriors: [M, T, C], from M models trained as the attacked one was.
        out: [M, T] bool, True where the model was trained without the target, at least ``MIN_MODELS`` a target; None:
            no model was trained with any.

    Source: Carlini et al. 2022 (the offline attack; one σ where out-models are few).
    """
    own = confidence_scores(posteriors, labels)
    logits = _model_logits("out_posteriors", out_posteriors, posteriors, labels)
    used = np.ones(logits.shape, dtype=np.bool_) if out is None else _checked_flags("out", out, logits)
    average, deviation = _normals(logits, used, "without")
    return (own - average) / deviation


def online_lira_scores(
    posteriors: NDArray[Any],
    labels: NDArray[Any],
    model_posteriors: NDArray[Any],
    members: NDArray[Any],
) -> Floats:
    """Log-likelihood ratio of a target's confidence under models with it, and under models without it.

    An adversary who has the target itself can train on it as well, and so knows how much its own confidence rises with
    it: little for an easy target, much for one that is hard. Models with the target give φ a normal N(μ_in, σ²_in),
    models without it N(μ_out, σ²_out), and the score is ln N(φ; in) − ln N(φ; out): 0 where both are as likely.

    Args:
        posteriors: [T, C], from the attacked model.
        labels: [T] integers, the classes that the targets are known to have.
        model_posteriors: [M, T, C], from M models trained as the attacked one was.
        members: [M, T] bool, which targets each was trained on; two or more with and without every target.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", section V, algorithm 1; pooled
        variances: section VI.
    """
    own = confidence_scores(posteriors, labels)
    logits = _model_logits("model_posteriors", model_posteriors, posteriors, labels)
    inside = _checked_flags("members", members, logits)

    def log_density(used: NDArray[np.bool_], side: Literal["with", "without"]) -> Floats:
        """Less a constant."""
        average, deviation = _normals(logits, used, side)
        return np.asarray(-((own - average) ** 2) / (2 * deviation**2) - np.log(deviation))

    return log_density(inside, "with") - log_density(~inside, "without")


def _model_logits(name: str, models: NDArray[Any], posteriors: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """What each model says of each target, φ [M, T]."""
    given, (targets, classes) = np.asarray(models), np.shape(posteriors)
    if given.ndim != 3 or given.shape[1:] != (targets, classes):
        raise DataError(f"{name}: {given.shape} must be [models, {targets}, {classes}]")
    shares = [_checked_posteriors(f"{name}[{number}]", model) for number, model in enumerate(given)]
    found = [_logits_of(each, _checked_labels("labels", labels, each)) for each in shares]
    return np.stack(found) if found else np.empty((0, targets))


def _normals(logits: Floats, used: NDArray[np.bool_], side: Literal["with", "without"]) -> tuple[Floats, float]:
    """μ [T] and σ of what models say of targets; ``used`` [M, T]: those on one side of training with it.

    One σ is estimated from all targets' deviations from their own μ: of each alone it would take some 64 models.
    """
    counts = used.sum(axis=0)
    if counts.min() < MIN_MODELS:
        target = int(counts.argmin())
        raise DataError(
            f"members: target {target} has {counts[target]} models that were trained {side} it, and LiRA needs at "
            f"least {MIN_MODELS}: train more"
        )
    average = np.where(used, logits, 0).sum(axis=0) / counts
    variance = float((np.where(used, logits - average, 0) ** 2).sum(axis=0).sum() / (counts - 1).sum())
    if not variance > 0:
        raise DataError(
            f"model_posteriors: every target has the same confidence in every model {side} it; train them with "
            "different seeds"
        )
    return average, variance**0.5


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
    return np.asarray(np.log(np.maximum(right, _SMALLEST)) - np.log(np.maximum(wrong, _SMALLEST)))


def _checked_posteriors(name: str, posteriors: NDArray[Any]) -> Floats:
    shares = np.asarray(posteriors, dtype=np.float64)
    if shares.ndim != 2 or shares.shape[1] < 2 or not len(shares):
        raise DataError(f"{name}: {shares.shape} must be [targets, classes] with at least 1 target and 2 classes")
    wrong = ~((shares >= 0).all(axis=1) & (np.abs(shares.sum(axis=1) - 1) <= 1e-3))
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


def _checked_flags(name: str, flags: NDArray[Any], logits: Floats) -> NDArray[np.bool_]:
    used = np.asarray(flags)
    if used.shape != logits.shape or used.dtype != np.bool_:
        raise DataError(f"{name}: {used.shape} of {used.dtype} must be {list(logits.shape)} bool: models by targets")
    return used
