"""Which nodes are linked at a holder: He et al.'s attacks 0 and 3 on what an adversary has of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from torch import Tensor

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.influence import influence_scores, queried_pairs, reach_scores
from veilgraph.audit.attacks.link_features import NodeRows
from veilgraph.audit.attacks.links import Knowledge, link_scores
from veilgraph.audit.attacks.pairs import KnownPairs, Pairs
from veilgraph.audit.attacks.propagation import neighbour_weights, weight_scores
from veilgraph.audit.case import Case
from veilgraph.audit.columns import Parts
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.rows import rows_between
from veilgraph.paradigms.vertical.settings import vertical

_KNOWN: Final = 0.5
_NARROW: Final = 3
_TWO: Final = 2
_QUERIES: Final = 100
_MOST_ASKED: Final = 1_000_000
"""Nodes times queries: an inference is one of all nodes."""
_FARTHEST: Final = 4


def similarity(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Linked nodes are alike: pairs are ranked by the correlation of their rows (attack 0)."""
    asked = case.links(target, adversary)
    return compared(
        "similarity",
        lambda parts: np.sum([_alike(rows, asked.pairs) for rows in parts], axis=0),
        asked,
        (evidence, case, adversary, target),
        note="Pooled: similarity of all holders' features.",
    )


def supervised(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """The adversary knows half of the pairs, and trains a classifier on them (attack 3)."""
    known, asked = case.links(target, adversary).split(_KNOWN, case.seed)
    return compared(
        "supervised",
        lambda parts: _trained(parts, known, asked, case.seed),
        asked,
        (evidence, case, adversary, target),
        threshold=0.0,
        note="The adversary knows half of the pairs. Pooled: the same with all holders' features.",
    )


def propagated(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Which rows a hop makes of which: least squares over many rounds of known inputs and outputs."""
    asked = case.links(target, adversary)
    weights = neighbour_weights(np.stack(evidence.steps), np.stack(evidence.outputs))
    own, pooled = case.own_rows(adversary, target), case.pooled_rows(target)
    return Outcome(
        weight_scores(weights, asked.pairs),
        asked.truth,
        without=None if own is None else _alike(own, asked.pairs),
        pooled=None if pooled is None else _alike(pooled, asked.pairs),
        note=f"From {len(evidence.steps)} hops. Without and pooled: similarity of features.",
    )


def influenced(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Whose predictions change when the adversary doubles its features of a node (LinkTeller, Wu et al. 2022)."""
    network, members, count = case.twin(), case.holders_of(adversary), case.graph(target).num_nodes
    known = case.own_edges(adversary)
    queries = max(1, min(_QUERIES, _MOST_ASKED // count))
    asked = queried_pairs(case.graph(target).edge_index.numpy(), known, count, queries=queries, seed=case.seed)
    initial, weights = network.embedding.embed(), network.embedding.weights()
    model = vertical(case.settings).model

    def posteriors(h0: Mapping[PartyId, Tensor]) -> Floats:
        return np.asarray(network.infer_from(h0).double().softmax(dim=1).numpy())

    def ask(node: int) -> Floats:
        changed = {party: rows.clone() for party, rows in initial.items()}
        for member in members:
            weight, own = weights[member].detach(), case.graph(member).features
            more = (rows_between(own, node, node + 1).to_dense().to(weight.dtype) @ weight)[0]
            for party in changed if model.initial.is_joint else [member]:
                changed[party][node] += more.to(changed[party].dtype)
        return posteriors(changed)

    pooled = case.pooled_rows(target)
    return Outcome(
        influence_scores(posteriors(initial), ask, asked.pairs),
        asked.truth,
        without=reach_scores(known, count, min(_FARTHEST, model.rounds * model.local.hops), asked.pairs),
        pooled=None if pooled is None else _alike(pooled, asked.pairs),
        note=f"An inference for each of {len(np.unique(asked.pairs[:, 0]))} nodes, whose features the adversary "
        "doubles, computed by the plaintext twin of the run. Without: how much reaches a node over the adversary's "
        "own edges. Pooled: similarity of all holders' features.",
    )


def compared(
    name: str,
    score: Callable[[Parts], Floats],
    asked: KnownPairs,
    of: tuple[Evidence, Case, PartyId, PartyId],
    *,
    threshold: float | None = None,
    note: str,
) -> Outcome:
    """What ``score`` says of the asked pairs from the evidence's rows, from own rows and from pooled ones."""
    evidence, case, adversary, target = of
    own, pooled = case.own_parts(adversary, target), case.pooled_rows(target)
    holder = adversary if case.holders_of(adversary) else ""  # pairs are the same for all others
    return Outcome(
        score(evidence.parts or (rows_of(evidence),)),
        asked.truth,
        without=case.once((name, "own", adversary, target), lambda: score(own)) if own else None,
        pooled=None if pooled is None else case.once((name, "pooled", holder, target), lambda: score((pooled,))),
        threshold=threshold,
        note=note,
    )


def rows_of(evidence: Evidence) -> Floats:
    """Its rows.

    Raises:
        DataError: there are none.
    """
    if evidence.rows is None:
        raise DataError(f"{evidence.words}: there are no rows")
    return evidence.rows


def _alike(rows: Floats, pairs: Pairs) -> Floats:
    """Two or three columns have correlations of ±1 or close: there distances say more."""
    distance = "euclidean" if rows.shape[1] < _NARROW else "correlation"
    return link_scores(0, Knowledge(NodeRows(rows)), pairs, seed=0, distance=distance)


def _trained(parts: Parts, known: KnownPairs, asked: KnownPairs, seed: int) -> Floats:
    """With features and own predictions apart from the rest: attack 6."""
    if len(parts) > 1:
        features, reference, rest = parts[0], parts[1] if len(parts) > _TWO else None, parts[-1]
        nodes = NodeRows(rest, attributes=features, reference=reference)
        return link_scores(6, Knowledge(nodes, partial=known), asked.pairs, seed=seed)
    (rows,) = parts
    scale = float(np.abs(rows).mean()) or 1.0
    return link_scores(3, Knowledge(NodeRows(rows / scale), partial=known), asked.pairs, seed=seed)


SIMILARITY: Final = Attack("edges", ("embedding", "initial", "posteriors", "beside", "masked"), similarity, blind=True)
SUPERVISED: Final = Attack("edges", ("embedding", "posteriors", "beside"), supervised)
PROPAGATED: Final = Attack("edges", ("propagation",), propagated, blind=True)
INFLUENCED: Final = Attack("edges", ("inference",), influenced)
