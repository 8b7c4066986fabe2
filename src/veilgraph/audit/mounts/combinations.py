"""Which rows a node's row is made of: non-negative least squares on embeddings, and on the hops of a single pass."""

from __future__ import annotations

from typing import Final

import numpy as np

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.combination import alike, combination_scores, standardised
from veilgraph.audit.attacks.pairs import KnownPairs
from veilgraph.audit.attacks.propagation import neighbour_weights
from veilgraph.audit.case import Case
from veilgraph.audit.columns import side_by_side
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.mounts.edges import compared
from veilgraph.audit.passes import Passes
from veilgraph.audit.roc import Floats
from veilgraph.core.types import PartyId

_MOST_NODES: Final = 20_000
_NARROW: Final = 4
"""Of fewer columns a row less its mean, at length 1, says next to nothing."""


def combined(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """An embedding's rows of each other; of the newest pass, what came out of a hop of what went in."""
    asked = case.links(target, adversary)
    of = evidence, case, adversary, target
    if evidence.sort == "propagation":
        return _of_hops(asked, of)
    return compared(
        "combination",
        lambda parts: _of_rows(side_by_side(parts), asked, case.seed),
        asked,
        of,
        note="A row as a combination of others. Without and pooled: the same of features.",
    )


def _of_rows(rows: Floats, asked: KnownPairs, seed: int) -> Floats:
    """Of many nodes those that are asked about and some others."""
    nodes = np.unique(asked.pairs)
    if len(rows) > _MOST_NODES:
        others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(rows)), nodes))
        nodes = np.sort(np.concatenate([nodes, others[: max(0, _MOST_NODES - len(nodes))]]))
    else:
        nodes = np.arange(len(rows))
    chosen = rows[nodes] - rows[nodes].mean(axis=0) if rows.shape[1] < _NARROW else standardised(rows[nodes])
    return combination_scores(chosen, chosen, np.searchsorted(nodes, asked.pairs), alike(chosen))


def _of_hops(asked: KnownPairs, of: tuple[Evidence, Case, PartyId, PartyId]) -> Outcome:
    evidence, case, adversary, target = of
    newest = _newest(evidence.steps)
    given, made = (np.stack(each[-newest:]) for each in (evidence.steps, evidence.outputs))
    weights = neighbour_weights(given, made)
    weights /= np.maximum(np.abs(weights).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    own, pooled = case.own_rows(adversary, target), case.pooled_rows(target)
    sizes = np.linalg.norm(given, axis=(1, 2))
    inputs, outputs = (
        np.concatenate([*(each / np.maximum(sizes, 1e-300)[:, None, None])], axis=1) for each in (given, made)
    )
    return Outcome(
        combination_scores(inputs, outputs, asked.pairs, lambda nodes: weights[nodes]),
        asked.truth,
        without=None if own is None else _of_rows(own, asked, case.seed),
        pooled=None if pooled is None else _of_rows(pooled, asked, case.seed),
        note=f"From {newest} hops of the newest pass. Without and pooled: a row of features of others.",
    )


def _newest(steps: object) -> int:
    """How many of the last hops are of one pass."""
    if not isinstance(steps, Passes):
        return 1
    last = (steps.pieces[-1][0].session, steps.pieces[-1][0].tag.step)
    return sum((pieces[0].session, pieces[0].tag.step) == last for pieces in steps.pieces)


COMBINED: Final = Attack("edges", ("embedding", "propagation"), combined, blind=True, of_all_pairs=True)
