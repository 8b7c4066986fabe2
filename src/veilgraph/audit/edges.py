"""Edges: which nodes are linked at a holder.

From rows of nodes (He et al. 2021, attacks 0, 3 and 6 of ``links``), from what goes into a hop of propagation and comes
out of it, from whose predictions change with whose features, and from rows that are made of neighbours' rows.

Functions on arrays raise ``DataError`` where arrays do not fit each other or are not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, diags, eye

from veilgraph.audit.attack import Parts, Scene, attack, scored, side_by_side
from veilgraph.audit.finding import Outcome
from veilgraph.audit.pairs import KnownPairs, NodeRows, Pairs, check_rows, learned_links, nonnegative, pair_distances
from veilgraph.core.errors import DataError
from veilgraph.protocol.view import Floats, Observations

MAX_NODES: Final = 5000
"""The most nodes that all weights between them are estimated for."""
CANDIDATES: Final = 64
"""Rows that one is made of at most: those that a first guess ranks highest."""

Score: TypeAlias = Callable[[Parts], Floats]
Ask = Callable[[int], Floats]
"""Node → posteriors [N, C] of all nodes, with that node's features changed."""
Guess = Callable[[NDArray[np.int64]], Floats]
"""Nodes [n] → how likely it makes each node to be a neighbour of theirs, [n, N], around 1 at most."""

_MOST_ASKED: Final = 1_000_000  # nodes times queries: an inference is one of all nodes
_MOST_COMBINED: Final = 20_000
_FEW_COLUMNS: Final = 4  # of fewer columns a row less its mean, at length 1, says next to nothing
_TINY: Final = float(np.finfo(np.float64).tiny)


@attack("edges", "embedding", "initial", "posteriors", "beside", "masked", blind=True)
def similarity(at: Scene) -> Outcome:
    """Rank pairs by the correlation of their rows: linked nodes are alike (attack 0)."""
    asked, note = at.links(), "Pooled: similarity of all holders' features."
    score: Score = lambda parts: np.sum([_similarities(rows, asked.pairs) for rows in parts], axis=0)  # noqa: E731
    return _with_baselines("similarity", score, asked, at, note=note)


@attack("edges", "embedding", "posteriors", "beside")
def supervised(at: Scene) -> Outcome:
    """Rank pairs by a classifier of their rows, trained on a half of the pairs that the adversary knows (attack 3)."""
    known, asked = at.links().split(0.5, at.case.seed)
    note = "The adversary knows half of the pairs. Pooled: the same with all holders' features."
    score: Score = lambda parts: _learned_scores(parts, known, asked, at.case.seed)  # noqa: E731
    return _with_baselines("supervised", score, asked, at, threshold=0.0, note=note)


@attack("edges", "propagation", blind=True)
def propagated(at: Scene) -> Outcome:
    """Estimate a hop's weights between nodes: least squares over many rounds of known inputs and outputs."""
    asked, steps = at.links(), at.evidence.steps
    return Outcome(
        weight_scores(neighbour_weights(np.stack(steps), np.stack(at.evidence.outputs)), asked.pairs),
        asked.truth,
        **at.beside(lambda rows: _similarities(rows, asked.pairs)),
        note=f"From {len(steps)} hops. Without and pooled: similarity of features.",
    )


