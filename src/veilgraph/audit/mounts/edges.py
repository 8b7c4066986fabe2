"""Which nodes are linked at a holder: He et al.'s attacks 0 and 3 on what an adversary has of the nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from veilgraph.audit.attacks.link_features import NodeRows
from veilgraph.audit.attacks.links import Knowledge, link_scores
from veilgraph.audit.attacks.pairs import KnownPairs, Pairs
from veilgraph.audit.attacks.propagation import neighbour_weights, weight_scores
from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId

_KNOWN: Final = 0.5
_NARROW: Final = 3


def similarity(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Linked nodes are alike: pairs are ranked by the correlation of their rows (attack 0)."""
    asked = case.links(target, adversary)
    return compared(
        "similarity",
        lambda rows: _alike(rows, asked.pairs),
        asked,
        (evidence, case, adversary, target),
        note="Pooled: similarity of all holders' features.",
    )


def supervised(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """The adversary knows half of the pairs, and trains a classifier on them (attack 3)."""
    known, asked = case.links(target, adversary).split(_KNOWN, case.seed)
    return compared(
        "supervised",
        lambda rows: _trained(rows, known, asked, case.seed),
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


def compared(
    name: str,
    score: Callable[[Floats], Floats],
    asked: KnownPairs,
    of: tuple[Evidence, Case, PartyId, PartyId],
    *,
    threshold: float | None = None,
    note: str,
) -> Outcome:
    """What ``score`` says of the asked pairs from the evidence's rows, from own rows and from pooled ones."""
    evidence, case, adversary, target = of
    own, pooled = case.own_rows(adversary, target), case.pooled_rows(target)
    holder = adversary if adversary in case.settings.data.names else ""  # pairs are the same for all others
    return Outcome(
        score(rows_of(evidence)),
        asked.truth,
        without=None if own is None else case.once((name, "own", adversary, target), lambda: score(own)),
        pooled=None if pooled is None else case.once((name, "pooled", holder, target), lambda: score(pooled)),
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


def _trained(rows: Floats, known: KnownPairs, asked: KnownPairs, seed: int) -> Floats:
    scale = float(np.abs(rows).mean()) or 1.0
    return link_scores(3, Knowledge(NodeRows(rows / scale), partial=known), asked.pairs, seed=seed)
