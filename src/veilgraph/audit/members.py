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

from veilgraph.audit.attack import Nodes, Scene, attack, scored
from veilgraph.audit.finding import Outcome
from veilgraph.audit.labels import STEPS, membership_scores
from veilgraph.audit.pairs import check_rows
from veilgraph.audit.statistics import checked_targets
from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats, mean

SHADOW_THRESHOLD = 0.0
"""The threshold of ``shadow_scores`` that was fixed on the shadow targets."""
MIN_MODELS = 2
"""The fewest models per target, of those with it and of those without: a variance needs two."""

_MOST: Final = 2000
_SMALLEST: Final = 1e-30
"""Below every share that a softmax in float32 tells from nothing in effect; keeps logits finite."""


@attack("membership", "gradients", blind=True)
def from_gradients(at: Scene) -> Outcome:
    """Score nodes by the length of their gradients, which are larger where the loss is: at training nodes."""
    scores = membership_scores(mean(at.evidence.steps[:STEPS])[None])
    return Outcome(scores, at.case.members(at.target), note="Members: training nodes; all others are not.")


@attack("membership", "symbols")
def from_symbols(at: Scene) -> Outcome:
    """Take for members the nodes that have a symbol or, where all have one, those without the most frequent one."""
    nodes, told = at.case.symbols(at.target, at.evidence.symbols)
    if not len(nodes):
        raise DataError(f"no node of {at.target} is at an edge that both have")
    is_sure = bool((told < 0).any())
    scores = told >= 0 if is_sure else told != np.bincount(told).argmax()
    note = "Nodes that are not trained on have no symbol." if is_sure else "Every node has a symbol."
    return Outcome(scores.astype(np.float64), at.case.members(at.target)[nodes], note=note)


@attack("membership", "posteriors", "model")
def from_confidence(at: Scene) -> Outcome:
    """Score nodes by confidence: models are surer of what they were trained on (Duddu et al. 2020)."""
    return _training_against_test(at, lambda rows, nodes: confidence_scores(rows[nodes]))


@attack("membership", "posteriors", "model")
def from_shadows(at: Scene) -> Outcome:
    """Train a classifier of members on posteriors of a model of the adversary's own (Shokri et al. 2017)."""
    free = at.case.free_nodes(at.target)
    members, posteriors = (each[0, free] for each in at.case.shadow_models(at.target))
    return _training_against_test(
        at,
        lambda rows, nodes: shadow_scores(rows[nodes], posteriors, members),
        threshold=SHADOW_THRESHOLD,
        note=" The shadow model: a plaintext network, of the job's model settings, on other nodes of the graph.",
    )


@attack("membership", "posteriors", "model")
def from_likelihoods(at: Scene) -> Outcome:
    """Compare the confidence with that of models without the node (offline LiRA, Carlini et al. 2022)."""
    labels = at.case.labels(at.target)[0]
    outs = at.case.shadow_models(at.target)[1]
    return _training_against_test(
        at,
        lambda rows, nodes: lira_scores(rows[nodes], labels[nodes], outs[:, nodes]),
        note=f" {len(outs)} plaintext networks, trained without these nodes; the adversary knows their classes.",
    )


@attack("membership", "posteriors", "model")
def from_both_likelihoods(at: Scene) -> Outcome:
    """Compare the likelihoods of the confidence under models with the node and without it (online LiRA)."""
    case = at.case
    labels, training, test, _ = case.labels(at.target)
    random = np.random.default_rng(case.seed)
    pools = [nodes[labels[nodes] >= 0] for nodes in (training, test)]
    size = min(_MOST, *map(len, pools))
    targets = np.concatenate([random.choice(pool, size=size, replace=False) for pool in pools])
    members, models = case.paired_models(at.target, targets)

    def scores(rows: Floats) -> Floats:
        return online_lira_scores(rows[targets], labels[targets], models, members)

    return Outcome(
        scores(at.evidence.matrix),
        np.arange(2 * size) < size,
        pooled=scored(scores, case.pooled_posteriors(at.target)),
        threshold=0.0,
        note=f"{size} training nodes against as many test nodes. {len(models)} plaintext networks, half of them "
        "trained with each of these nodes; the adversary knows their classes and that half of them are members. "
        "Pooled: the same on a network trained on everybody's plaintext.",
    )


def _training_against_test(
    at: Scene, score: Callable[[Floats, Nodes], Floats], *, threshold: float | None = None, note: str = ""
) -> Outcome:
    labels, training, test, _ = at.case.labels(at.target)
    random = np.random.default_rng(at.case.seed)
    chosen = []
    for nodes in (training, test):
        known = nodes[labels[nodes] >= 0]
        chosen.append(known if len(known) <= _MOST else random.choice(known, size=_MOST, replace=False))
    targets = np.concatenate(chosen)
    return Outcome(
        score(at.evidence.matrix, targets),
        np.arange(len(targets)) < len(chosen[0]),
        pooled=scored(lambda rows: score(rows, targets), at.case.pooled_posteriors(at.target)),
        threshold=threshold,
        note=f"Training against test nodes.{note} Pooled: the same on a network trained on everybody's plaintext.",
    )


