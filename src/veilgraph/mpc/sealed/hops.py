"""Operations on rows: hops over hidden edges, and picks of hidden rows.

Hidden edges become three fixed permutations, so that sums over neighbours need no index that is secret.

A graph of N nodes and Ē padded edges has n = N + Ē slots: one of every node, its head, and one of every edge. What is
summed is x [N, d]:

    spread  row k of x minus row k − 1 goes to the head of k, where its out-edges' slots follow; a prefix sum then
            leaves x_k in all of them
    turn    slots are brought into the order of their targets, with the head of a node behind the edges into it
    pick    a prefix sum, its values at the heads, and their differences: x_v and the sum over the edges into v

Each step is a permutation that the owner knows. It is made of a random one that the owner and the dealer know and one
relative to it, uniform, which the owner tells the other holders once.

Weights w of edges are multiplied with what lies in the slots after the turn. In the order before a random turn, the
owner tells the others E = w' − u once, for a u that the dealer knows: uniform to them. A holder sends t + m, its rows,
and E·m + m'. From them the owner makes w'·(t + m) − (E·m + m') = w'·t + u·m − m', of which the dealer knows u·m − m'
and deals it away. The dealer never sees E, nor the owner m or m'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.collectives import broadcast, gather, receive_as
from veilgraph.mpc.ring import encode
from veilgraph.mpc.sealed.correlations import REMEDY, Dealer, Form, Holder, Operation, Round, check_places, sum_parts
from veilgraph.mpc.sealed.wire import Summands, Wire

CHUNK_BYTES: Final = 8 << 20  # of the rows of a hop that are in hand at a time


@dataclass(frozen=True)
class Steps:
    """Indices of the three steps, [n], [n] and [N]: entry s of the result is entry ``spread[s]`` of what went in."""

    spread: Tensor
    turn: Tensor
    pick: Tensor

    def compact(self) -> Steps:
        """The same steps as int32 where places fit: a party has those of every holder's edges, all session long."""
        return Steps(*(_int32_if_small(step, self.spread.numel()) for step in (self.spread, self.turn, self.pick)))


def _int32_if_small(places: Tensor, slots: int) -> Tensor:
    return places.to(torch.int32) if slots < 1 << 31 else places


def weights_of(steps: Steps, edges: Tensor, weights: Tensor, one: int) -> Tensor:
    """Return each slot's weight in the order of targets: int64 [n], ``one`` at the heads and 0 in padding."""
    by_target = torch.argsort(edges[1], stable=True)
    found = torch.zeros(steps.turn.numel(), dtype=torch.int64)
    found[steps.pick] = one
    found[edges[1][by_target] + torch.arange(edges.shape[1])] = weights[by_target]
    return found


def steps_of(edges: Tensor, nodes: int, padded: int) -> Steps:
    """Compute the steps of edges, int64 [2, E] sources and targets in any order; N nodes, Ē ≥ E padded edges."""
    count, slots = edges.shape[1], nodes + padded
    all_nodes = torch.arange(nodes)
    by_source = torch.argsort(edges[0], stable=True)
    sources = edges[0][by_source]
    heads = all_nodes + torch.searchsorted(sources, all_nodes)
    edge_slots = torch.empty(count, dtype=torch.int64)
    edge_slots[by_source] = sources + 1 + torch.arange(count)
    spread = torch.empty(slots, dtype=torch.int64)
    is_head = torch.zeros(slots, dtype=torch.bool)
    is_head[heads] = True
    spread[heads] = all_nodes
    spread[~is_head] = torch.arange(nodes, slots)
    by_target = torch.argsort(edges[1], stable=True)
    targets = edges[1][by_target]
    pick = all_nodes + torch.searchsorted(targets, all_nodes, right=True)
    turn = torch.empty(slots, dtype=torch.int64)
    turn[pick] = heads
    turn[targets + torch.arange(count)] = edge_slots[by_target]
    turn[nodes + count :] = torch.arange(nodes + count, slots)
    return Steps(spread, turn, pick)


