"""Features: what a private column of a holder is at nodes of which the adversary does not know it.

It knows the column at some nodes, the auxiliary ones, and learns from rows of these to it (Duddu et al. 2020,
"Quantifying Privacy Leakage in Graph Embedding"), or how outputs of the network follow from it (Luo, Wu, Xiao & Ooi
2021, "Feature Inference Attack on Model Predictions in Vertical Federated Learning"). Without what it has seen it could
only name the more frequent value.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.autograd import backward
from torch.nn import functional

from veilgraph.audit.attack import AuditContext, Scene, attack
from veilgraph.audit.finding import Outcome
from veilgraph.audit.pairs import Numbers, check_rows, train_classifier, unit_columns
from veilgraph.audit.statistics import Truth
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.nn.layers import Adam
from veilgraph.protocol.view import Floats

Flags = NDArray[np.bool_]
Infer = Callable[[Floats, Floats, Floats, Truth], Floats]
"""Own features [N, F], columns [N, k], outputs [N, m] and who is known [N] → columns [N, k]."""

KNOWN: Final = 0.3
MAX_TRAINED: Final = 2000
"""The most nodes that a generator is trained on; it serves all."""
STEPS: Final = 200
"""Of the generator."""

_SHARES: Final = (0.1, 0.05, 0.02)  # of nodes that have a column, and that have not; the first with any such columns
_MOST_NODES: Final = 5000
_WIDE: Final = 4000
_HIDDEN: Final = 64
_RATE: Final = 0.01


@attack("features", "embedding", "initial", "posteriors", "beside", "masked")
def attribute(at: Scene) -> Outcome:
    """Infer an attribute by a classifier of rows, trained on nodes where it is known (Duddu et al. 2020)."""
    rows = at.evidence.matrix
    return _infer_all(lambda column: rows, at)


@attack("features", "releases")
def from_release(at: Scene) -> Outcome:
    """Infer columns from their perturbed releases, and the means of these over neighbours, in which noise cancels."""
    releases = [seen.tensor() for seen in at.evidence.messages]
    edges = at.case.own_edges(at.adversary)
    count = releases[-1].shape[0]
    mean = sp.csr_matrix((np.ones(edges.shape[1]), (edges[1], edges[0])), shape=(count, count))
    mean = sp.diags(1 / np.maximum(np.asarray(mean.sum(axis=1))[:, 0], 1)) @ mean

    def rows(column: int) -> Floats:
        own = np.mean([_released_column(each, column) for each in releases if len(each) == count], axis=0)
        return np.stack([own, mean @ own, mean @ (mean @ own)], axis=1)

    return _infer_all(rows, at)


def _released_column(released: Tensor, column: int) -> Floats:
    """A column of a release, [N]: −1, 1 or, where a node did not release it, 0; or a noisy value."""
    if released.dtype == torch.int64:  # 1 + column, with the value's sign
        return np.asarray(((released == column + 1).sum(dim=1) - (released == -column - 1).sum(dim=1)).double().numpy())
    values = released[:, column].double()
    return np.asarray((values - 1 if released.dtype == torch.uint8 else values).numpy())


@attack("features", "embedding", "initial", "posteriors")
def solved(at: Scene) -> Outcome:
    """Solve a linear model of the outputs, fitted on the known nodes, for the other nodes' columns."""

    def found(own: Floats, columns: Floats, outputs: Floats, known: Truth) -> Floats:
        return solve_equations(fit_model(own, columns, outputs, known), own, outputs)

    return _infer_from_outputs(found, at)


@attack("features", "embedding", "posteriors")
def generated(at: Scene) -> Outcome:
    """Train a generator of columns for which a model, fitted on the known nodes, gives the outputs that were seen."""
    return _infer_from_outputs(partial(generated_columns, seed=at.case.seed), at)


