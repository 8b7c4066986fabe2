"""Hops over hidden edges.

Hidden edges become three fixed permutations, so that sums over neighbours need no index that is secret.

A graph of N nodes and Ē padded edges has n = N + Ē slots: one of every node, its head, and one of every edge. What is
summed is x [N, d]:

    spread  row k of x minus row k − 1 goes to the head of k, where its out-edges' slots follow; a prefix sum then
            leaves x_k in all of them
    turn    slots are brought into the order of their targets, with the head of a node behind the edges into it
    pick    a prefix sum, its values at the heads, and their differences: x_v and the sum over the edges into v

Each step is a permutation that the owner knows. It is made of a random one that the owner and the dealer know and one
relative to it, uniform, which the owner tells the other holders once.

What goes into the first step is 0 but at heads, and the dealer sends the owner rows of these N slots alone. Of every
slot another holder has a key, which the dealer has too, and its share of the slot's rows is what they expand to
(``row_keys``). Once the owner is told the keys of empty slots: there its own share is the others' with the other sign.
It knows the random order, and so which slots are empty. The other holder does not, nor the owner a key of a head.

Weights w of edges are multiplied with what lies in the slots after the turn. In the order before a random turn, the
owner tells the others E = w' − u once, for a u that the dealer knows: uniform to them. A holder sends t + m, its rows,
and E·m + m'. From them the owner makes w'·(t + m) − (E·m + m') = w'·t + u·m − m', of which the dealer knows u·m − m'
and deals it away. The dealer never sees E, nor the owner m or m'.

A dealer with data has edges of its own. Of v = Λ − λ it sums λ at home. For Λ the first holder, who knows it, does the
dealer's part, the dealer the owner's, and the second holder that of the others: the first has the random orders, the
second the relative ones, and what both draw the dealer does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import Kind, PartyId, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.mpc.ring import encode
from veilgraph.mpc.sealed.correlations import (
    REMEDY,
    Dealer,
    Holder,
    LinkedDealer,
    Operation,
    Round,
    check_places,
    size_of,
)
from veilgraph.mpc.sealed.hidden_graph import (
    Draw,
    HiddenGraph,
    OwnEdges,
    corrections_of,
    masked_rows,
    needed_of,
    own_share,
)
from veilgraph.mpc.sealed.kept_bytes import Form
from veilgraph.mpc.sealed.permutations import (
    Steps,
    int32_if_small,
    inverse,
    orders,
    rest_after,
    rest_before,
    shuffled,
    steps_of,
    take_rows,
    weights_of,
)
from veilgraph.mpc.sealed.row_keys import key_form
from veilgraph.mpc.sealed.wire import Summands, Wire

CHUNK_BYTES: Final = 8 << 20  # of the rows of a hop that are in hand at a time
FEWEST_COLUMNS: Final = 2  # of these at least: two are gathered in as long as one


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
    def graph(self) -> HiddenGraph:
        """What every party knows of it."""
        return HiddenGraph(self.owner, self.nodes, self.nodes + self.padded, self.weight_bits)

    @property
    def _lengths(self) -> list[int]:
        slots = self.nodes + self.padded
        return [slots, slots, self.nodes, *([slots] if self.weight_bits else [])]

    def _drawn(self, draw: Draw) -> Iterator[Tensor]:
        """Yield what the owner draws with whoever does the dealer's part: three orders, and the mask of any weights.

        The numbers of one order are let go of before those of the next are drawn.
        """
        slots = self.nodes + self.padded
        for form in orders(slots):
            yield int32_if_small(shuffled(*draw([form])), slots)
        if self.weight_bits:
            yield from draw([((slots, 1), torch.int64)])

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        if self.owner in holders:
            return [[((self.owner,), holders, 8 * sum(self._lengths))]]
        return [[(holders[:1], (self.owner,), size_of([key_form(self.padded)]))]]

    @override
    def hold(self, holder: Holder) -> HiddenGraph:
        """Return what this holder has of the graph: the owner's edges, or the relative steps that the owner sends."""
        tag, slots = holder.next(Kind.PLACEMENT), [key_form(self.graph.slots)]
        if holder.party == self.owner:
            graph, told = self._own(holder.drawn)
            broadcast(holder.link, holder.others, tag, told)
            spread = int32_if_small(told[: graph.slots], graph.slots)
            del told
            graph = self._with_keys(graph, spread, holder.dealt(tag, [key_form(self.padded)] * len(holder.others)))
            holder.turn()
            return graph
        size = (sum(self._lengths),)
        if holder.dealer != self.owner:
            holder.turn()
            return self._relative(partial(receive_as, holder.link, self.owner, tag, size, torch.int64), holder.drawn)
        graph = self.graph
        if holder.leads:
            graph, empty = self._random(holder.drawn, holder.drawn_in_pair(slots))
            holder.link.send(self.owner, Tag(Kind.MASKED_ROWS, tag.step), torch.cat(empty))
        elif holder.is_second:
            graph = self._relative(partial(holder.told, tag, size), holder.drawn_in_pair)
        holder.turn()
        return graph

    def _relative(self, receive: Callable[[], Tensor], draw: Draw) -> HiddenGraph:
        relative, slots = receive(), self.graph.slots
        check_places(relative[: 2 * slots + self.nodes], slots, self.owner)
        steps, masked = Steps(*self._split(relative)), relative[2 * slots + self.nodes :, None].clone()
        del relative
        kept, (keys,) = replace(steps, spread=steps.spread[:0].clone()), draw([key_form(slots)])
        weights = masked if self.weight_bits else None
        return replace(self.graph, steps=kept, weights=weights, keys=[take_rows(keys, steps.spread)])

    def _split(self, told: Tensor) -> list[Tensor]:
        """Return the three steps, in memory of their own, out of all that the owner tells."""
        return [int32_if_small(part, self.graph.slots).clone() for part in torch.split(told, self._lengths)[:3]]

    def _random(self, draw: Draw, keys: Sequence[Tensor]) -> tuple[HiddenGraph, list[Tensor]]:
        """Return what the dealer has of the graph, and the keys of empty slots, [Ē, 2] of each of ``keys`` [n, 2]."""
        order, turn, pick, *mask = self._drawn(draw)
        is_head = order < self.nodes
        graph = replace(self.graph, steps=Steps(order[is_head], turn, pick), weights=mask[0] if mask else None)
        return replace(graph, keys=[each[is_head] for each in keys]), [each[~is_head] for each in keys]

    def own_edges(self) -> tuple[HiddenGraph, Tensor]:
        """Return the owner's graph with its edges alone, and what each counts; ``ConfigError``: there are too many."""
        edges, owner = self.edges, self.owner
        if edges is None or edges.shape[1] > self.padded:
            count = 0 if edges is None else edges.shape[1]
            raise ConfigError(
                f"padded={self.padded}: {owner} has {count:,} edges; raise it", key="padded", value=self.padded
            )
        kind = torch.int64 if self.weight_bits else torch.int32
        counts = torch.full((edges.shape[1],), 1 << self.weight_bits, dtype=kind)
        if self.weights is not None and self.weight_bits:
            counts = encode(self.weights, self.weight_bits, f"{owner}'s edge weights", REMEDY)
        return replace(self.graph, adjacency=_adjacency(edges, counts.numpy(), self.nodes)), counts

    def _own(self, draw: Draw) -> tuple[HiddenGraph, Tensor]:
        """Return the owner's graph, and what it tells others: int64; errors as of ``own_edges``."""
        (graph, counts), edges = self.own_edges(), self.edges
        assert edges is not None
        steps, drawn = steps_of(edges, self.nodes, self.padded), self._drawn(draw)
        told = torch.empty(sum(self._lengths), dtype=torch.int64)
        spread, turn, pick, *masked = torch.split(told, self._lengths)
        spread[:] = rest_after(steps.spread, next(drawn))
        random_turn = next(drawn)
        turn[:] = rest_before(steps.turn, random_turn)
        pick[:] = rest_after(steps.pick, next(drawn))
        kept = Steps(spread[:0].clone(), turn[:0].clone(), int32_if_small(pick, graph.slots).clone())
        weights = None
        if self.weight_bits:
            weights = weights_of(steps, edges, counts, 1 << self.weight_bits)[:, None]
            masked[0][:] = (take_rows(weights, inverse(random_turn)) - next(drawn))[:, 0]
        places = torch.nonzero(steps.spread < self.nodes)[:, 0]
        heads = torch.argsort(torch.argsort(spread[places]))
        small = [int32_if_small(each, graph.slots) for each in (steps.turn, steps.pick, random_turn, places, heads)]
        own = OwnEdges(small[0], small[1], small[2], small[3], small[4], weights)
        mask = masked[0][:, None].clone() if masked else None
        return replace(graph, steps=kept, weights=mask, own=own), told

    def _with_keys(self, graph: HiddenGraph, spread: Tensor, dealt: Sequence[Tensor]) -> HiddenGraph:
        """Return the owner's graph with the ``dealt`` keys of empty slots, in the order after the first step."""
        assert graph.own is not None
        heads, is_empty = graph.own.places, torch.ones(graph.slots, dtype=torch.int32)
        is_empty[spread[heads]] = 0  # in the random order
        which = take_rows(is_empty.cumsum_(0).sub_(1).clamp_(0), spread)
        found = [take_rows(keys, which) if len(keys) else keys.new_zeros((graph.slots, 2)) for keys in dealt]
        return replace(graph, keys=found)

    @override
    def deal(self, dealer: Dealer) -> HiddenGraph:
        """Return the dealer's graph: the random permutations, and the mask of weights, that the owner draws too.

        Of its own edges, whose random permutations the first holder has as well, it tells the second.
        """
        dealer.next()
        if self.owner != dealer.party:
            return self._deal_owner(dealer)
        draw = partial(dealer.draw, dealer.holders[0])
        graph, told = dealer.own(lambda _: self._own(draw)) or (self.graph, None)
        dealer.tell(Kind.PLACEMENT, dealer.holders[1:2], (sum(self._lengths),), told)
        form = key_form(self.padded)
        keys = dealer.own(lambda linked: linked.receive(dealer.holders[0], Kind.MASKED_ROWS, form))
        return graph if keys is None or told is None else self._with_keys(graph, told[: graph.slots], [keys])

    def _deal_owner(self, dealer: Dealer) -> HiddenGraph:
        """Deal the owner the others' keys of empty slots; return what the dealer has of the graph."""
        draw, others = partial(dealer.draw, self.owner), dealer.others(self.owner)
        keys = [dealer.draw(holder, [key_form(self.graph.slots)])[0] for holder in others]
        graph, empty = dealer.own(lambda _: self._random(draw, keys)) or (self.graph, [])
        dealer.deal(self.owner, [key_form(self.padded)] * len(others), lambda: empty)
        return graph

    @override
    def plain(self) -> HiddenGraph:
        assert self.edges is not None
        weights = np.ones(self.edges.shape[1]) if self.weights is None else self.weights.to(torch.float64).numpy()
        return replace(self.graph, adjacency=_adjacency(self.edges, weights, self.nodes))


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
            width = max(FEWEST_COLUMNS, CHUNK_BYTES // (4 * graph.slots))
            return (slice(start, min(start + width, columns)) for start in range(0, columns, width))

        for parts in zip_longest(*map(chunks, self.graphs)):
            yield [(graph, part) for graph, part in zip(self.graphs, parts, strict=True) if part is not None]

    def _form(self, graph: HiddenGraph, columns: slice) -> Form:
        return (graph.slots, columns.stop - columns.start), self.wire.mask.dtype

    @override
    def rounds(self, holders: Sequence[PartyId]) -> Sequence[Round]:
        copies, number = (2 if self.weight_bits else 1), self.wire.ring // 8

        def sent(graph: HiddenGraph, part: slice) -> Round:
            columns = part.stop - part.start
            size, dealt = (number * columns * rows for rows in (graph.slots, graph.nodes + graph.slots))
            if graph.owner in holders:
                return [(holders, (graph.owner,), copies * size)]
            return [(holders[:1], (graph.owner,), dealt), (holders[1:2], (graph.owner,), copies * size)]

        portions = [list(chain(*(sent(*part) for part in portion))) for portion in self._portions]
        return portions if self._owners_wait else [list(chain(*portions))]

    @property
    def _owners_wait(self) -> bool:
        """Whether an owner waits for others' rows before it sends its next ones."""
        return len({graph.owner for graph in self.graphs}) > 1

    @override
    def hold(self, holder: Holder) -> Summands:
        """Add up this holder's own edges in the clear, and take off its shares of (A + I)·λ of all graphs.

        Of a dealer's own edges it adds its share of (A + I)·Λ, which has one Λ too many.
        """
        public, mask = self.wire.known, self.wire.mask
        dealers = sum(graph.owner == holder.dealer for graph in self.graphs)
        total = ((len(self.graphs) - dealers - 1) << self.weight_bits) * mask
        if holder.leads:
            total += ((1 - dealers) << self.weight_bits) * public
        self._add_sums(total, public)
        portions = list(self._portions)
        for portion in portions:
            parts = [(holder.next(Kind.MASKED_ROWS), *part) for part in portion]
            # What others wait for goes out before anything is waited for.
            for tag, graph, columns in parts:
                form = self._form(graph, columns)
                if graph.owner == holder.dealer:
                    total[:, columns] += self._share_for_dealer(holder, graph, tag, public[:, columns], form)
                elif not graph.own:
                    masked, share = masked_rows(graph, tag.step, holder.drawn, form)
                    holder.link.send(graph.owner, tag, masked)
                    total[:, columns] -= share
                    del masked
            own = [(tag, graph, columns) for tag, graph, columns in parts if graph.own]
            dealt = [needed_of(graph, holder.dealt(tag, self._dealt(graph, columns))) for tag, graph, columns in own]
            if self._owners_wait or portion is portions[-1]:
                holder.turn()
            for (tag, graph, columns), needed in zip(own, dealt, strict=True):
                form = self._rows_form(self._form(graph, columns))
                received = (receive_as(holder.link, other, tag, *form) for other in holder.others)
                total[:, columns] -= own_share(graph, tag.step, needed, received)
        return Summands(total, self.wire.bits + self.weight_bits, of_holders=not dealers)

    def _dealt(self, graph: HiddenGraph, columns: slice) -> list[Form]:
        """Forms of what the owner is dealt: rows of heads, and of all slots."""
        whole, dtype = self._form(graph, columns)
        return [((graph.nodes, whole[1]), dtype), (whole, dtype)]

    def _rows_form(self, form: Form) -> Form:
        """Form of the masked rows that the owner is sent."""
        return ((2, *form[0]), form[1]) if self.weight_bits else form

    def _share_for_dealer(
        self, holder: Holder, graph: HiddenGraph, tag: Tag, public: Tensor, form: Form
    ) -> Tensor | int:
        """Send a dealer with edges what its share of (A + I)·Λ, ``public``, needs, and return this holder's."""
        if holder.leads:
            corrections = corrections_of(graph, tag.step, public, [holder.drawn_in_pair], form)
            holder.link.send(holder.dealer, tag, torch.cat(corrections))
        elif holder.is_second:
            masked, share = masked_rows(graph, tag.step, holder.drawn_in_pair, form)
            holder.link.send(holder.dealer, tag, masked)
            return share
        return 0

    @override
    def deal(self, dealer: Dealer) -> Summands:
        """Deal each graph's owner what its share of (A + I)·λ lacks. The dealer's summand is of its own edges alone."""
        mask = self.wire.mask
        total = torch.zeros_like(mask)
        for graph in self.graphs:
            if graph.owner == dealer.party and graph.adjacency is not None:
                total -= torch.from_numpy(graph.adjacency @ mask.numpy())
        for place, portion in enumerate(self._portions):
            if place and self._owners_wait:
                dealer.take_turn()  # as holders do, who send the next rows in their next turn
            for graph, columns in portion:
                dealer.next()
                if graph.owner == dealer.party:
                    share = dealer.own(partial(self._dealers_share, graph, columns))
                    total[:, columns] += 0 if share is None else share
                else:
                    make = partial(self._corrections_of, dealer, graph, columns)
                    dealer.deal(graph.owner, self._dealt(graph, columns), make)
        is_own = any(graph.owner == dealer.party for graph in self.graphs)
        return Summands(total, self.wire.bits + self.weight_bits, of_holders=not is_own)

    def _dealers_share(self, graph: HiddenGraph, columns: slice, dealer: LinkedDealer) -> Tensor:
        first, second = dealer.holders[:2]
        (slots, width), dtype = form = self._form(graph, columns)
        dealt = dealer.receive(first, Kind.MASKED_ROWS, ((graph.nodes + slots, width), dtype))
        received = [dealer.receive(second, Kind.MASKED_ROWS, self._rows_form(form))]
        needed = needed_of(graph, torch.split(dealt, [graph.nodes, slots]))
        return own_share(graph, dealer.operations.newest, needed, received)

    def _corrections_of(self, dealer: Dealer, graph: HiddenGraph, columns: slice) -> list[Tensor]:
        form = self._form(graph, columns)
        draws = [partial(dealer.draw, holder) for holder in dealer.others(graph.owner)]
        return corrections_of(graph, dealer.operations.newest, self.wire.mask[:, columns], draws, form)

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
