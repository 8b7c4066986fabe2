"""Functions of two parties' bits and of the signs of their sums, from oblivious transfers and without a dealer.

Values are shared: a party's int64 tensor is its summand in Z_2^64, its bool tensor its summand in Z_2. Both parties
call the same function with shares of one shape, and each gets its share of the result. With p and q for the two:

    b_0·b_1          one transfer: q chooses the pad k_{b_q} and p sends d = k_0 + b_p − k_1. The shares are −k_0, and
                     k_{b_q} + b_q·d
    (b_0 ⊕ b_1)·y_p  the same with (1 − 2·b_p)·y_p in place of b_p, and p adds b_p·y_p
    [x_0 + x_1 < 0]  the sum of the highest bits and of the carry [x_q' > not x_p'] out of the lower ones. With their
                     digits a of not x_p' and b of x_q', a 1-of-16 transfer each gives shares of [b > a] and [b = a]. A
                     tree joins neighbours, the higher one first: (g, e), (g', e') → (g ⊕ e·g', e·e')

The tree multiplies by triples that transfers make beside the digits' ones, so a level is one exchange of three bits a
product. Where one transfer is enough, one half of the entries is sent by the first party and the other half by the
second, so both compute and send the same.

Simulator, from a chooser's inputs and its share: it draws all offers under pads that the chooser lacks, and sets the
one that it can open to open to its share. A sender receives choices alone (``transfers``). What the tree opens is under
a triple's random bits, and so drawn too. Semi-honest: a party that deviates can make results wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.transfers import BLOCK_BITS, SETUP_MESSAGE_BYTES, Transfers, choice_message_bytes

Octets: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.signedinteger[Any]]
Exchange: TypeAlias = tuple[int, int]
"""Bytes on the wire of the leader's message, and of the other party's."""
Exchanges: TypeAlias = list[Exchange]
Steps: TypeAlias = Iterator[None]
"""Of a block of transfers: choose, offer, and hear what the other party has offered."""

DIGIT_BITS: Final = 4
DIGIT_VALUES: Final = 1 << DIGIT_BITS

_DONE: Final = object()
_ONE: Final = np.uint8(1)
_TABLE_OCTETS: Final = DIGIT_VALUES // 4  # of two bits for each digit


class Bits:
    """One party's end. Errors of every method: as ``Peer.hear``, and ``ProtocolError`` for points off the curve."""

    def __init__(self, peer: Peer, secrets: SecretSource) -> None:
        self._peer, self._secrets, self._transfers = peer, secrets, Transfers(peer, secrets)

    def wraps(self, bit: Tensor, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return a share of b_0·b_1, in the ring of ``dtype``, of each party's own bits: bool, of any shape.

        An int32 share is enough where it is multiplied by 2^32 or more, and costs 8 bytes of both in place of 12.
        """
        own = _octets(bit)
        offers, chooses = self._halves(own.size)
        share = torch.empty(own.size, dtype=dtype).numpy()
        share[chooses], share[offers] = self._scale(own[chooses], own[offers].astype(share.dtype))
        return torch.from_numpy(share).reshape(bit.shape)

    def arithmetic(self, bit: Tensor) -> Tensor:
        """Return a share of b_0 ⊕ b_1 in Z_2^64, int64, of shares of a bit: bool, of any shape."""
        return bit.to(torch.int64) - 2 * self.wraps(bit)

    def gate(self, bit: Tensor, value: Tensor) -> Tensor:
        """Return a share of (b_0 ⊕ b_1)·(y_0 + y_1), int64, of shares of a bit, bool, and of y, int64, of one shape."""
        own, flat = _octets(bit), value.contiguous().reshape(-1).numpy()
        chosen, offered = self._scale(own, np.where(own, -flat, flat))
        return torch.from_numpy(chosen + offered + own * flat).reshape(bit.shape)

    def and_(self, left: Tensor, right: Tensor) -> Tensor:
        """Return a share of the product of two shared bits: bool, of one shape."""
        share = np.empty(left.numel(), np.uint8)
        _pipeline(*self._multiply(_octets(left), _octets(right), share, 1))
        return torch.from_numpy(share.astype(np.bool_)).reshape(left.shape)

    def negative(self, value: Tensor, bits: int = 64) -> Tensor:
        """Return a share of [x_0 + x_1 < 0], bool, of shares of x: int64, of any shape.

        Exact for each of 2^``bits`` sums, from −2^(bits − 1) on; higher bits of shares do not count.
        """
        flat, count = value.contiguous().reshape(-1).numpy(), _digits_of(bits)
        offers, chooses = self._halves(flat.size)
        digits, bounds = _digits(flat[chooses], bits).reshape(-1), _digits(~flat[offers], bits).reshape(-1)
        chosen, offered = np.empty(digits.size, np.uint8), np.empty(bounds.size, np.uint8)
        left, right, both = triples = self._random_bits((count - 1) * flat.size)
        _pipeline(*self._compare(digits, bounds, chosen, offered), *self._multiply(left, right, both, 2))
        joined, used = np.empty((count, flat.size), np.uint8), 0
        joined[:, chooses], joined[:, offers] = chosen.reshape(count, -1), offered.reshape(count, -1)
        while len(joined) > 1:
            pairs = len(joined) // 2 * 2
            lower, higher = joined[:pairs:2], joined[1:pairs:2]
            product = self._opened(higher >> _ONE, lower, triples[:, used : used + lower.size])
            joined, used = np.concatenate([higher & _ONE ^ product, joined[pairs:]]), used + lower.size
        sign = (joined[0] & _ONE).astype(np.bool_) ^ (flat >> (bits - 1) & 1).astype(np.bool_)
        return torch.from_numpy(sign).reshape(value.shape)

    def _halves(self, entries: int) -> tuple[slice, slice]:
        """Return the entries in which this party is the sender, and the chooser."""
        first, second = slice(0, -(-entries // 2)), slice(-(-entries // 2), entries)
        return (first, second) if self._peer.leads else (second, first)

    def _scale(self, choices: Octets, values: Integers) -> tuple[Integers, Integers]:
        """Return shares of (own choice)·(their value), and of (their choice)·(own value), in the values' ring."""
        kind = values.dtype
        chosen, offered = np.empty(len(choices), kind), np.empty(len(values), kind)

        def steps(part: slice) -> Steps:
            own = choices[part]
            pads = self._transfers.choose(own, 1, kind)
            yield
            zero, one = self._transfers.offer(len(values[part]), 1, kind)
            offer = torch.from_numpy(zero + values[part] - one)
            self._peer.tell(offer)
            offered[part] = -zero
            yield
            chosen[part] = pads + own * self._peer.hear(pads.shape, offer.dtype).numpy()

        _pipeline(*map(steps, _parts(max(len(choices), len(values)), BLOCK_BITS)))
        return chosen, offered

    def _multiply(self, left: Octets, right: Octets, result: Octets, width: int) -> Iterable[Steps]:
        """Set ``result`` to shares of (a bit)·(``width`` bits), of shares of both: uint8 [n]."""

        def steps(part: slice) -> Steps:
            own, mask = left[part], np.uint8((1 << width) - 1)
            pads = self._transfers.choose(own, 1, np.uint8)
            yield
            zero, one = self._transfers.offer(len(own), 1, np.uint8)
            self._peer.tell(_to_planes(zero ^ one ^ right[part], width))
            yield
            told = self._hear_planes(len(own), width)
            result[part] = (own * right[part] ^ pads ^ zero ^ own * told) & mask

        return map(steps, _parts(len(left), BLOCK_BITS))

    def _compare(self, digits: Octets, bounds: Octets, chosen: Octets, offered: Octets) -> Iterable[Steps]:
        """Compare own digits b with their bounds a, and theirs with own ones.

        All are uint8, one for each digit. Sets ``chosen`` and ``offered`` to shares of [b > a], in the lowest bit, and
        of [b = a], in the next.
        """
        values = np.arange(DIGIT_VALUES, dtype=np.uint8)[:, None]

        def steps(part: slice) -> Steps:
            digit, bound = digits[part], bounds[part]
            pads = self._transfers.choose(digit, DIGIT_BITS, np.uint8)
            yield
            offers = self._transfers.offer(len(bound), DIGIT_BITS, np.uint8)
            table = offers & 3 ^ (values > bound) ^ (values == bound).astype(np.uint8) << 1
            self._peer.tell(_packed_table(table ^ table[0]))
            offered[part] = table[0]  # so that digit 0 needs no message: its pad is the chooser's share
            yield
            told = self._peer.hear((_TABLE_OCTETS, len(digit)), torch.uint8).numpy()
            octets = np.take_along_axis(told, (digit >> 2).astype(np.intp)[None], 0)[0]
            chosen[part] = (pads ^ octets >> 2 * (digit & 3)) & 3

        return map(steps, _parts(max(len(digits), len(bounds)), BLOCK_BITS // DIGIT_BITS))

    def _random_bits(self, count: int) -> Octets:
        """Draw this party's share of triples: a bit, two bits, and room for their product: uint8 [3, count]."""
        octets: Octets = Keystream(self._secrets(SEED_BYTES), "triples").take(count).numpy()
        return np.stack([octets & _ONE, octets >> _ONE & np.uint8(3), np.zeros_like(octets)])

    def _opened(self, left: Octets, right: Octets, triples: Octets) -> Octets:
        """Multiply a bit by two bits, by Beaver's triples, in one exchange: uint8 of their shape."""
        bit, two, both = (each.reshape(left.shape) for each in triples)
        masked = left ^ bit | (right ^ two) << _ONE
        self._peer.tell(_to_planes(masked.reshape(-1), 3))
        opened = masked ^ self._hear_planes(masked.size, 3).reshape(left.shape)
        left, right = opened & _ONE, opened >> _ONE
        share: Octets = both ^ left * two ^ right * bit
        return share ^ left * right if self._peer.leads else share

    def _hear_planes(self, count: int, width: int) -> Octets:
        planes = self._peer.hear((width, -(-count // 8)), torch.uint8).numpy()
        bits = [np.unpackbits(plane, count=count, bitorder="little") for plane in planes]
        return sum((plane << np.uint8(bit) for bit, plane in enumerate(bits)), np.zeros(count, np.uint8))


def _pipeline(*blocks: Steps) -> None:
    """Run blocks of transfers, each a step behind the one before it.

    A block hears what was sent while others were computed. So latency is paid once, not for every block.
    """
    running = list[Steps]()
    for block in (*blocks, None, None):
        if block is not None:
            running.insert(0, block)
        running = [each for each in running if next(each, _DONE) is not _DONE]


def setup_exchanges() -> Exchanges:
    """Return what it costs to make ``Bits``."""
    return [(each, each) for each in SETUP_MESSAGE_BYTES]


def wraps_exchanges(entries: int, dtype: torch.dtype = torch.int64) -> Exchanges:
    """Return what ``wraps``, and ``arithmetic`` with int64, of so many entries cost."""
    return _pipelined(_blocks(-(-entries // 2), entries // 2, 1, lambda count: dtype.itemsize * count))


def gate_exchanges(entries: int) -> Exchanges:
    """Return what ``gate`` of so many entries costs."""
    return _pipelined(_blocks(entries, entries, 1, lambda count: 8 * count))


def and_exchanges(entries: int) -> Exchanges:
    """Return what ``and_`` of so many entries costs."""
    return _pipelined(_blocks(entries, entries, 1, lambda count: _planes_bytes(count, 1)))


def negative_exchanges(entries: int, bits: int = 64) -> Exchanges:
    """Return what ``negative`` of so many entries of so many bits costs."""
    digits = _digits_of(bits)
    triples, sent, received = (digits - 1) * entries, digits * -(-entries // 2), digits * (entries // 2)
    offers = [
        *_blocks(sent, received, DIGIT_BITS, lambda count: _TABLE_OCTETS * count),
        *_blocks(triples, triples, 1, lambda count: _planes_bytes(count, 2)),
    ]
    opened = list[int]()
    while digits > 1:
        opened.append(HEADER_BYTES + _planes_bytes(digits // 2 * entries, 3))
        digits -= digits // 2
    return [*_pipelined(offers), *((each, each) for each in opened)]


def _blocks(leaders: int, others: int, bits: int, offer_bytes: Callable[[int], int]) -> list[tuple[Exchange, Exchange]]:
    """Return each block's choices and offers, of so many transfers that the leader sends, and the other party."""
    found = list[tuple[Exchange, Exchange]]()
    for part in _parts(max(leaders, others), BLOCK_BITS // bits):
        sent, received = (len(range(count)[part]) for count in (leaders, others))
        choices = choice_message_bytes(received, bits), choice_message_bytes(sent, bits)
        found.append((choices, (HEADER_BYTES + offer_bytes(sent), HEADER_BYTES + offer_bytes(received))))
    return found


def _pipelined(blocks: list[tuple[Exchange, Exchange]]) -> Exchanges:
    """Order blocks' exchanges as ``_pipeline`` makes them."""
    choices, offers = [block[0] for block in blocks], [block[1] for block in blocks]
    later = [each for pair in zip(choices[1:], offers[:-1], strict=True) for each in pair]
    return [*choices[:1], *later, *offers[-1:]]


def _planes_bytes(count: int, width: int) -> int:
    return width * -(-count // 8)


def _parts(count: int, most: int) -> Iterator[slice]:
    return (slice(start, start + most) for start in range(0, count, most))


def _octets(bit: Tensor) -> Octets:
    return bit.contiguous().reshape(-1).numpy().view(np.uint8)


def _digits_of(bits: int) -> int:
    """How many digits numbers of so many bits have below their highest."""
    return -(-(bits - 1) // DIGIT_BITS)


def _digits(values: Integers, bits: int) -> Octets:
    """Cut the ``bits`` − 1 lower bits of integers [n] into digits of four bits, the lowest first: uint8 [digits, n]."""
    below = values & ((1 << (bits - 1)) - 1)
    octets = below.astype("<i8").view(np.uint8).reshape(-1, 8).T
    return np.stack([octets & 15, octets >> DIGIT_BITS], 1).reshape(64 // DIGIT_BITS, -1)[: _digits_of(bits)]


def _to_planes(values: Octets, width: int) -> Tensor:
    """Pack the lowest bits of octets [n]: uint8 [width, n / 8]."""
    return torch.from_numpy(
        np.stack([np.packbits(values >> np.uint8(bit) & _ONE, bitorder="little") for bit in range(width)])
    )


def _packed_table(table: Octets) -> Tensor:
    """Pack two bits for each digit, uint8 [16, n], to uint8 [4, n]."""
    fours = table.reshape(_TABLE_OCTETS, 4, -1)
    return torch.from_numpy(fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6)