def _infer_from_outputs(infer: Infer, at: Scene) -> Outcome:
    """Outcome of inferring the attacked columns from the network's outputs, posteriors as ``log_ratios``."""
    columns, evidence = Columns(at.case, at.target), at.evidence
    outputs = log_ratios(evidence.matrix) if evidence.sort == "posteriors" else evidence.matrix
    own = at.own_rows()
    mine = np.empty((len(columns.known), 0)) if own is None else own[columns.asked]
    return Outcome(
        columns.ranked(infer(mine, columns.values, outputs[columns.asked], columns.known)),
        columns.truth,
        without=columns.from_own(at),
        note=f"{columns.words}, from which a model of the network is learned: nobody has its weights. Without: a "
        "classifier on the own features.",
    )


def _infer_all(rows: Callable[[int], Floats], at: Scene) -> Outcome:
    """Attribute inference of several of the target's columns, from rows [N, d] for each, ranked by itself."""
    columns = Columns(at.case, at.target)
    pooled = columns.pooled_rows()
    key = "attribute", "pooled", at.target
    return Outcome(
        columns.inferred(rows),
        columns.truth,
        without=columns.from_own(at),
        pooled=None if pooled is None else at.case.once(key, lambda: columns.inferred(lambda _: pooled)),
        note=f"{columns.words}. Pooled: from all other columns.",
    )


class Columns:
    """The columns of a holder that are attacked: k ``attributes``, at the nodes ``asked``, [N] bool.

    Of these the adversary knows the values [n, k], 0 and 1, at those ``known``, [n] bool.
    """

    def __init__(self, case: AuditContext, target: PartyId) -> None:
        self._case, self._target, self.attributes = case, target, _attacked_columns(case, target)
        auxiliary, self.asked = known_nodes(case, target)
        self.known = auxiliary[self.asked]
        self.values: Floats = np.stack([each.values[self.asked] for each in self.attributes], axis=1).astype(np.float64)

    @property
    def truth(self) -> Truth:
        """The values at the nodes that are not known, column by column, [T] bool."""
        return np.asarray(self.values[~self.known].T.ravel() > 0)

    @property
    def words(self) -> str:
        """How many columns are attacked, and at which share of the nodes they are known, for a note."""
        return f"{len(self.attributes)} columns, each known of {KNOWN:.0%} of the nodes"

    def ranked(self, found: Floats) -> Floats:
        """Scores of ``truth`` from values [n, k] that were found, each column ranked by itself."""
        return np.concatenate([ranks(column) for column in found[~self.known].T])

    def inferred(self, rows: Callable[[int], Floats]) -> Floats:
        """Scores of ``truth`` by attribute inference from rows [N, d] for each column."""
        found = (
            infer_attribute(rows(each.column)[self.asked], each.values[self.asked], self.known, seed=self._case.seed)
            for each in self.attributes
        )
        return np.concatenate([ranks(each) for each in found])

    def from_own(self, at: Scene) -> Floats | None:
        """Scores of ``truth`` from what the adversary has without any message; None where it has nothing."""
        own, key = at.own_rows(), ("attribute", "own", at.adversary, at.target)
        return None if own is None else self._case.once(key, lambda: self.inferred(lambda _: own))

    def pooled_rows(self) -> Floats | None:
        """All holders' features of the nodes [N, F] but these columns."""
        return self._case.pooled_rows(self._target, [each.column for each in self.attributes])


def _attacked_columns(case: AuditContext, target: PartyId) -> list[Attribute]:
    """At most five columns of the target whose two values are the most balanced; ``DataError``: there is none."""
    features = case.graph(target).features
    dense = to_scipy(features)[:, :_WIDE].toarray() if is_sparse(features) else features[:, :_WIDE].numpy()
    for share in _SHARES:
        if found := choose_attributes(dense, count=5, min_share=share):
            return found
    raise DataError(f"{target} has no column that at least {_SHARES[-1]:.0%} of its nodes have and as many have not")


def known_nodes(case: AuditContext, target: PartyId) -> tuple[Flags, Flags]:
    """The nodes whose attribute the adversary knows, and those that the attack is about, both [N] bool."""
    count = case.graph(target).num_nodes
    chosen = np.ones(count, dtype=np.bool_)
    if count > _MOST_NODES:
        chosen = auxiliary_nodes(count, _MOST_NODES / count, seed=case.seed)
    auxiliary = np.zeros(count, dtype=np.bool_)
    auxiliary[chosen] = auxiliary_nodes(int(chosen.sum()), KNOWN, seed=case.seed)
    return auxiliary, chosen


