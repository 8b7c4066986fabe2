"""Edges from influence: whose predictions change when a node's features do (LinkTeller).

A graph network carries a node's features along edges, and no farther than its layers reach. Who may have predictions
made anew with features of its own choice changes one node at a time and looks where predictions change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags, eye

from veilgraph.audit.attacks.pairs import KnownPairs, Pairs, check_pairs
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError

Ask = Callable[[int], Floats]
"""Node → posteriors [N, C] of all nodes, with that node's features changed."""

_SMALLEST = 1e-30


def influence_scores(before: Floats, ask: Ask, pairs: Pairs) -> Floats:
    """How much the second node's prediction changes with the first one's features, [P].

    Measured in logarithms of posteriors less their mean over the classes, that is in logits: a change at a node of
    which the network is sure would not be seen in the posteriors themselves, which the paper takes.

    Args:
        before: [N, C] posteriors with nothing changed.
        ask: is called once for every node that comes first in a pair.
        pairs: [P, 2].

    Raises:
        DataError: ``pairs`` are none.

    Source: Wu et al. 2022, "LinkTeller: Recovering Private Edges from Graph Neural Networks via Influence Analysis",
        section IV, algorithm 2.
    """
    checked, start = check_pairs(pairs, len(before)), _logits(before)
    scores = np.empty(len(checked))
    for node in np.unique(checked[:, 0]):
        asked = checked[:, 0] == node
        seen = checked[asked, 1]
        scores[asked] = np.linalg.norm(_logits(ask(int(node))[seen]) - start[seen], axis=1)
    return scores


def queried_pairs(
    edge_index: NDArray[np.int64], known: NDArray[np.int64], num_nodes: int, *, queries: int, seed: int
) -> KnownPairs:
    """All links of some nodes, which come first in their pairs, and as many pairs of these nodes without a link.

    Args:
        edge_index: [2, E] int64 of the target; direction, repetition and loops do not count.
        known: [2, E'] int64 that the adversary has: such pairs are left out.
        num_nodes: N.
        queries: nodes at most that are changed.
        seed: of the draw.

    Raises:
        DataError: the target has no link that the adversary has not, or there are too few pairs without one.
    """
    linked, own = (_symmetric(edges, num_nodes) for edges in (edge_index, known))
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
    checked = check_pairs(pairs, num_nodes)
    adjacency = _symmetric(edge_index, num_nodes) + eye(num_nodes, format="csr")
    mean = diags(1 / np.asarray(adjacency.sum(axis=1))[:, 0]) @ adjacency
    nodes, places = np.unique(checked[:, 0], return_inverse=True)
    columns = eye(num_nodes, format="csc")[:, nodes]
    for _ in range(hops):
        columns = mean @ columns
    return np.asarray(columns.tocsr()[checked[:, 1], places]).ravel()


def _symmetric(edges: NDArray[np.int64], num_nodes: int) -> csr_matrix:
    """0 and 1, [N, N], without loops."""
    first, second = edges[:, edges[0] != edges[1]]
    ends = np.concatenate([first, second]), np.concatenate([second, first])
    matrix = csr_matrix((np.ones(len(ends[0])), ends), shape=(num_nodes, num_nodes))
    matrix.data[:] = 1  # what is named several times was added up
    return matrix


def _logits(posteriors: Floats) -> Floats:
    logs = np.log(np.maximum(posteriors, _SMALLEST))
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))
