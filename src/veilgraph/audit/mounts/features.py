"""What a holder's features are: attribute inference from rows, and reconstruction from the sequence of opened h^0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from veilgraph.audit.attack import Attack
from veilgraph.audit.attacks.attributes import Attribute, auxiliary_nodes, choose_attributes, infer_attribute
from veilgraph.audit.attacks.reconstruction import (
    MAX_NODES,
    complete_columns,
    gram_estimate,
    gram_scores,
    pair_products,
    projected_gram,
    sequence_basis,
)
from veilgraph.audit.case import ALIKE, Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.roc import Floats
from veilgraph.core.errors import DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import to_scipy

KNOWN: Final = 0.3
_COUNT: Final = 5
_SHARES: Final = (0.1, 0.05, 0.02)
_MOST_NODES: Final = 5000
_MOST_STEPS: Final = 50
_STEPS: Final = 10
_TOLERANCE: Final = 1e-5
"""Of directions that rounding has made; holders compute in single precision."""
_WIDE: Final = 4000


def attribute(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """The adversary knows an attribute of some nodes, and trains a classifier from rows to it (Duddu et al. 2020)."""
    if evidence.rows is None:
        raise DataError(f"{evidence.words}: there are no rows")
    rows = evidence.rows
    return _infer_all(lambda column: rows, case, adversary, target)


def from_release(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """What nodes released of a column, perturbed, and the mean of it over neighbours, in which noise cancels."""
    releases = [seen.tensor() for seen in evidence.messages]
    edges = case.own_edges(adversary)
    count = releases[-1].shape[0]
    mean = sp.csr_matrix((np.ones(edges.shape[1]), (edges[1], edges[0])), shape=(count, count))
    mean = sp.diags(1 / np.maximum(np.asarray(mean.sum(axis=1))[:, 0], 1)) @ mean

    def rows(column: int) -> Floats:
        own = np.mean([_released_column(each, column) for each in releases if len(each) == count], axis=0)
        return np.stack([own, mean @ own, mean @ (mean @ own)], axis=1)

    return _infer_all(rows, case, adversary, target)


def reconstruction(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """All opened h^0 together, with the adversary's own features, span the target's columns, and complete them."""
    attributes, (auxiliary, asked) = attacked(case, target), known_nodes(case, target)
    columns = np.stack([each.values[asked] for each in attributes], axis=1).astype(np.float64)
    known = auxiliary[asked]
    own = case.own_rows(adversary, target)
    span = sequence_basis(
        np.stack([step[asked] for step in evidence.steps[:_MOST_STEPS]]),
        None if own is None else own[asked],
        tolerance=_TOLERANCE,
    )
    pooled = case.pooled_rows(target, [each.column for each in attributes])

    def completed(rows: Floats) -> Floats:
        found = complete_columns(rows, columns, known)
        return np.concatenate([ranks(found[~known, place]) for place in range(columns.shape[1])])

    return Outcome(
        completed(span),
        np.concatenate([columns[~known, place] > 0 for place in range(columns.shape[1])]),
        without=None if own is None else completed(own[asked]),
        pooled=None if pooled is None else completed(pooled[asked]),
        note=f"{len(attributes)} columns, each known of {KNOWN:.0%} of the nodes; the opened h0 span "
        f"{span.shape[1]} dimensions. Pooled: from all other columns, and no bound: the span has the column itself.",
    )


def similarity(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Which nodes have like features at the target: inner products from how h^0 changes with its own gradients."""
    pairs = case.alike(target)
    own = case.own_rows(adversary, target)
    count = min(len(evidence.steps) - 1, len(evidence.updates), _STEPS)
    if count > 0 and len(evidence.steps[0]) <= MAX_NODES:
        first = projected_gram(evidence.steps[0], 1.0)
        steps, updates = np.stack(evidence.steps[: count + 1]), np.stack(evidence.updates[:count])
        gram = gram_estimate(steps, updates, prior=first * _scale(first, steps, updates))
        scores, of = gram_scores(gram, pairs.pairs), "all that was opened"
    else:  # a matrix of all pairs would be too large, and the pairs that are asked about need none
        scores, of = pair_products(evidence.steps[0], pairs.pairs), "the first h0 alone"
    return Outcome(
        scores,
        pairs.truth,
        without=None if own is None else pair_products(own, pairs.pairs),
        note=f"Pairs of nodes whose features at the target have inner products among the highest {ALIKE:.0%}, "
        f"from {of}.",
    )