def ranks(scores: Floats) -> Floats:
    """Scores [T] of one column as ranks in (0, 1], ties averaged, so that columns can be compared."""
    return np.asarray(rankdata(scores) / len(scores))


@dataclass(frozen=True, eq=False)
class Attribute:
    """A binary attribute: whether column ``column`` of a feature matrix is above ``above``, ``values`` [N] bool."""

    column: int
    above: float
    values: Flags


def choose_attributes(features: Numbers, *, count: int, min_share: float = 0.1) -> list[Attribute]:
    """The columns, of [N, F], that an attack says most about: those whose two values are nearest to equally frequent.

    A column of two values is taken as it is; any other is cut at its median. Of equal columns the first is taken. It
    gives at most ``count``, the best first, of which ``min_share`` of the nodes, in (0, 0.5], have either value.
    """
    rows = check_rows("features", features, len(features))
    lowest, highest = rows.min(axis=0), rows.max(axis=0)
    has_two = ((rows == lowest) | (rows == highest)).all(axis=0)
    above = np.where(has_two, lowest, np.median(rows, axis=0))
    shares = (rows > above).mean(axis=0)
    order = np.argsort(np.abs(shares - 0.5), kind="stable")[:count]
    return [
        Attribute(int(column), float(above[column]), rows[:, column] > above[column])
        for column in order
        if min(shares[column], 1 - shares[column]) >= min_share
    ]


def auxiliary_nodes(num_nodes: int, share: float, *, seed: int) -> Flags:
    """Which nodes' attribute the adversary knows: ``share`` of all, at random, [N] bool."""
    known = np.zeros(num_nodes, dtype=np.bool_)
    known[np.random.default_rng(seed).choice(num_nodes, size=round(share * num_nodes), replace=False)] = True
    return known


def infer_attribute(embeddings: Numbers, values: Flags, auxiliary: Flags, *, seed: int) -> Floats:
    """Attribute inference by logistic regression, from ``embeddings`` [N, d] that the adversary has of every node.

    It knows the attribute, ``values`` [N] bool, of the ``auxiliary`` nodes alone. Scores of the others, [T], are higher
    where they have it; above 0 counts so.
    """
    rows = unit_columns(check_rows("embeddings", embeddings, len(embeddings)))
    return train_classifier("logistic", rows[auxiliary], values[auxiliary], seed=seed)(rows[~auxiliary])


@dataclass(frozen=True, eq=False)
class LinearModel:
    """outputs = own·A + columns·B + bias + noise: A [F, m], F may be 0, B [k, m], bias [m], covariance [m, m]."""

    own: Floats
    columns: Floats
    bias: Floats
    noise: Floats

    def whitened(self) -> Floats:
        """The matrix [m, m] that whitens the noise, so that each equation counts by how little noise it has."""
        values, vectors = np.linalg.eigh(self.noise)
        least = max(float(values[-1]), 0.0) * 1e-6
        return np.asarray(vectors / np.sqrt(np.maximum(values, least))) if least > 0 else np.eye(len(values))


def log_ratios(posteriors: Numbers) -> Floats:
    """Logarithms of ratios of neighbouring confidences, ln v_c − ln v_{c+1}: [N, C] to [N, C − 1]."""
    rows = check_rows("posteriors", posteriors, len(posteriors)).astype(np.float64)
    logs = np.log(np.maximum(rows, 1e-12))
    return np.asarray(logs[:, :-1] - logs[:, 1:])