@attack("edges", "inference")
def influenced(at: Scene) -> Outcome:
    """Rank links by whose predictions change if own features of a node are doubled (LinkTeller, Wu et al. 2022)."""
    case, graph = at.case, at.case.graph(at.target)
    network = case.source.inferences(case, case.holders_of(at.adversary))
    known, count = case.own_edges(at.adversary), graph.num_nodes
    queries = max(1, min(100, _MOST_ASKED // count))
    asked = queried_pairs(graph.edge_index.numpy(), known, count, queries=queries, seed=case.seed)
    return Outcome(
        influence_scores(network.before, network.doubled, asked.pairs),
        asked.truth,
        without=reach_scores(known, count, min(4, network.hops), asked.pairs),
        pooled=scored(lambda rows: _similarities(rows, asked.pairs), case.pooled_rows(at.target)),
        note=f"An inference for each of {len(np.unique(asked.pairs[:, 0]))} nodes, whose features the adversary "
        "doubles, computed by the plaintext twin of the run. Without: how much reaches a node over the adversary's "
        "own edges. Pooled: similarity of all holders' features.",
    )


@attack("edges", "embedding", "propagation", blind=True, of_all_pairs=True)
def combined(at: Scene) -> Outcome:
    """Fit sparse non-negative combinations of rows: an embedding's of each other, a hop's outputs of its inputs."""
    asked, note = at.links(), "A row as a combination of others. Without and pooled: the same of features."
    if at.evidence.sort == "propagation":
        return _hop_combinations(asked, at)
    score: Score = lambda parts: _row_combinations(side_by_side(parts), asked, at.case.seed)  # noqa: E731
    return _with_baselines("combination", score, asked, at, note=note)


def _with_baselines(
    name: str, score: Score, asked: KnownPairs, at: Scene, *, threshold: float | None = None, note: str
) -> Outcome:
    """Apply ``score`` to the evidence and, cached under ``name``, to the adversary's own and to pooled rows."""
    evidence, case, adversary, target = at.evidence, at.case, at.adversary, at.target
    own, pooled = case.own_parts(adversary, target), case.pooled_rows(target)
    holder = adversary if case.holders_of(adversary) else ""  # pairs are the same for all others
    return Outcome(
        score(evidence.parts or (evidence.matrix,)),
        asked.truth,
        without=case.once((name, "own", adversary, target), lambda: score(own)) if own else None,
        pooled=None if pooled is None else case.once((name, "pooled", holder, target), lambda: score((pooled,))),
        threshold=threshold,
        note=note,
    )


def _similarities(rows: Floats, pairs: Pairs) -> Floats:
    """Similarity [M] of each pair's rows: correlation, or negative distance where there are fewer than 3 columns."""
    distance = "euclidean" if rows.shape[1] < 3 else "correlation"
    return -pair_distances(check_rows("rows", rows, len(rows)), pairs, distance)


def _learned_scores(parts: Parts, known: KnownPairs, asked: KnownPairs, seed: int) -> Floats:
    """Scores of ``asked`` by a classifier of ``known``; with several parts, features are apart (attack 6)."""
    if len(parts) > 1:
        reference = parts[1] if len(parts) > 2 else None
        return learned_links(NodeRows(parts[-1], parts[0], reference), known, asked.pairs, seed=seed)
    (rows,) = parts
    scale = float(np.abs(rows).mean()) or 1.0
    return learned_links(NodeRows(rows / scale), known, asked.pairs, seed=seed)


def _row_combinations(rows: Floats, asked: KnownPairs, seed: int) -> Floats:
    """``combination_scores`` of rows [N, d] of each other; of many nodes, with those asked about and a sample."""
    nodes = np.unique(asked.pairs)
    if len(rows) > _MOST_COMBINED:
        others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(rows)), nodes))
        nodes = np.sort(np.concatenate([nodes, others[: max(0, _MOST_COMBINED - len(nodes))]]))
    else:
        nodes = np.arange(len(rows))
    chosen = rows[nodes] - rows[nodes].mean(axis=0) if rows.shape[1] < _FEW_COLUMNS else standardised(rows[nodes])
    return combination_scores(chosen, chosen, np.searchsorted(nodes, asked.pairs), alike(chosen))


def _hop_combinations(asked: KnownPairs, at: Scene) -> Outcome:
    """Outcome of ``combination_scores`` of the outputs of a pass's newest hops of their inputs."""
    evidence, newest = at.evidence, 1
    if isinstance(evidence.steps, Observations):  # the last hops of one pass
        keys = [(pieces[0].session, pieces[0].tag.step) for pieces in evidence.steps.pieces]
        newest = keys.count(keys[-1])
    given, made = (np.stack(each[-newest:]) for each in (evidence.steps, evidence.outputs))
    weights = neighbour_weights(given, made)
    weights /= np.maximum(np.abs(weights).max(axis=1, keepdims=True), _TINY)
    sizes = np.linalg.norm(given, axis=(1, 2))
    inputs, outputs = (
        np.concatenate([*(each / np.maximum(sizes, 1e-300)[:, None, None])], axis=1) for each in (given, made)
    )
    return Outcome(
        combination_scores(inputs, outputs, asked.pairs, lambda nodes: weights[nodes]),
        asked.truth,
        **at.beside(lambda rows: _row_combinations(rows, asked, at.case.seed)),
        note=f"From {newest} hops of the newest pass. Without and pooled: a row of features of others.",
    )


