"""Features from the initial embeddings h^0 = X·W that a joint method opens to every holder at every step (VFGNN 3.2).

X [N, F] has all holders' features side by side. Three things follow from the opened values alone, whatever the secure
computation hides:

- *Span.* Every column of every h^0 is a combination of X's columns, so a few steps and the holder's own columns span
  them all. A private column that is known of some nodes is completed for the rest by ridge regression on that span.
- *Inner products.* W begins as independent draws of a known variance, so the first h^0 is a random projection and
  keeps the inner products X·X^T roughly. SGD then changes h^0 by −X·X^T·ΣB_j, where a holder knows its own B_j: a
  linear system for X·X^T with the other holders' parts as noise.
- *Known weights.* W follows from a learning seed. Whoever has the seed of all holders, as all have where they learn
  from the job's, knows W, and a node's row of X solves d linear equations. Of a *collaborative* W every holder knows
  the part that it drew itself, and ranks features by an inner product with that, with all other parts as noise.

Where a holder knows its part x^i·W^i of h^0, as with ``secure-sum``, it gives these functions h^0 less that part.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.sparse import issparse
from sklearn.linear_model import RidgeCV

from veilgraph.audit.attack import ALIKE, AuditContext, Scene, attack, scored
from veilgraph.audit.features import Columns, ranks
from veilgraph.audit.finding import Outcome
from veilgraph.audit.pairs import Numbers, check_rows, nonnegative, pair_products
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_numbers
from veilgraph.protocol.view import Floats

MAX_NODES = 5000
"""The most nodes that a matrix of all their inner products is estimated for."""
MAX_COLUMNS = 2048
"""The most columns of h^0 that a span is taken from; of a longer sequence, those of evenly spaced steps."""
MAX_NUMBERS: Final = 300_000
"""Nodes times columns that are solved for at most; a node of Cora takes about 20 ms."""
MAX_UNKNOWN: Final = 10_000
"""Columns that are solved for at most."""

_FEWEST_NODES: Final = 50


@attack("features", "initial")
def reconstruction(at: Scene) -> Outcome:
    """Complete the target's columns by regression on the span of all opened h^0 and the adversary's own features."""
    columns = Columns(at.case, at.target)
    own = scored(lambda rows: rows[columns.asked], at.own_rows())
    opened = np.stack([step[columns.asked] for step in at.evidence.steps[:50]])
    span = sequence_basis(opened, own, tolerance=1e-5)  # of less rounding has a part; holders compute in float32

    def completed(rows: Floats) -> Floats:
        return columns.ranked(complete_columns(rows, columns.values, columns.known))

    return Outcome(
        completed(span),
        columns.truth,
        without=scored(completed, own),
        pooled=scored(lambda rows: completed(rows[columns.asked]), columns.pooled_rows()),
        note=f"{columns.words}; the opened h0 span {span.shape[1]} dimensions. Pooled: from all other columns, and no "
        "bound: the span has the column itself.",
    )


@attack("features", "initial", blind=True, of_all_pairs=True)
def similarity(at: Scene) -> Outcome:
    """Rank pairs by inner products of features, estimated from how h^0 changes with the adversary's gradients."""
    asked, evidence = at.case.alike(at.target), at.evidence
    count = min(len(evidence.steps) - 1, len(evidence.updates), 10)
    if count > 0 and len(evidence.steps[0]) <= MAX_NODES:
        first = projected_gram(evidence.steps[0], 1.0)
        steps, updates = np.stack(evidence.steps[: count + 1]), np.stack(evidence.updates[:count])
        # The Gram matrix is in another unit: what makes −scale·gram·B fit the changes of h^0 best.
        expected = np.stack([-first @ update for update in updates])
        scale = float((expected * np.diff(steps, axis=0)).sum() / ((expected**2).sum() or 1.0))
        gram = gram_estimate(steps, updates, prior=first * scale)
        scores, of = gram[asked.pairs[:, 0], asked.pairs[:, 1]], "all that was opened"
    else:  # a matrix of all pairs would be too large, and the pairs that are asked about need none
        scores, of = pair_products(evidence.steps[0], asked.pairs), "the first h0 alone"
    return Outcome(
        scores,
        asked.truth,
        without=scored(lambda rows: pair_products(rows, asked.pairs), at.own_rows()),
        note=f"Pairs of nodes whose features at the target have inner products among the highest {ALIKE:.0%}, "
        f"from {of}.",
    )