def fit_model(own: Numbers, columns: Numbers, outputs: Numbers, known: Flags, *, ridge: float = 1e-2) -> LinearModel:
    """A linear model of outputs [N, m] by ridge regression on the known nodes; other nodes' columns are not read.

    The paper's adversary is given the whole model. In a vertical job nobody has one: the adversary is granted some rows
    of the columns [N, k] it is after, and fits one to its own [N, F] too. A graph network is not linear, so each
    equation is weighed by how well the fit says what it comes to. The penalty is relative to the mean squared singular
    value of the inputs.
    """
    made = check_rows("outputs", outputs[known], int(known.sum())).astype(np.float64)
    parts = [
        check_rows(name, each[known], len(made)).astype(np.float64) if each.shape[1] else np.empty((len(made), 0))
        for name, each in (("own", own), ("columns", columns))
    ]
    inputs, width = np.concatenate(parts, axis=1), own.shape[1]
    penalty = ridge * len(inputs) * float(inputs.var(axis=0).mean()) + 1e-9
    model = Ridge(penalty).fit(inputs, made)
    # Of one output some releases of scikit-learn drop the second dimension.
    weights, left = model.coef_.reshape(made.shape[1], -1).T, made - model.predict(inputs).reshape(made.shape)
    bias = np.reshape(model.intercept_, made.shape[1])
    return LinearModel(weights[:width], weights[width:], bias, left.T @ left / len(left))


def solve_equations(model: LinearModel, own: Numbers, outputs: Numbers) -> Floats:
    """The unknown columns [N, k]: the shortest solution of all equations, each weighed by its noise.

    The logarithms of the ratios of a logistic regression's C confidences are C − 1 linear equations in its inputs. Who
    knows the model and a part of the inputs, ``own`` [N, F], solves for the others, from ``outputs`` [N, m]: exactly
    where these are C − 1 or fewer.

    Source: Luo et al. 2021, section IV-A.
    """
    made = check_rows("outputs", outputs, len(own)).astype(np.float64)
    rest = made - own.astype(np.float64) @ model.own - model.bias
    whiten = model.whitened()
    return np.asarray(rest @ whiten @ np.linalg.pinv(model.columns @ whiten, rcond=1e-8))


def generated_columns(own: Numbers, columns: Numbers, outputs: Numbers, known: Flags, *, seed: int) -> Floats:
    """Columns [N, k] in [0, 1] for which a model gives the outputs [N, m]: the generative regression network.

    A generator makes unknown features out of the known ones, ``own`` [N, F], F may be 0, and noise; a model, here that
    of ``fit_model``, is asked what it would put out for both; the generator learns until that is what was put out. Two
    things differ from the paper. The generator is given the outputs as well, so that it serves an adversary without
    features; and a sigmoid keeps its values within the columns' range, in place of a penalty on their variance. Columns
    of other than known nodes are not read.

    Source: Luo et al. 2021, section V.
    """
    model = fit_model(own, columns, outputs, known)
    whiten = model.whitened()
    wanted, weights = (outputs - own @ model.own - model.bias) @ whiten, model.columns @ whiten
    random = np.random.default_rng(seed)
    given = np.concatenate([unit_columns(own), unit_columns(outputs), random.normal(size=(len(known), 8))], axis=1)
    trained = random.permutation(len(known))[:MAX_TRAINED]
    generator = [
        torch.from_numpy(random.normal(size=(before + 1, after)) * (2 / (before + 1)) ** 0.5).requires_grad_()
        for before, after in pairwise((given.shape[1], _HIDDEN, columns.shape[1]))
    ]
    optimizer = Adam(generator, lr=_RATE)
    scale = float(np.square(wanted).sum(axis=1).mean()) or 1.0
    inputs, asked, target = map(torch.from_numpy, (given, given[trained], wanted[trained]))
    for _ in range(STEPS):
        optimizer.zero_grad()
        left = _generate(generator, asked) @ torch.from_numpy(weights) - target
        backward(left.square().sum() / (2 * scale * len(trained)))
        optimizer.step()
    return np.asarray(_generate(generator, inputs).detach().numpy())


def _generate(generator: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Columns [n, k] of inputs [n, F] by two layers, whose last rows are biases, with ReLU between and a sigmoid."""
    first, second = generator
    hidden = functional.relu(torch.addmm(first[-1], rows, first[:-1]))
    return torch.sigmoid(torch.addmm(second[-1], hidden, second[:-1]))