def neighbour_weights(inputs: NDArray[Any], outputs: NDArray[Any], *, ridge: float = 1e-3) -> Floats:
    """Ridge estimate of A [N, N] in outputs = A·inputs, [S, N, d], for all steps together.

    A hop without weights is H' = A·H, row by row a combination of the neighbours' rows, with new equations for the same
    A in every round of every pass. The penalty is relative to the mean squared singular value of the inputs.
    """
    nodes = inputs.shape[1]
    if nodes > MAX_NODES:
        raise DataError(
            f"inputs: have {nodes} nodes; weights between all of them are estimated for at most {MAX_NODES}"
        )
    squares, products = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    for given, made in zip(inputs, outputs, strict=True):
        row = given.astype(np.float64)
        size = np.square(row).sum() or 1.0
        squares += row @ (row.T / size)
        products += made.astype(np.float64) @ (row.T / size)
    trace = float(np.trace(squares))
    if not (np.isfinite(trace) and np.isfinite(products).all() and trace > 0):
        raise DataError("inputs: they and outputs must be finite, and inputs not zero everywhere; leave out such steps")
    squares[np.diag_indices(nodes)] += ridge * trace / nodes
    return np.asarray(cho_solve(cho_factor(squares, overwrite_a=True), products.T, overwrite_b=True).T)


def weight_scores(weights: Floats, pairs: Pairs) -> Floats:
    """Scores of pairs, [M] float64: the larger weight of one node in the other, each beside its row's spread."""
    first, second = pairs.T
    spread = weights.std(axis=1)
    spread[spread == 0] = 1
    scaled = weights / spread[:, None]
    return np.asarray(np.maximum(scaled[first, second], scaled[second, first]))


def influence_scores(before: Floats, ask: Ask, pairs: Pairs) -> Floats:
    """Scores [P] of pairs [P, 2]: how much the second node's logits change with the first one's features.

    A graph network carries a node's features along edges, and no farther than its layers reach. Measured in logits,
    from posteriors ``before`` [N, C]: a change at a node of which the network is sure would not be seen in the
    posteriors themselves, which the paper takes. Source: Wu et al. 2022, "LinkTeller: Recovering Private Edges from
    Graph Neural Networks via Influence Analysis", section IV, algorithm 2.
    """
    start, scores = _centred_logs(before), np.empty(len(pairs))
    for node in np.unique(pairs[:, 0]):
        asked = pairs[:, 0] == node
        seen = pairs[asked, 1]
        scores[asked] = np.linalg.norm(_centred_logs(ask(int(node))[seen]) - start[seen], axis=1)
    return scores


def queried_pairs(
    edge_index: NDArray[np.int64], known: NDArray[np.int64], num_nodes: int, *, queries: int, seed: int
) -> KnownPairs:
    """All links of at most ``queries`` nodes, which come first in their pairs, and as many pairs without a link.

    Direction, repetition and loops of ``edge_index`` [2, E] do not count; ``known``, the adversary's, are left out.
    """
    linked, own = (_adjacency(edges, num_nodes) for edges in (edge_index, known))
    hidden = (linked - linked.multiply(own)).tocsr()
    hidden.eliminate_zeros()
    random = np.random.default_rng(seed)
    nodes = np.flatnonzero(np.diff(hidden.indptr))
    if not len(nodes):
        raise DataError("edge_index: has no link that the adversary does not have; there is nothing to attack")
    asked = random.choice(nodes, size=min(queries, len(nodes)), replace=False)
    rows = hidden[asked]
    links = np.stack([np.repeat(asked, np.diff(rows.indptr)), rows.indices], axis=1)
    taken = (linked + own + eye(num_nodes, format="csr"))[asked].tocoo()
    free = np.setdiff1d(np.arange(len(asked) * num_nodes), taken.row.astype(np.int64) * num_nodes + taken.col)
    if len(free) < len(links):
        raise DataError(
            f"{len(asked)} nodes have {len(links)} links and {len(free)} pairs without one; give more nodes"
        )
    place, other = np.divmod(random.choice(free, size=len(links), replace=False), num_nodes)
    pairs = np.concatenate([links, np.stack([asked[place], other], axis=1)]).astype(np.int64)
    return KnownPairs(pairs, np.arange(len(pairs)) < len(links))


