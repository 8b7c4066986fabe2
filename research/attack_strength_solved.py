"""Attacks that solve equations, where these hold: features of a logistic regression and of X·W, edges of a mean."""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from research.attack_strength_settings import Attacked, StrengthSettings, own_seed
from veilgraph.audit.edges import alike, combination_scores, neighbour_weights, standardised, weight_scores
from veilgraph.audit.features import (
    LinearModel,
    auxiliary_nodes,
    choose_attributes,
    fit_model,
    generated_columns,
    log_ratios,
    solve_equations,
)
from veilgraph.audit.pairs import sample_pairs
from veilgraph.audit.reconstruction import MAX_NUMBERS, matched_rows, sparse_rows
from veilgraph.audit.statistics import Truth
from veilgraph.protocol.view import Floats

MANY: Final = 20
"""Unknown words, more than there are equations."""
WIDTH: Final = 64
NODES: Final = 150
"""Whose rows of X·W are solved for."""
LINKS: Final = 1000


def solved_features(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """Words from confidences of a logistic regression of all frequent ones, and from X·W of all.

    The equations are solved with its own weights, as the paper's adversary has them, and with weights fitted to the
    nodes that the adversary knows, as the audit's does; the generator learns its model from those as well.
    """
    x, labels = data.x.to_dense().double().numpy(), data.y.numpy()
    frequent = x[:, np.count_nonzero(x, axis=0) >= settings.frequent]
    frequent = frequent[:, np.ptp(frequent, axis=0) > 0]
    model = LogisticRegression(max_iter=300).fit(frequent, labels)
    outputs = log_ratios(model.predict_proba(frequent))
    known, found = auxiliary_nodes(len(x), settings.auxiliary_share, seed=seed), dict[str, Attacked]()
    for count in (outputs.shape[1], min(MANY, frequent.shape[1] // 2)):
        private = choose_attributes(frequent, count=count, min_share=0.01)
        columns = [each.column for each in private]
        own, truth = np.delete(frequent, columns, axis=1), np.stack([each.values for each in private], axis=1)
        hidden = truth.astype(np.float64)
        weights = model.coef_[:-1] - model.coef_[1:]
        intercepts = model.intercept_[:-1] - model.intercept_[1:]
        true = LinearModel(
            np.delete(weights, columns, axis=1).T, weights[:, columns].T, intercepts, np.zeros((len(weights),) * 2)
        )
        fitted = fit_model(own, hidden, outputs, known, ridge=1e-4)

        def attacked(scores: Floats, truth: Truth = truth) -> Attacked:
            return Attacked(scores[~known].ravel(), truth[~known].ravel())

        words = f"{count} words of logistic regression"
        found[f"{words}: equations of the model"] = attacked(solve_equations(true, own, outputs))
        found[f"{words}: equations fitted"] = attacked(solve_equations(fitted, own, outputs))
        found[f"{words}: generator"] = attacked(generated_columns(own, hidden, outputs, known, seed=seed))
    return found | _weights(x, seed)


def hops(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """Links from a mean over neighbours of 64 random projections of the features, whose input is known, or is not."""
    random, count = np.random.default_rng(own_seed(seed, 2)), len(data.y)
    x, edges = data.x.to_dense().double().numpy(), data.edge_index.numpy()
    linked = len(np.unique(np.sort(edges[:, edges[0] != edges[1]], axis=0), axis=1).T)
    asked = sample_pairs(edges, count, seed=seed, links=min(linked, LINKS))
    adjacency = sp.csr_matrix((np.ones(edges.shape[1]), (edges[1], edges[0])), shape=(count, count))
    mean = sp.diags(1 / np.maximum(np.asarray(adjacency.sum(axis=1))[:, 0], 1)) @ adjacency
    given = x @ random.normal(size=(x.shape[1], WIDTH))
    made, unit = np.asarray(mean @ given), standardised(np.asarray(mean @ given))
    weights = neighbour_weights(given[None], made[None])
    guess = weights / np.maximum(np.abs(weights).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    pairs = asked.pairs
    scored = {
        "known input: least squares": weight_scores(weights, pairs),
        "known input: combination": combination_scores(given, made, pairs, lambda nodes: guess[nodes]),
        "output alone: correlation": (unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(axis=1),
        "output alone: combination": combination_scores(unit, unit, pairs, alike(unit)),
    }
    return {name: Attacked(scores, asked.truth) for name, scores in scored.items()}


def _weights(x: Floats, seed: int) -> dict[str, Attacked]:
    """Half of the words are the adversary's own, and so of no account."""
    random = np.random.default_rng(own_seed(seed, 1))
    words = random.permutation(np.flatnonzero(x.any(axis=0)))[::2]
    nodes = random.choice(len(x), size=min(NODES, len(x), MAX_NUMBERS // len(words)), replace=False)
    hidden = x[np.ix_(nodes, words)]
    own, others, wrong = random.normal(size=(3, len(words), WIDTH))
    opened = hidden @ (own + others)
    scored = {
        "W known": sparse_rows(opened, own + others),
        "half of W known": matched_rows(opened, own),
        "another W": matched_rows(opened, wrong),
    }
    return {f"words of X·W, {name}": Attacked(scores.ravel(), hidden.ravel() > 0) for name, scores in scored.items()}
