"""What each party has of a holder's hidden edges, and what it computes of a hop over them (``hops``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.correlations import sum_parts
from veilgraph.mpc.sealed.permutations import Steps, differences, take_rows
from veilgraph.mpc.sealed.row_keys import expand_rows

_NO_STEPS: Final = Steps(*[torch.empty(0, dtype=torch.int64)] * 3)


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """What the owner alone has: two of its steps, the random turn that it shares with the dealer, and weights of slots.

    ``places`` are those of heads after the first step, and ``heads`` which of the heads that are dealt comes to each.
    """

    turn: Tensor
    pick: Tensor
    random_turn: Tensor
    places: Tensor
    heads: Tensor
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class HiddenGraph:
    """Directed edges that one holder knows, of a public padded number; what each party has of them is its own.

    Attributes:
        owner: who knows them.
        nodes: N.
        slots: n, of the nodes and the padded edges.
        weight_bits: 0: every edge counts once; else weights are hidden.
        steps: at the dealer random permutations that the owner has as well, at a holder the steps relative to them. Of
            a dealer's own edges the first holder has the random ones, the second the relative ones, and others none.
            Random ones of ``spread`` are the nodes of the heads alone, in their order: [N]. Relative ones are empty:
            what comes of keys is in the order after them.
        weights: where ``steps`` are random the mask u of weights, else E: [n, 1].
        keys: of slots, for each holder but the owner: after the first step its own, at the owner all of empty slots and
            zeros at heads; at the dealer, in the random order, all of heads. Of a dealer's edges only the first two
            holders have some, which are the same.
        own: at the owner alone.
        adjacency: at the owner, and in the twin, where everybody sees the edges: what each counts, target by source.
    """

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int
    steps: Steps = _NO_STEPS
    weights: Tensor | None = None
    keys: Sequence[Tensor] = ()
    own: OwnEdges | None = None
    adjacency: sp.csr_array | None = None


def own_share(graph: HiddenGraph, step: int, corrections: Iterable[Tensor], received: Iterable[Tensor]) -> Tensor:
    """Return the owner's share of (A + I)·λ, [N, columns], from ``corrections_of`` and others' ``masked_rows``.

    ``step`` is the number of the operation, as at the others.
    """
    assert graph.own is not None
    (first, second), own, weights, others = corrections, graph.own, graph.own.weights, list(received)
    spread = sum_parts(expand_rows(keys, step, second) for keys in graph.keys).neg_()
    spread[own.places] = take_rows(first, own.heads)
    rows = take_rows(spread.cumsum_(0), own.turn)
    del spread
    for masked in others:
        rows += take_rows(masked if weights is None else masked[0], own.random_turn)
    if weights is not None:
        rows *= weights
        for masked in others:
            rows -= take_rows(masked[1], own.random_turn)
    picked = take_rows(rows.cumsum_(0), own.pick)
    picked += take_rows(second, graph.steps.pick)
    return differences(picked)


def masked_rows(graph: HiddenGraph, step: int, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows that go to the owner, and the share of (A + I)·λ, [N, columns], of a holder that drew these."""
    mask, picked, *more = drawn
    masked = take_rows(expand_rows(graph.keys[0], step, mask).cumsum_(0), graph.steps.turn)
    masked += mask
    if graph.weights is not None:
        masked = torch.stack([masked, graph.weights * mask + more[0]])
    return masked, differences(take_rows(picked, graph.steps.pick))


def corrections_of(graph: HiddenGraph, step: int, mask: Tensor, draws: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return what completes the owner's share of (A + I)·``mask``, of what the others drew: rows of heads, and of all.

    That is [N, columns] and [n, columns].
    """
    turned, pick_shares, *more = map(sum_parts, zip(*draws, strict=True))
    if graph.weights is not None:
        turned = graph.weights * turned - more[0]
    spread_shares = sum_parts(expand_rows(keys, step, mask) for keys in graph.keys)
    picked = take_rows(turned, graph.steps.turn).cumsum_(0).neg_()
    heads = take_rows(differences(mask), graph.steps.spread) - spread_shares
    dealt = take_rows(picked, graph.steps.pick)
    dealt -= pick_shares
    return [heads, dealt]