def _scale(gram: Floats, steps: Floats, updates: Floats) -> float:
    """Of a Gram matrix in another unit: what makes −scale·gram·B fit the changes of h^0 best."""
    expected = np.stack([-gram @ update for update in updates])
    return float((expected * np.diff(steps, axis=0)).sum() / ((expected**2).sum() or 1.0))


def _released_column(released: Tensor, column: int) -> Floats:
    """What every node says of a column: −1, 1 or, where it was not asked, 0; or a noisy value."""
    if released.dtype == torch.int64:  # 1 + column, with the value's sign
        return np.asarray(((released == column + 1).sum(dim=1) - (released == -column - 1).sum(dim=1)).double().numpy())
    values = released[:, column].double()
    return np.asarray((values - 1 if released.dtype == torch.uint8 else values).numpy())


def _infer_all(rows: Callable[[int], Floats], case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Attribute inference of several of the target's columns, from rows [N, d] for each, ranked by itself."""
    attributes = attacked(case, target)
    auxiliary, asked = known_nodes(case, target)
    pooled = case.pooled_rows(target, [each.column for each in attributes])
    return Outcome(
        _ranked(rows, case, target),
        np.concatenate([each.values[asked & ~auxiliary] for each in attributes]),
        without=own_inference(case, adversary, target),
        pooled=None
        if pooled is None
        else case.once(("attribute", "pooled", target), lambda: _ranked(lambda column: pooled, case, target)),
        note=f"{len(attributes)} columns, each known of {KNOWN:.0%} of the nodes. Pooled: from all other columns.",
    )


def own_inference(case: Case, adversary: PartyId, target: PartyId) -> Floats | None:
    """Attribute inference from the adversary's own features, None where it has none."""
    own = case.own_rows(adversary, target)
    if own is None:
        return None
    return case.once(("attribute", "own", adversary, target), lambda: _ranked(lambda column: own, case, target))


def _ranked(rows: Callable[[int], Floats], case: Case, target: PartyId) -> Floats:
    auxiliary, asked = known_nodes(case, target)
    return np.concatenate(
        [ranks(_inferred(rows(each.column), each, auxiliary, asked, case.seed)) for each in attacked(case, target)]
    )


def attacked(case: Case, target: PartyId) -> list[Attribute]:
    """The columns of a holder that are attacked.

    Raises:
        DataError: none has enough nodes of either value.
    """
    features = case.graph(target).features
    if features.layout == torch.sparse_csr:
        dense = to_scipy(features)[:, :_WIDE].toarray()
    else:
        dense = features[:, :_WIDE].numpy()
    for share in _SHARES:
        if found := choose_attributes(dense, count=_COUNT, min_share=share):
            return found
    raise DataError(f"{target} has no column that at least {_SHARES[-1]:.0%} of its nodes have and as many have not")


def known_nodes(case: Case, target: PartyId) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The nodes whose attribute the adversary knows, and those that the attack is about, both [N] bool."""
    count = case.graph(target).num_nodes
    chosen = np.ones(count, dtype=np.bool_)
    if count > _MOST_NODES:
        chosen[:] = False
        chosen[np.random.default_rng(case.seed).choice(count, size=_MOST_NODES, replace=False)] = True
    auxiliary = np.zeros(count, dtype=np.bool_)
    auxiliary[chosen] = auxiliary_nodes(int(chosen.sum()), KNOWN, seed=case.seed)
    return auxiliary, chosen


def _inferred(
    rows: Floats, attribute: Attribute, auxiliary: NDArray[np.bool_], asked: NDArray[np.bool_], seed: int
) -> Floats:
    return infer_attribute(rows[asked], attribute.values[asked], auxiliary[asked], seed=seed).scores


def ranks(scores: Floats) -> Floats:
    """Scores of one column as shares of the targets that are below."""
    return np.asarray(rankdata(scores) / len(scores))


ATTRIBUTE: Final = Attack("features", ("embedding", "initial", "posteriors", "beside", "masked"), attribute)
FROM_RELEASE: Final = Attack("features", ("releases",), from_release)
RECONSTRUCTION: Final = Attack("features", ("initial",), reconstruction)
SIMILARITY: Final = Attack("features", ("initial",), similarity, blind=True, of_all_pairs=True)