@attack("features", "initial")
def recovered(at: Scene) -> Outcome:
    """Solve the first h^0 for features with W known: all of it from the job's seed, or the adversary's own part."""
    case, target, seen = at.case, at.target, at.evidence.messages[0]
    members, names = case.holders_of(at.adversary), case.settings.data.names
    begun = case.run.party(members[0]).views()[seen.session].stem.partition("-")[2] in ("train", "restart")
    if not begun or seen.tag.step:
        raise DataError("the view does not have the h0 of the initial W; audit a run whose first pass was recorded")
    width = {name: case.graph(name).features.shape[1] for name in names}
    seeds = {member: case.run.party(member).seed() for member in members}
    known = case.source.initial_weights(case.settings, width, seeds)
    others = [name for name in names if name not in members]
    columns, unknown = Columns(case, target), sum(width[name] for name in others)
    own = np.concatenate([_dense_rows(case, member, columns.asked) for member in members], axis=1)
    own_weights = np.concatenate([known.weights(member) for member in members])
    most = min(400, MAX_NUMBERS // unknown) if known.is_all else len(own)
    if most < _FEWEST_NODES:
        raise DataError(f"the other holders have {unknown} columns, too many to solve for {_FEWEST_NODES} nodes")
    nodes = np.flatnonzero(~columns.known)  # of those asked; the other attacks on features are scored on the same
    if len(nodes) > most:
        nodes = np.sort(np.random.default_rng(case.seed).choice(nodes, size=most, replace=False))
    rest = without_own(at.evidence.steps[0][columns.asked], own, own_weights, others=known.has_others)[nodes]
    solve: Callable[[Numbers, Floats], Floats] = matched_rows
    if known.is_all:  # as the adversary's own features suggest that others' are
        solve = sparse_rows if (own >= 0).all() else least_squares_rows
    found = solve(rest, np.concatenate([known.weights(name) for name in others]))
    start = sum(width[name] for name in others[: others.index(target)])
    found = found[:, start : start + width[target]]
    truth = _dense_rows(case, target, np.flatnonzero(columns.asked)[nodes])
    exact = f" Of {len(nodes)} sampled rows, {exact_share(found, truth):.0%} came out exactly." if known.is_all else ""
    return Outcome(
        np.concatenate([ranks(found[:, each.column]) for each in columns.attributes]),
        columns.values[nodes].T.ravel() > 0,
        note=f"{len(columns.attributes)} columns, of which nothing is known. {known.words}{exact}",
    )


def _dense_rows(case: AuditContext, party: PartyId, nodes: NDArray[np.bool_] | NDArray[np.int64]) -> Floats:
    rows = to_numbers(case.graph(party).features)[nodes]
    return np.asarray(rows.toarray() if issparse(rows) else rows, dtype=np.float64)


def sequence_basis(h0: Numbers, own: Numbers | None = None, *, tolerance: float = 1e-7, power: float = 0.5) -> Floats:
    """A basis of what opened embeddings, and the adversary's own features, span: U·S^power of their singular values.

    The first h^0, the change of each step, [T, N, d], and the own features, [N, F], all count the same. Directions of
    smaller singular values than ``tolerance``, as shares of the largest, are left out; 1e-5 for float32. ``power`` 0
    treats all alike; 1 trusts strong ones more, which suits features that many nodes have. Gives [N, r] float64,
    orthogonal columns, the strongest first.
    """
    sequence = _check_all_finite("h0", h0)
    parts = [] if own is None else [check_rows("own", own, sequence.shape[1]).astype(np.float64)]
    parts_scaled = [part / size for part in (*parts, *_changes(sequence)) if (size := np.linalg.norm(part)) > 0]
    if not parts_scaled:
        raise DataError("h0: it and own are zero everywhere; there is nothing to span")
    values, vectors = _left_singular(np.concatenate(parts_scaled, axis=1))
    kept = values > tolerance * values[0]
    return np.asarray(vectors[:, kept] * values[kept] ** power)


def complete_columns(
    basis: Numbers, columns: Numbers, known: NDArray[np.bool_], *, ridge: float | None = None
) -> Floats:
    """Complete private columns [N, k] from their values at ``known`` nodes, by ridge regression on a basis [N, r].

    The basis is of ``sequence_basis``; without the view, it is the adversary's own features. ``known`` is [N] bool.
    The penalty is relative to the largest squared singular value of the known rows; None takes for each column the one
    of the smallest leave-one-out error.
    """
    rows = check_rows("basis", basis, len(basis)).astype(np.float64)
    targets = check_rows("columns", columns[known], int(known.sum())).astype(np.float64)
    largest = float(np.linalg.norm(rows[known] - rows[known].mean(axis=0), ord=2)) ** 2
    ridges = np.logspace(-12, 2, 29) if ridge is None else np.array([ridge])
    model = RidgeCV(largest * ridges, alpha_per_target=True).fit(rows[known], targets)
    return np.asarray(model.predict(rows).reshape(len(rows), -1))


def projected_gram(first: Numbers, weight_std: float) -> Floats:
    """Inner products of features from one random projection: h^0·h^0^T/(d·σ²), whose mean over W is X·X^T.

    ``first`` [N, d] is h^0 of the initial W, of σ ``weight_std``. Entries have variance (|x_u|²|x_v|² + ⟨x_u, x_v⟩²)/d.
    """
    rows = check_rows("first", first, _check_size(len(first))).astype(np.float64)
    return np.asarray(rows @ rows.T / (rows.shape[1] * weight_std**2))


def gram_estimate(h0: Numbers, updates: Numbers, *, ridge: float = 0.1, prior: Floats | None = None) -> Floats:
    """Inner products K = X·X^T [N, N] from h^0_{t+1} − h^0_t = −K·B_t + noise, by ridge regression towards a prior.

    Steps count by the size of their change: the noise, other holders' updates, grows with it. ``h0`` is [T + 1, N, d],
    with weight decay each divided by its scale c_t (``vertical.network.Collaborative``); ``updates`` [T, N, d] are B_t
    as far as the adversary knows it: η·momentum/c_{t+1} of its own gradients. The penalty, relative to their mean
    squared singular value, pulls to ``prior`` [N, N], such as ``projected_gram``, or zero.
    """
    sequence, known = _check_all_finite("h0", h0), _check_all_finite("updates", updates)
    steps, nodes, _ = known.shape
    guess = np.zeros((_check_size(nodes), nodes)) if prior is None else check_rows("prior", prior, nodes)
    squares, products = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    for step in range(steps):
        update = known[step].astype(np.float64)
        change = np.subtract(sequence[step + 1], sequence[step], dtype=np.float64)
        size = np.square(change).sum()
        if size > 0:
            squares += update @ (update.T / size)
            products -= change @ (update.T / size)
    if not squares.any():
        raise DataError("updates: are zero wherever h0 changes; there is nothing to learn from")
    products -= guess @ squares
    np.fill_diagonal(squares, np.diag(squares) + ridge * np.trace(squares) / nodes)
    estimate = guess + cho_solve(cho_factor(squares, overwrite_a=True), products.T, overwrite_b=True).T
    return np.asarray((estimate + estimate.T) / 2)


def _check_all_finite(name: str, values: Numbers) -> Numbers:
    if not np.isfinite(values).all():
        raise DataError(f"{name}: has values that are not finite; leave out their steps")
    return values


def _check_size(nodes: int) -> int:
    if nodes > MAX_NODES:
        raise DataError(
            f"nodes: {nodes} are too many for a matrix of inner products; give {MAX_NODES} of them or fewer"
        )
    return nodes


def _changes(sequence: Numbers) -> Iterator[Floats]:
    """Yield the first matrix of a sequence [T, N, d], then the differences between evenly spaced steps."""
    count = min(len(sequence), max(2, MAX_COLUMNS // sequence.shape[2]))
    places = np.linspace(0, len(sequence) - 1, count).round().astype(np.int64)
    yield sequence[0].astype(np.float64)
    for before, after in pairwise(places):
        yield np.subtract(sequence[after], sequence[before], dtype=np.float64)


def _left_singular(matrix: Floats) -> tuple[Floats, Floats]:
    """Singular values, falling, and left singular vectors of a matrix, from the smaller of its two Gram matrices."""
    tall = matrix.shape[0] > matrix.shape[1]
    squares, vectors = eigh(matrix.T @ matrix if tall else matrix @ matrix.T)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    vectors = vectors[:, ::-1]
    if tall:
        vectors = matrix @ np.divide(vectors, values, out=np.zeros_like(vectors), where=values > 0)
    return values, vectors


def sparse_rows(opened: Numbers, weights: Floats, *, penalty: float = 0.01) -> Floats:
    """The sparsest X ≥ 0 [n, F] with X·W = opened, row by row, in two passes.

    By non-negative least squares with a small penalty on the sum, relative to the median length of a row of W [F, d];
    columns that many nodes have are penalised less in the second pass. ``opened`` [n, d] is h^0 less all that is known
    of it.

    Source: Donoho & Tanner 2005, "Sparse nonnegative solution of underdetermined linear equations by linear
    programming"; Lawson & Hanson 1974, chapter 23.
    """
    rows = _check_opened(opened)
    if len(weights) > MAX_UNKNOWN or len(rows) * len(weights) > MAX_NUMBERS:
        raise DataError(
            f"weights: {len(rows)} nodes with {len(weights)} unknown columns are too many; give at most {MAX_UNKNOWN} "
            f"columns, and at most {MAX_NUMBERS} values in all"
        )
    size = penalty * float(np.median(np.linalg.norm(weights, axis=1)))

    def solved(scale: Floats) -> Floats:
        return np.stack([nonnegative(weights.T * scale, row, size) for row in rows]) * scale

    first = solved(np.ones(len(weights)))
    means = first.mean(axis=0)
    if not means.any():
        return first
    return solved(np.sqrt(means / means.mean() + 0.1))


def least_squares_rows(opened: Numbers, weights: Floats) -> Floats:
    """The shortest X [n, F] with X·W = opened [n, d]: exact where W [F, d] has no more rows than columns."""
    return np.asarray(_check_opened(opened) @ np.linalg.pinv(weights))


def matched_rows(opened: Numbers, drawn: Floats) -> Floats:
    """Scores [n, F] of features: inner products of opened [n, d] with the known part of each row of W [F, d], noisy."""
    return np.asarray(_check_opened(opened) @ (drawn / np.square(drawn).sum(axis=1, keepdims=True)).T)


def without_own(opened: Numbers, own: Numbers, drawn: Floats, *, others: bool) -> Floats:
    """h^0 [N, d] less the adversary's own part, of its features [N, F], whatever power of two it was opened in.

    ``drawn`` [F, d]: the known part of its W; ``others``: W has parts that others drew, which a regression takes out.
    """
    features = check_rows("own", own, len(opened)).astype(np.float64)
    part = features @ drawn
    size = float(np.square(part).sum())
    unit = abs(float((_check_opened(opened) * part).sum())) / (size or 1.0)
    if not unit > 0:
        raise DataError("own: the adversary's part of h0 is zero; there is nothing to tell the unit of h0 by")
    rest = opened / 2.0 ** np.round(np.log2(unit)) - part
    if not others:
        return np.asarray(rest)
    squares = features.T @ features
    squares[np.diag_indices(len(squares))] += np.trace(squares) / len(squares) or 1.0
    return np.asarray(rest - features @ np.linalg.solve(squares, features.T @ rest))


def exact_share(found: Floats, truth: Numbers) -> float:
    """Share of rows [n, F] in which every value is found to within a hundredth of the largest true value."""
    return float((np.abs(found - truth).max(axis=1) <= 0.01 * np.abs(truth).max()).mean())


def _check_opened(opened: Numbers) -> Floats:
    return check_rows("opened", opened, len(opened)).astype(np.float64)