def confidence_scores(posteriors: NDArray[Any], labels: NDArray[Any] | None = None) -> Floats:
    """Confidence attack, unsupervised: models are surer of what they were trained on.

    Of posteriors [T, C] the logit of the known label's, or of the highest: [T]. A posterior that rounds to 1 still
    tells itself from others. Source: Duddu et al. 2020 (highest posterior); Yeom et al. 2018 (loss of the label).
    """
    shares = _checked_posteriors("posteriors", posteriors)
    return _logits_of(shares, shares.argmax(axis=1) if labels is None else labels)


def shadow_scores(posteriors: NDArray[Any], shadow_posteriors: NDArray[Any], shadow_members: NDArray[Any]) -> Floats:
    """Shadow-model attack: a classifier learns on a model of the adversary's own how members differ from others.

    A logistic regression on the logits of sorted posteriors, [S, C] of a model trained alike on an auxiliary graph, of
    which ``shadow_members`` [S] bool; both kinds weigh the same. Gives log-odds of membership, [T];
    ``SHADOW_THRESHOLD`` is the classifier's own decision. Source: Shokri et al. 2017; Salem et al. 2019 (sorted
    posteriors); Duddu et al. 2020 (graphs).
    """
    inputs = _sorted_logits(_checked_posteriors("posteriors", posteriors))
    shadow_inputs = _sorted_logits(_checked_posteriors("shadow_posteriors", shadow_posteriors))
    _, members = checked_targets(shadow_inputs[:, 0], shadow_members, "shadow_members")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
    return np.asarray(classifier.fit(shadow_inputs, members).decision_function(inputs))


def lira_scores(
    posteriors: NDArray[Any], labels: NDArray[Any], out_posteriors: NDArray[Any], out: NDArray[Any] | None = None
) -> Floats:
    """Offline likelihood-ratio attack (LiRA): is a target's confidence one that models without it would give?

    A model's confidence in a target, of posteriors [T, C] and labels [T], is φ = ln(p_y/(1 − p_y)). The out-models',
    [M, T, C], give the target a normal N(μ, σ²), and the evidence of membership is 1 − Pr[Z > φ] for Z from it.
    Returned is z = (φ − μ)/σ, which orders the targets alike and does not round to 1. ``out`` [M, T] bool: trained
    without the target, at least ``MIN_MODELS`` a target; None: with none.

    Source: Carlini et al. 2022 (the offline attack; one σ where out-models are few).
    """
    own = confidence_scores(posteriors, labels)
    logits = _model_logits(out_posteriors, labels)
    used = np.ones(logits.shape, dtype=np.bool_) if out is None else out
    average, deviation = _fit_normals(logits, used, "without")
    return (own - average) / deviation


def online_lira_scores(
    posteriors: NDArray[Any], labels: NDArray[Any], model_posteriors: NDArray[Any], members: NDArray[Any]
) -> Floats:
    """Log-likelihood ratio of a target's confidence under models with it, and under models without it.

    An adversary who has the target itself can train on it as well, and so knows how much its own confidence rises with
    it: little for an easy target, much for one that is hard. Models with the target give φ a normal N(μ_in, σ²_in),
    models without it N(μ_out, σ²_out), and the score is ln N(φ; in) − ln N(φ; out): 0 where both are as likely.
    ``members`` [M, T]: which targets each model of posteriors [M, T, C] was trained on; two or more with and without
    every target.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", section V, algorithm 1; pooled
    variances: section VI.
    """
    own = confidence_scores(posteriors, labels)
    logits = _model_logits(model_posteriors, labels)

    def log_density(used: NDArray[np.bool_], side: Literal["with", "without"]) -> Floats:
        """Log density [T] of ``own`` under the models on one side, up to a constant."""
        average, deviation = _fit_normals(logits, used, side)
        return np.asarray(-((own - average) ** 2) / (2 * deviation**2) - np.log(deviation))

    return log_density(members, "with") - log_density(~members, "without")


def _model_logits(models: NDArray[Any], labels: NDArray[Any]) -> Floats:
    """Each model's logit φ [M, T] of each target's label, from posteriors [M, T, C]."""
    return np.stack([_logits_of(_checked_posteriors("posteriors of a model", model), labels) for model in models])


def _fit_normals(logits: Floats, used: NDArray[np.bool_], side: Literal["with", "without"]) -> tuple[Floats, float]:
    """Mean [T] and σ of each target's logits over the models that ``used`` [M, T] marks: those with it, or without.

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


def _sorted_logits(shares: Floats) -> Floats:
    """Logits of each row's shares in falling order, [n, C], the shadow classifier's inputs: no class has a column."""
    ordered = np.sort(shares, axis=1)[:, ::-1]
    return np.stack([_logits_of(ordered, np.full(len(ordered), place)) for place in range(ordered.shape[1])], axis=1)


def _logits_of(shares: Floats, classes: NDArray[np.intp]) -> Floats:
    """ln(p/(1 − p)), [n], of each row's class; 1 − p is summed from the others, where it does not cancel to 0."""
    rows = np.arange(len(shares))
    others = shares.copy()
    others[rows, classes] = 0
    right, wrong = shares[rows, classes], others.sum(axis=1)
    return np.asarray(np.log(np.maximum(right, _SMALLEST)) - np.log(np.maximum(wrong, _SMALLEST)))


def _checked_posteriors(name: str, posteriors: NDArray[Any]) -> Floats:
    return check_rows(name, posteriors, len(posteriors)).astype(np.float64)
