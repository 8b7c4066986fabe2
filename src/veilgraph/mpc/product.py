"""The exact secure product (VFGNN Algorithm 3; docs/explanation/protocol.md): dealer and holder.

Holder i's features x^i are private and static; W^i, the weight block of its columns, is additively shared among
all holders. One forward product gives every holder an additive share of Σ_i x^i·W^i; one backward product turns
holders' private gradients g_j into shares of every block's update x^iᵀ·Σ_j g_j. Nothing is truncated and nothing
but h^0 is opened.

    once      dealer → holder: a seed          holder i → every other: E_i = x^i − U_i
    forward   holder j → owner i: F_ji = ⟨W^i⟩_j − V_ji
              owner i adds  x^i·(⟨W^i⟩_i + Σ_j F_ji) + (U_i·Σ_j V_ji − Σ_j Z_ji),  holder j adds  E_i·V_ji + Z_ji
    backward  holder j → every owner: F_j = g_j − V_j + M_j
              owner i adds  x^iᵀ·(g_i + M_i + Σ_j F_j) + (U_iᵀ·Σ_j V_j − Σ_j Z_ji),  holder j adds  E_iᵀ·V_j + Z_ji

The dealer knows masks only: both sides expand U_i and, for every step, the one-time V and Z from a seed, and it sends
each holder its half of the product of masks. M_j, which the holders' pairwise masks make and which is zero in the sum
over all, keeps the dealer and an owner together from g_j: they have the sum over all other holders. Of two holders that
is the other's, and M is left out.

A large graph's rows are multiplied block by block, each with masks of its own, so that memory beside x, E and the
results is that of a few blocks. Everything that does not depend on W or g of the step is prepared ahead, a few blocks
on, in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.trace import NO_TRACE, AnyTrace
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.party import rows_between
from veilgraph.link.collectives import broadcast, exchange, gather, receive_as
from veilgraph.mpc import ring
from veilgraph.mpc.mask import PairwiseMasks, ring_sum
from veilgraph.mpc.ring import StaticOperand

BLOCK_BYTES: Final = 1 << 26  # of the widest matrix in a block of rows

KEEP_BYTES: Final = 1 << 30  # of static masks that the dealer keeps at most

AHEAD: Final = 2  # blocks that are prepared, and dealt, before they are needed


class Direction(IntEnum):
    """Which product of a step."""

    FORWARD = 0
    """x·W."""
    BACKWARD = 1
    """xᵀ·g."""


def row_blocks(nodes: int, features: Mapping[PartyId, int], dim: int, block_bytes: int = BLOCK_BYTES) -> list[slice]:
    """Cut N rows into the blocks in which every party multiplies: one block, unless the graph is large.

    A block's widest matrix, of ``dim`` or of a holder's ``features`` int64 columns, takes at most ``block_bytes``.
    """
    rows = max(1, block_bytes // (8 * max(dim, *features.values())))
    return [slice(start, min(start + rows, nodes)) for start in range(0, nodes, rows)]


def round_of(direction: Direction, block: int) -> int:
    """Return the tag's round for messages of one block of a product."""
    return 2 * block + direction


def static_mask_name(block: int = 0) -> str:
    """Return the purpose under which a block of rows of U_i is expanded from holder i's seed."""
    return f"U/{block}"


def operand_mask_name(owner: PartyId, direction: Direction, step: int, block: int = 0) -> str:
    """Return V's purpose: forward V hides a share of the owner's weights; backward one V hides g for all owners."""
    return f"V/{owner if direction is Direction.FORWARD else '*'}/{direction.name}/{step}/{block}"


def result_mask_name(owner: PartyId, direction: Direction, step: int, block: int = 0) -> str:
    """Return the purpose under which Z, the random share of a product with ``owner``'s features, is expanded."""
    return f"Z/{owner}/{direction.name}/{step}/{block}"