def reach_scores(edge_index: NDArray[np.int64], num_nodes: int, hops: int, pairs: Pairs) -> Floats:
    """How much of the first node reaches the second within some hops over known edges, [P]: by means of neighbours."""
    adjacency = _adjacency(edge_index, num_nodes) + eye(num_nodes, format="csr")
    mean = diags(1 / np.asarray(adjacency.sum(axis=1))[:, 0]) @ adjacency
    nodes, places = np.unique(pairs[:, 0], return_inverse=True)
    columns = eye(num_nodes, format="csc")[:, nodes]
    for _ in range(hops):
        columns = mean @ columns
    return np.asarray(columns.tocsr()[pairs[:, 1], places]).ravel()


def _adjacency(edges: NDArray[np.int64], num_nodes: int) -> csr_matrix:
    """Adjacency matrix [N, N] of 0 and 1 from edges [2, E], without direction or loops."""
    first, second = edges[:, edges[0] != edges[1]]
    ends = np.concatenate([first, second]), np.concatenate([second, first])
    matrix = csr_matrix((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    matrix.data[:] = 1  # what is named several times was added up
    return matrix


def _centred_logs(posteriors: Floats) -> Floats:
    logs = np.log(np.maximum(posteriors, 1e-30))
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


def standardised(rows: NDArray[Any]) -> Floats:
    """Each row [d] less its mean and of length 1, so that products are correlations and lengths say nothing."""
    centred = rows.astype(np.float64) - rows.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), _TINY))


def alike(rows: Floats) -> Guess:
    """Return a ``Guess`` by inner products of rows [N, d]; −∞ for a node with itself."""

    def guessed(nodes: NDArray[np.int64]) -> Floats:
        found = np.asarray(rows[nodes] @ rows.T)
        found[np.arange(len(nodes)), nodes] = -np.inf
        return found

    return guessed


def combination_scores(
    inputs: NDArray[Any], outputs: NDArray[Any], pairs: Pairs, guess: Guess, *, penalty: float = 0.01
) -> Floats:
    """Scores of pairs [M]: the larger weight of one node in the other, and where neither has one the first guess.

    A hop takes the mean over neighbours, so what it puts out, [N, m], is a combination of few rows of its inputs with
    non-negative weights, which non-negative least squares finds from fewer equations than rows. Where the hop's input
    is not known, rows of its output are combined of each other: self-expression. ``guess`` ranks candidates, −∞ for
    none; ``penalty`` on the sum of weights is relative to their mean length.

    Source: Bruckstein, Elad & Zibulevsky 2008, "On the uniqueness of nonnegative sparse solutions to underdetermined
    systems of equations"; Lawson & Hanson 1974, chapter 23; Elhamifar & Vidal 2013, "Sparse subspace clustering",
    section 2.
    """
    given = check_rows("inputs", inputs, len(inputs)).astype(np.float64)
    made = check_rows("outputs", outputs, len(inputs)).astype(np.float64)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    order = np.argsort(both[:, 0], kind="stable")
    scores = np.empty(len(both))
    for block in np.array_split(np.unique(both[:, 0]), 1 + len(pairs) // 256):
        places = order[np.isin(both[order, 0], block)]
        if len(places):
            rows, others = np.searchsorted(block, both[places, 0]), both[places, 1]
            guesses = guess(block)
            weights = _combination_weights(given, made[block], guesses, penalty)
            scores[places] = weights[rows, others] + 1e-3 * np.maximum(guesses[rows, others], -1)
    return np.maximum(*np.split(scores, 2))


def _combination_weights(inputs: Floats, outputs: Floats, guesses: Floats, penalty: float) -> Floats:
    """Non-negative weights [n, N] with which outputs [n, m] combine those inputs [N, m] that guesses rank first."""
    found, count = np.zeros_like(guesses), min(CANDIDATES, guesses.shape[1] - 1)
    for place, (row, likely) in enumerate(zip(outputs, guesses, strict=True)):
        chosen = np.argpartition(-likely, count)[:count]
        chosen = chosen[likely[chosen] > -np.inf]
        columns = inputs[chosen].T
        size = penalty * float(np.linalg.norm(columns)) / len(chosen) ** 0.5
        found[place, chosen] = nonnegative(columns, row, size)
    return found