def orders(slots: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Forms of the uniform int64 tensors, [slots] each, that ``shuffled`` makes the three permutations of."""
    return [((slots,), torch.int64)] * 3


def shuffled(numbers: Tensor) -> Tensor:
    """The permutation that sorts uniform numbers of 64 bits: int64 [size], uniform up to a chance below size²/2^65."""
    return torch.argsort(numbers, stable=True)


def inverse(permutation: Tensor) -> Tensor:
    """The permutation that undoes another."""
    undone = torch.empty_like(permutation)
    undone[permutation] = torch.arange(permutation.numel())
    return undone


def rest_after(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by after a random permutation, so that both together are ``step``."""
    return inverse(random)[step]


def rest_before(step: Tensor, random: Tensor) -> Tensor:
    """Return the index to take rows by before a random permutation, so that both together are ``step``."""
    return step[inverse(random)]


def take_rows(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows by their number: ``rows[index]``. numpy's gather is twice as fast as torch's here."""
    return torch.from_numpy(np.take(rows.numpy(), index.numpy(), 0))


def differences(rows: Tensor) -> Tensor:
    """Every row minus the one before it."""
    out = rows.clone()
    out[1:] -= rows[:-1]
    return out


def prefix_sums(rows: Tensor) -> Tensor:
    """Prefix sums of rows, in their ring."""
    return torch.cumsum(rows, 0, dtype=rows.dtype)


_NO_STEPS: Final = Steps(*[torch.empty(0, dtype=torch.int64)] * 3)


@dataclass(frozen=True, eq=False)
class _OwnEdges:
    """What the owner alone has: its steps, the random turn that it shares with the dealer, and weights of slots."""

    steps: Steps
    random_turn: Tensor
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class HiddenGraph:
    """Directed edges that one holder knows, of a public padded number; what each party has of them is its own.

    Attributes:
        owner: who knows them.
        nodes: N.
        slots: n, of the nodes and the padded edges.
        weight_bits: 0: every edge counts once; else weights are hidden.
        steps: at the dealer random permutations that the owner has as well, at a holder the steps relative to them.
        weights: at the dealer the mask u of weights, at a holder E, which all know: [n, 1].
        own: at the owner alone.
        adjacency: at the owner, and in the twin, where everybody sees the edges: what each counts, target by source.
    """

    owner: PartyId
    nodes: int
    slots: int
    weight_bits: int
    steps: Steps = _NO_STEPS
    weights: Tensor | None = None
    own: _OwnEdges | None = None
    adjacency: sp.csr_array | None = None


@dataclass(frozen=True, eq=False)
class Hide(Operation[HiddenGraph]):
    """One holder puts edges in: see ``Machine.hidden_graph``."""

    owner: PartyId
    edges: Tensor | None
    nodes: int
    padded: int
    weights: Tensor | None
    weight_bits: int

    @property
    def _graph(self) -> HiddenGraph:
        return HiddenGraph(self.owner, self.nodes, self.nodes + self.padded, self.weight_bits)

    @property
    def _lengths(self) -> list[int]:
        slots = self.nodes + self.padded
        return [slots, slots, self.nodes, *([slots] if self.weight_bits else [])]

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        return [[((self.owner,), holders, 8 * sum(self._lengths))]]

    @override
    def hold(self, holder: Holder) -> HiddenGraph:
        """Return what this holder has of the graph: the owner's edges, or the relative steps that the owner sends."""
        tag, graph = holder.next(Kind.PLACEMENT), self._graph
        if holder.party == self.owner:
            return self._own(holder, tag, graph)
        relative = receive_as(holder.link, self.owner, tag, (sum(self._lengths),), torch.int64)
        check_places(relative[: 2 * graph.slots + self.nodes], graph.slots, self.owner)
        spread, turn, pick, *masked = torch.split(relative, self._lengths)
        kept = Steps(spread, turn, pick).compact()
        return replace(graph, steps=kept, weights=masked[0][:, None].clone() if masked else None)

    def _own(self, holder: Holder, tag: Tag, graph: HiddenGraph) -> HiddenGraph:
        """Do the owner's part of ``hold``: send steps relative to the random ones; ``ConfigError``: too many edges."""
        edges, owner, one = self.edges, self.owner, 1 << self.weight_bits
        if edges is None or edges.shape[1] > self.padded:
            count = 0 if edges is None else edges.shape[1]
            raise ConfigError(
                f"padded={self.padded}: {owner} has {count:,} edges; raise it", key="padded", value=self.padded
            )
        steps = steps_of(edges, self.nodes, self.padded)
        spread, turn, pick = map(shuffled, holder.drawn(orders(graph.slots)))
        relative = Steps(rest_after(steps.spread, spread), rest_before(steps.turn, turn), rest_after(steps.pick, pick))
        sent, counts = [relative.spread, relative.turn, relative.pick], np.ones(edges.shape[1], np.int32)
        own_weights = masked = None
        if self.weight_bits:
            whole = torch.full((edges.shape[1],), one)
            if self.weights is not None:
                whole = encode(self.weights, self.weight_bits, f"{owner}'s edge weights", REMEDY)
            counts, own_weights = whole.numpy(), weights_of(steps, edges, whole, one)[:, None]
            (mask,) = holder.drawn([((graph.slots, 1), torch.int64)])
            masked = take_rows(own_weights, inverse(turn)) - mask
            sent.append(masked[:, 0])
        broadcast(holder.link, holder.others, tag, torch.cat(sent))
        own = _OwnEdges(steps.compact(), _int32_if_small(turn, graph.slots), own_weights)
        adjacency = _adjacency(edges, counts, self.nodes)
        return replace(graph, steps=relative.compact(), weights=masked, own=own, adjacency=adjacency)

    @override
    def deal(self, dealer: Dealer) -> HiddenGraph:
        """Return the dealer's graph: the random permutations, and the mask of weights, that the owner draws too."""
        dealer.next()
        graph = self._graph
        steps = Steps(*map(shuffled, dealer.draw(self.owner, orders(graph.slots)))).compact()
        mask = dealer.draw(self.owner, [((graph.slots, 1), torch.int64)])[0] if self.weight_bits else None
        return replace(graph, steps=steps, weights=mask)

    @override
    def plain(self) -> HiddenGraph:
        assert self.edges is not None
        weights = np.ones(self.edges.shape[1]) if self.weights is None else self.weights.to(torch.float64).numpy()
        return replace(self._graph, adjacency=_adjacency(self.edges, weights, self.nodes))


def _adjacency(edges: Tensor, counts: np.ndarray[Any, np.dtype[Any]], nodes: int) -> sp.csr_array:
    return sp.csr_array((counts, (edges[1].numpy(), edges[0].numpy())), shape=(nodes, nodes))


@dataclass(frozen=True, eq=False)
class Hop(Operation[Summands]):
    """``Machine.hop`` as an operation; ``ValueError``: there is no graph, or their weights differ in bits."""

    graphs: Sequence[HiddenGraph]
    wire: Wire

    def __post_init__(self) -> None:
        if len({graph.weight_bits for graph in self.graphs}) != 1:
            raise ValueError("a hop is over one graph or more, with edge weights of as many bits; take a hop for each")

    @property
    def weight_bits(self) -> int:
        """Fractional bits of edge weights, the same in all graphs; 0: every edge counts once."""
        return self.graphs[0].weight_bits

    @property
    def _portions(self) -> Iterator[list[tuple[HiddenGraph, slice]]]:
        """Yield portions: each graph with its next columns, so many that their rows stay below ``CHUNK_BYTES``."""
        columns = self.wire.shape[1]

        def chunks(graph: HiddenGraph) -> Iterator[slice]:
            width = max(1, CHUNK_BYTES // (4 * graph.slots))
            return (slice(start, min(start + width, columns)) for start in range(0, columns, width))

        for parts in zip_longest(*map(chunks, self.graphs)):
            yield [(graph, part) for graph, part in zip(self.graphs, parts, strict=True) if part is not None]

    def _form(self, graph: HiddenGraph, columns: slice) -> Form:
        return (graph.slots, columns.stop - columns.start), self.wire.mask.dtype

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        copies = (2 if self.weight_bits else 1) * self.wire.ring // 8
        portions = [
            [(holders, (graph.owner,), copies * graph.slots * (part.stop - part.start)) for graph, part in portion]
            for portion in self._portions
        ]
        # An owner waits for others' portions before it sends its own.
        waits = len({graph.owner for graph in self.graphs}) > 1
        return portions if waits else [list(chain(*portions))]

    @override
    def hold(self, holder: Holder) -> Summands:
        """Add up this holder's own edges in the clear, and take off its shares of (A + I)·λ of all graphs."""
        public, mask = self.wire.known, self.wire.mask
        total = ((len(self.graphs) - 1) << self.weight_bits) * mask
        if holder.leads:
            total += public << self.weight_bits
        self._add_sums(total, public)
        for portion in self._portions:
            parts = [(holder.next(Kind.MASKED_ROWS), *part) for part in portion]
            # What others wait for goes out before anything is waited for.
            for tag, graph, columns in sorted(parts, key=lambda part: part[1].owner == holder.party):
                form = self._form(graph, columns)
                total[:, columns] -= (_own_share if graph.own else _other_share)(holder, graph, tag, form)
        return Summands(total, self.wire.bits + self.weight_bits)

    @override
    def deal(self, dealer: Dealer) -> Summands:
        """Deal each graph's owner what its share of (A + I)·λ lacks; the dealer's own summand is zero."""
        for graph, columns in chain(*self._portions):
            _deal_share(dealer, graph, self.wire.mask[:, columns], self._form(graph, columns))
        return Summands(torch.zeros_like(self.wire.mask), self.wire.bits + self.weight_bits)

    @override
    def plain(self) -> Summands:
        total = self.wire.known.clone()
        self._add_sums(total, self.wire.known)
        return Summands(total, self.wire.bits + self.weight_bits)

    def _add_sums(self, total: Tensor, known: Tensor) -> None:
        """Add to ``total`` sums of ``known`` over the edges that this party sees: its own, or in the twin all."""
        for graph in self.graphs:
            if graph.adjacency is not None:
                total += torch.from_numpy(graph.adjacency @ known.numpy())


def _own_share(holder: Holder, graph: HiddenGraph, tag: Tag, form: Form) -> Tensor:
    """Return the owner's share of (A + I)·λ, [N, columns], from what the dealer and the other holders send."""
    assert graph.own is not None
    first, second = holder.dealt(tag, [form] * 2)
    weights, (size, dtype) = graph.own.weights, form
    received = gather(holder.link, holder.others, tag, size if weights is None else (2, *size), dtype)
    rows = take_rows(prefix_sums(take_rows(first, graph.steps.spread)), graph.own.steps.turn)
    for masked in received.values():
        rows += take_rows(masked if weights is None else masked[0], graph.own.random_turn)
    if weights is not None:
        rows *= weights
        for masked in received.values():
            rows -= take_rows(masked[1], graph.own.random_turn)
    picked = take_rows(prefix_sums(rows), graph.own.steps.pick)
    return differences(picked + take_rows(second, graph.steps.pick))


def _other_share(holder: Holder, graph: HiddenGraph, tag: Tag, form: Form) -> Tensor:
    """Send the owner masked rows, and return this holder's share of (A + I)·λ, [N, columns]."""
    spread, mask, picked, *more = holder.drawn([form] * (4 if graph.weight_bits else 3))
    masked = take_rows(prefix_sums(take_rows(spread, graph.steps.spread)), graph.steps.turn) + mask
    if graph.weights is not None:
        masked = torch.stack([masked, graph.weights * mask + more[0]])
    holder.link.send(graph.owner, tag, masked)
    return differences(take_rows(picked, graph.steps.pick))


def _deal_share(dealer: Dealer, graph: HiddenGraph, mask: Tensor, form: Form) -> None:
    """Send the owner two tensors of masks, of ``form``, that complete all shares of (A + I)·``mask``."""
    dealer.next()
    forms = [form] * (4 if graph.weight_bits else 3)

    def make() -> list[Tensor]:
        draws = [dealer.draw(holder, forms) for holder in dealer.others(graph.owner)]
        spread_shares, turned, pick_shares, *more = map(sum_parts, zip(*draws, strict=True))
        if graph.weights is not None:
            turned = graph.weights * turned - more[0]
        steps = torch.zeros(form[0], dtype=form[1])
        steps[: graph.nodes] = differences(mask)
        picked = -prefix_sums(take_rows(turned, graph.steps.turn))
        return [take_rows(steps, graph.steps.spread) - spread_shares, take_rows(picked, graph.steps.pick) - pick_shares]

    dealer.deal(graph.owner, [form] * 2, make)


@dataclass(frozen=True, eq=False)
class Pick(Operation[Summands]):
    """Rows of a wire that one holder chooses, [count] different ones, and nobody else knows."""

    owner: PartyId
    rows: Tensor | None
    count: int
    wire: Wire

    @property
    def _form(self) -> Form:
        return self.wire.shape, self.wire.mask.dtype

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        return [[((self.owner,), holders, 8 * self.count)]]

    @override
    def hold(self, holder: Holder) -> Summands:
        """Return this holder's summand of the rows; ``ConfigError``: the owner's are not ``count`` different ones."""
        tag, rows = holder.next(Kind.PLACEMENT), self.rows
        if holder.party != self.owner:
            relative = receive_as(holder.link, self.owner, tag, (self.count,), torch.int64)
            check_places(relative, self.wire.shape[0], self.owner)
            return Summands(-take_rows(holder.drawn([self._form])[0], relative), self.wire.bits)
        if rows is None:
            raise ConfigError(f"{self.owner} chooses rows and gives none: give {self.count}")
        if tuple(rows.shape) != (self.count,) or len(set(rows.tolist())) < self.count:
            raise ConfigError(
                f"{self.owner} chooses rows {list(rows.shape)}: give {self.count} different ones, as all know",
                key="rows",
            )
        random = shuffled(holder.drawn([((self.wire.shape[0],), torch.int64)])[0])
        relative = rest_after(rows, random)
        broadcast(holder.link, holder.others, tag, relative)
        (dealt,) = holder.dealt(tag, [self._form])
        return Summands(take_rows(self.wire.known, rows) - take_rows(dealt, relative), self.wire.bits)

    @override
    def deal(self, dealer: Dealer) -> Summands:
        """Deal the owner all rows of λ in its random order, less the others' shares; the own summand is zero."""
        dealer.next()
        random = shuffled(dealer.draw(self.owner, [((self.wire.shape[0],), torch.int64)])[0])

        def make() -> list[Tensor]:
            others = sum_parts(dealer.draw(holder, [self._form])[0] for holder in dealer.others(self.owner))
            return [take_rows(self.wire.mask, random) - others]

        dealer.deal(self.owner, [self._form], make)
        return Summands(self.wire.mask.new_zeros((self.count, *self.wire.shape[1:])), self.wire.bits)

    @override
    def plain(self) -> Summands:
        assert self.rows is not None
        return Summands(self.wire.known[self.rows], self.wire.bits)