class Dealer:
    """Deals the correlated randomness of one session, for holders' columns in the job's order.

    Where a product has many blocks, the large matrices of the forward one are dealt as the holders use them, so that no
    more than ``AHEAD`` of them wait anywhere. Static masks of more than ``keep_bytes`` are expanded again in every
    product; those of half as much, of products of one block, are kept transposed too.
    """

    def __init__(
        self,
        link: Link,
        features: Mapping[PartyId, int],
        num_nodes: int,
        dim: int,
        secrets: SecretSource,
        keep_bytes: int = KEEP_BYTES,
        block_bytes: int = BLOCK_BYTES,
        device: torch.device = ring.CPU,
    ) -> None:
        self._link, self._features, self._dim, self._device = link, dict(features), dim, device
        self._seeds = {holder: secrets(SEED_BYTES) for holder in features}
        self._blocks = row_blocks(num_nodes, features, dim, block_bytes)
        kept = 8 * num_nodes * sum(features.values())
        self._keeps, self._twice = kept <= keep_bytes, len(self._blocks) == 1 and 2 * kept <= keep_bytes
        self._kept: dict[tuple[PartyId, int], StaticOperand] = {}

    def send_seeds(self) -> None:
        """Give every holder its seed, once."""
        for holder, seed in self._seeds.items():
            self._link.send(holder, Tag(Kind.SEED), torch.frombuffer(bytearray(seed), dtype=torch.uint8))

    def deal(self, direction: Direction, step: int) -> None:
        """Send every holder i the matrices U_i·ΣV − ΣZ of this product, the sums over the other holders."""
        for block in range(len(self._blocks)):
            if direction is Direction.FORWARD and block >= AHEAD:
                gather(self._link, self._seeds, Tag(Kind.READY, step, block - AHEAD), (1,), torch.uint8)
            self._deal_block(direction, step, block)

    def _deal_block(self, direction: Direction, step: int, block: int) -> None:
        rows = self._blocks[block].stop - self._blocks[block].start
        for owner, columns in self._features.items():
            inner, outer = (columns, rows) if direction is Direction.FORWARD else (rows, columns)
            others = [seed for holder, seed in self._seeds.items() if holder != owner]
            name = operand_mask_name(owner, direction, step, block)
            operand_masks = _sum_in_place(expand(seed, name, (inner, self._dim)) for seed in others)
            name = result_mask_name(owner, direction, step, block)
            result_masks = _sum_in_place(expand(seed, name, (outer, self._dim)) for seed in others)
            static = self._static_mask(owner, block, rows)
            multiply = static.times if direction is Direction.FORWARD else static.transposed_times
            correlation = multiply(operand_masks).sub_(result_masks)
            self._link.send(owner, Tag(Kind.CORRELATION, step, round_of(direction, block)), correlation)

    def _static_mask(self, owner: PartyId, block: int, rows: int) -> StaticOperand:
        """Return a block of rows of U_owner as an operand, kept for later products unless all are too large."""
        if (found := self._kept.get((owner, block))) is None:
            mask = expand(self._seeds[owner], static_mask_name(block), (rows, self._features[owner]))
            found = ring.dense_operand(mask, self._device, twice=self._twice)
            if self._keeps:
                self._kept[owner, block] = found
        return found


def _sum_in_place(masks: Iterable[Tensor]) -> Tensor:
    return reduce(Tensor.add_, masks)


@dataclass(frozen=True)
class Prepared:
    """The offline half of one block of a product.

    Attributes:
        masks: owner → V, the mask of what this holder sends to that owner (the same for all owners when backward).
        pieces: owner → EᵀV + Z, this holder's share of a backward product with that owner's features.
        correlation: the dealer's half for the product with this holder's own features; when forward, with the shares
            E·V + Z of the products with all owners' added.
        blind: M of a backward product of three or more holders; ``masks`` have it taken off.
    """

    masks: dict[PartyId, Tensor]
    pieces: dict[PartyId, Tensor]
    correlation: Tensor
    blind: Tensor | None = None


@dataclass(frozen=True)
class _Block:
    """Rows [start, stop) with what stays the same for them: x^i, and the other holders' E."""

    rows: slice
    operand: StaticOperand
    differences: dict[PartyId, StaticOperand]

    @property
    def row_count(self) -> int:
        return int(self.rows.stop - self.rows.start)


