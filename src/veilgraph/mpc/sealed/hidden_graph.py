"""What each party has of a holder's hidden edges, and what it computes of a hop over them (``hops``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.correlations import sum_parts
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.permutations import Steps, add_rows, differences, take_rows
from veilgraph.mpc.sealed.row_keys import expand_rows

Draw: TypeAlias = Callable[[Sequence[Form]], list[Tensor]]
"""Gives the next uniform tensors of a stream."""
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
        keys: of slots, for each holder but the owner: after the first step its own, at the owner all of empty slots,
            and any at heads; at the dealer, in the random order, all of heads. Of a dealer's edges only the first two
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


def needed_of(graph: HiddenGraph, corrections: Sequence[Tensor]) -> list[Tensor]:
    """Return what the owner needs of ``corrections_of``: rows of its heads, and those that it picks: [N, columns]."""
    assert graph.own is not None
    first, second = corrections
    return [take_rows(first, graph.own.heads), take_rows(second, graph.steps.pick)]


def own_share(graph: HiddenGraph, step: int, needed: Sequence[Tensor], received: Iterable[Tensor]) -> Tensor:
    """Return the owner's share of (A + I)·λ, [N, columns], from ``needed_of`` and others' ``masked_rows``.

    ``step`` is the number of the operation, as at the others; ``received`` are taken when they are needed.
    """
    assert graph.own is not None
    (heads, picked), own, weights = needed, graph.own, graph.own.weights
    spread = sum_parts(expand_rows(keys, step, heads) for keys in graph.keys).neg_()
    spread[own.places] = heads
    rows = take_rows(spread.cumsum_(0), own.turn)
    del spread
    others = received if weights is None else list(received)
    for masked in others:
        add_rows(rows, masked if weights is None else masked[0], own.random_turn)
    if weights is not None:
        rows *= weights
        for masked in others:
            rows -= take_rows(masked[1], own.random_turn)
    picked += take_rows(rows.cumsum_(0), own.pick)
    return differences(picked)


def masked_rows(graph: HiddenGraph, step: int, draw: Draw, form: Form) -> tuple[Tensor, Tensor]:
    """Return the rows that go to the owner, and the share of (A + I)·λ, [N, columns], of a holder that has this draw.

    ``form`` is that of the rows. What is drawn is let go of as it has been used.
    """
    like = torch.empty((0, form[0][1]), dtype=form[1])
    masked = take_rows(expand_rows(graph.keys[0], step, like).cumsum_(0), graph.steps.turn)
    mask = draw([form])[0]
    masked += mask
    if graph.weights is None:
        del mask
    share = differences(take_rows(draw([form])[0], graph.steps.pick))
    if graph.weights is not None:
        masked = torch.stack([masked, graph.weights * mask + draw([form])[0]])
    return masked, share


def corrections_of(graph: HiddenGraph, step: int, mask: Tensor, draws: Sequence[Draw], form: Form) -> list[Tensor]:
    """Return what completes the owner's share of (A + I)·``mask``, of what the others draw: rows of heads, and of all.

    That is [N, columns] and [n, columns].
    """
    turned, pick_shares = (sum_parts(draw([form])[0] for draw in draws) for _ in range(2))
    if graph.weights is not None:
        turned = graph.weights * turned - sum_parts(draw([form])[0] for draw in draws)
    spread_shares = sum_parts(expand_rows(keys, step, mask) for keys in graph.keys)
    picked = take_rows(turned, graph.steps.turn).cumsum_(0).neg_()
    del turned
    heads = take_rows(differences(mask), graph.steps.spread) - spread_shares
    dealt = take_rows(picked, graph.steps.pick)
    dealt -= pick_shares
    return [heads, dealt]