Item = tuple[Direction, int, int]  # direction, step and block


class SecureProduct:
    """One holder's side of all secure products of a session.

    ``matrix`` is x^i, [N, F_i], strided or ``torch.sparse_csr``, perhaps mapped from a file; ``to_ring`` maps its
    values into the ring, zero to zero. The rest is as for ``row_blocks``. Dense products are computed on ``device``,
    exactly as on the CPU.
    """

    def __init__(
        self,
        link: Link,
        masks: PairwiseMasks,
        matrix: Tensor,
        to_ring: Callable[[Tensor], Tensor],
        features: Mapping[PartyId, int],
        dim: int,
        block_bytes: int = BLOCK_BYTES,
        device: torch.device = ring.CPU,
        trace: AnyTrace = NO_TRACE,
    ) -> None:
        self._trace, self._pairwise = trace, masks
        self._link, self._features, self._dim, self._device = link, dict(features), dim, device
        self._others = [holder for holder in features if holder != link.party]
        seed = receive_as(link, SERVER, Tag(Kind.SEED), (SEED_BYTES,), torch.uint8)
        self._seed = seed.numpy().tobytes()
        rows = row_blocks(matrix.shape[0], features, dim, block_bytes)
        self._blocks = [self._static(number, each, matrix, to_ring, len(rows)) for number, each in enumerate(rows)]
        self._background = ThreadPoolExecutor(1, thread_name_prefix=f"{link.party} offline")
        self._ahead: dict[Item, Future[Prepared]] = {}

    def _static(
        self, number: int, rows: slice, matrix: Tensor, to_ring: Callable[[Tensor], Tensor], blocks: int
    ) -> _Block:
        """Send the others E of these rows, receive theirs, and keep x^i in a form for fast products."""
        part = rows_between(matrix, rows.start, rows.stop)
        mask = expand(self._seed, static_mask_name(number), tuple(part.shape))
        tag = Tag(Kind.STATIC_DIFFERENCE, 0, number)
        broadcast(self._link, self._others, tag, to_ring(part.to_dense()) - mask)
        differences = {
            other: ring.dense_operand(
                receive_as(self._link, other, tag, (part.shape[0], self._features[other]), torch.int64),
                self._device,
                twice=blocks == 1,
            )
            for other in self._others
        }
        keeps = blocks == 1 or part.layout == torch.sparse_csr or self._device.type != "cpu"
        if keeps:
            operand = ring.static_operand(part, to_ring, self._device, twice=blocks == 1)
        else:  # too large to keep twice: converted in every product
            operand = ring.remade_operand(lambda: ring.dense_operand(to_ring(part)))
        return _Block(rows, operand, differences)

    def prepare(self, direction: Direction, step: int, block: int = 0) -> Prepared:
        """Expand a block's masks, multiply them by the other holders' E, and wait for the dealer's half."""
        forward, part = direction is Direction.FORWARD, self._blocks[block]
        masks: dict[PartyId, Tensor] = {}
        pieces: dict[PartyId, Tensor] = {}
        for owner in self._others:
            rows = self._features[owner] if forward else part.row_count
            if forward or not masks:
                mask = expand(self._seed, operand_mask_name(owner, direction, step, block), (rows, self._dim))
            difference = part.differences[owner]
            piece = difference.times(mask) if forward else difference.transposed_times(mask)
            name = result_mask_name(owner, direction, step, block)
            pieces[owner] = piece.add_(expand(self._seed, name, tuple(piece.shape)))
            masks[owner] = mask
        blind = None
        if not forward and len(self._others) > 1:
            blind = self._pairwise.mask(f"gradient of h0/{block}", step, (part.row_count, self._dim))
            masks[self._others[0]] -= blind  # one tensor for all owners
        rows = part.row_count if forward else self._features[self._link.party]
        tag = Tag(Kind.CORRELATION, step, round_of(direction, block))
        correlation = receive_as(self._link, SERVER, tag, (rows, self._dim), torch.int64)
        if forward:  # one sum waits in less memory; not in the received tensor, which a view may keep
            return Prepared(masks, {}, _sum_in_place([*pieces.values(), correlation]))
        return Prepared(masks, pieces, correlation, blind)

    def _prepare_ahead(self, direction: Direction, step: int, block: int) -> Prepared:
        with self._trace.span(f"prepare {direction.name.lower()}", step=step, block=block):
            return self.prepare(direction, step, block)

    def ahead(self, items: Sequence[Item]) -> list[Future[Prepared]]:
        """Start preparing blocks in the background, in this order, unless they were started; return their futures."""
        for item in items:
            if item not in self._ahead:
                self._ahead[item] = self._background.submit(self._prepare_ahead, *item)
        return [self._ahead[item] for item in items]

    def forward(
        self, step: int, shares: Mapping[PartyId, Tensor], *, learns: bool = False
    ) -> Iterator[tuple[slice, Tensor]]:
        """This holder's share of Σ_i x^i·W^i, block by block: the rows, and int64 [rows, d].

        ``shares``: owner → its share of that weight block, int64 [F_owner, d]; ``learns``: ``backward`` of this step
        follows.
        """
        party = self._link.party
        for number, block in enumerate(self._blocks):
            prepared = self._take((Direction.FORWARD, step, number), learns=learns)
            tag = Tag(Kind.MASKED_OPERAND, step, round_of(Direction.FORWARD, number))
            for owner in self._others:
                self._link.send(owner, tag, shares[owner] - prepared.masks[owner])
            received = gather(self._link, self._others, tag, (self._features[party], self._dim), torch.int64)
            operand = ring_sum([shares[party], *received.values()])
            share = block.operand.times(operand).add_(prepared.correlation)
            if number + AHEAD < len(self._blocks):
                self._link.send(SERVER, Tag(Kind.READY, step, number), torch.ones(1, dtype=torch.uint8))
            yield block.rows, share

    def backward(self, step: int, gradient: Callable[[slice], Tensor], *, learns: bool = True) -> dict[PartyId, Tensor]:
        """Shares of x^iᵀ·Σ_j g_j for every block of weights i: owner → int64 [F_owner, d].

        ``gradient`` gives rows of this holder's g in the ring, int64 [rows, d]; ``learns``: another step follows.
        """
        totals: dict[PartyId, Tensor] = {}
        for number, block in enumerate(self._blocks):
            prepared = self._take((Direction.BACKWARD, step, number), learns=learns)
            rows = gradient(block.rows)
            tag = Tag(Kind.MASKED_OPERAND, step, round_of(Direction.BACKWARD, number))
            masked = rows - prepared.masks[self._others[0]]
            operand = ring_sum([rows, *exchange(self._link, self._others, tag, masked).values()])
            if prepared.blind is not None:
                operand += prepared.blind
            own = block.operand.transposed_times(operand).add_(prepared.correlation)
            for owner, piece in {self._link.party: own, **prepared.pieces}.items():
                totals[owner] = totals[owner].add_(piece) if owner in totals else piece
        return totals

    def close(self) -> None:
        """Cancel background work that has not begun, and wait for the rest."""
        self._background.shutdown(wait=True, cancel_futures=True)

    def _take(self, item: Item, *, learns: bool) -> Prepared:
        """Wait for ``item``'s offline half, forget those of earlier items, and start preparing the next ones."""
        self._ahead = {known: future for known, future in self._ahead.items() if _order_key(known) >= _order_key(item)}
        self.ahead([item, *islice(self._items_after(item, learns=learns), AHEAD)])
        return self._ahead.pop(item).result()

    def _items_after(self, item: Item, *, learns: bool) -> Iterable[Item]:
        """Yield what is due after ``item``: other blocks and, if ``learns``, backward and the next forward product."""
        direction, step, block = item
        blocks = range(len(self._blocks))
        yield from ((direction, step, number) for number in blocks[block + 1 :])
        if learns and direction is Direction.FORWARD:
            yield from ((Direction.BACKWARD, step, number) for number in blocks)
        if learns:
            yield from ((Direction.FORWARD, step + 1, number) for number in blocks)


def _order_key(item: Item) -> tuple[int, int, int]:
    direction, step, block = item
    return step, int(direction), block
