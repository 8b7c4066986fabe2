"""Functions of two parties' bits and of the signs of their sums, from oblivious transfers and without a dealer.

Values are shared: an int64 tensor is one party's summand in Z_2^64, a bool tensor its summand in Z_2. Both parties call
the same function with shares of one shape, and each gets its share of the result. With p and q for the two:

    b_0·b_1              one transfer: q chooses pad k_{b_q}, p sends k_0 + b_p − k_1, and the shares are −k_0 and
                         k_{b_q} + b_q·(k_0 + b_p − k_1)
    (b_0 ⊕ b_1)·y_p      the same with (1 − 2·b_p)·y_p in place of b_p, and p adds b_p·y_p
    [x_0 + x_1 < 0]      the highest bits' sum and the carry out of the 63 lower bits: [x_q' > not x_p']. q has digits b
                         of x_q', p has digits a of not x_p', 16 of 4 bits, and a 1-of-16 transfer of each gives shares
                         of [b > a] and [b = a]. A tree of four levels joins neighbours, the higher one first:
                         (g, e), (g', e') → (g ⊕ e·g', e·e'), with e·g' and e·e' from one transfer in each direction

Where one direction is enough the first party sends in one half of the entries and the second in the other, so both
compute and send the same. What the sender of a transfer sends is under the pads that the chooser lacks, and its own
share is a pad: so both messages and shares are uniform to the other party, and a simulator draws them.

Semi-honest: who deviates can make results wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.transfers import BLOCK_BITS, SETUP_MESSAGE_BYTES, Transfers, choice_message_bytes

Octets: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.int64]
Exchanges: TypeAlias = list[tuple[int, int]]
"""Bytes on the wire of each exchange, in order: the leader's message, and the other party's."""

DIGIT_BITS: Final = 4
DIGITS: Final = 64 // DIGIT_BITS
DIGIT_VALUES: Final = 1 << DIGIT_BITS

_ONE: Final = np.uint8(1)
_TABLE_OCTETS: Final = DIGIT_VALUES // 4  # of two bits for each digit


class Bits:
    """One party's end. Errors of every method: as ``Peer.hear``, and ``ProtocolError`` for points off the curve."""

    def __init__(self, peer: Peer, secrets: SecretSource) -> None:
        self._peer, self._transfers = peer, Transfers(peer, secrets)

    def wraps(self, bit: Tensor) -> Tensor:
        """Return a share of b_0·b_1, int64, of each party's own bits: bool, of any shape."""
        own = _octets(bit)
        offers, chooses = self._halves(own.size)
        share = np.empty(own.size, np.int64)
        share[chooses], share[offers] = self._scaled(own[chooses], own[offers].astype(np.int64))
        return torch.from_numpy(share).reshape(bit.shape)

    def arithmetic(self, bit: Tensor) -> Tensor:
        """Return a share of b_0 ⊕ b_1 in Z_2^64, int64, of shares of a bit: bool, of any shape."""
        return bit.to(torch.int64) - 2 * self.wraps(bit)

    def gate(self, bit: Tensor, value: Tensor) -> Tensor:
        """Return a share of (b_0 ⊕ b_1)·(y_0 + y_1), int64, of shares of a bit, bool, and of y, int64, of one shape."""
        own, flat = _octets(bit), value.contiguous().reshape(-1).numpy()
        chosen, offered = self._scaled(own, np.where(own, -flat, flat))
        return torch.from_numpy(chosen + offered + own * flat).reshape(bit.shape)

    def and_(self, left: Tensor, right: Tensor) -> Tensor:
        """Return a share of the product of two shared bits: bool, of one shape."""
        share = self._multiplied(_octets(left), _octets(right), 1)
        return torch.from_numpy(share.astype(np.bool_)).reshape(left.shape)

    def negative(self, value: Tensor) -> Tensor:
        """Return a share of [x_0 + x_1 < 0], bool, of shares of x: int64, of any shape; exact for each of 2^64 sums."""
        flat = value.contiguous().reshape(-1).numpy()
        offers, chooses = self._halves(flat.size)
        joined = np.empty((DIGITS, flat.size), np.uint8)
        joined[:, chooses], joined[:, offers] = self._compared(_digits(flat[chooses]), _digits(~flat[offers]))
        while len(joined) > 1:
            lower, higher = joined[::2], joined[1::2]
            product = self._multiplied((higher >> _ONE).reshape(-1), lower.reshape(-1), 2)
            joined = (higher & _ONE) ^ product.reshape(lower.shape)
        sign = (joined[0] & 1).astype(np.bool_) ^ (flat < 0)
        return torch.from_numpy(sign).reshape(value.shape)

    def _halves(self, entries: int) -> tuple[slice, slice]:
        """Return the entries in which this party is the sender, and the chooser."""
        first, second = slice(0, -(-entries // 2)), slice(-(-entries // 2), entries)
        return (first, second) if self._peer.leads else (second, first)

    def _scaled(self, choices: Octets, values: Integers) -> tuple[Integers, Integers]:
        """Return shares of (own choice)·(their value), and of (their choice)·(own value), in Z_2^64."""
        chosen, offered = np.empty(len(choices), np.int64), np.empty(len(values), np.int64)
        for part in _parts(max(len(choices), len(values)), BLOCK_BITS):
            pads, (zero, one) = self._transfers.pads(choices[part], len(values[part]), 1, np.int64)
            self._peer.tell(torch.from_numpy(zero + values[part] - one))
            told = self._peer.hear(pads.shape, torch.int64).numpy()
            chosen[part], offered[part] = pads + choices[part] * told, -zero
        return chosen, offered

    def _multiplied(self, left: Octets, right: Octets, width: int) -> Octets:
        """Return shares of (a bit)·(``width`` bits), of shares of both: uint8 [n]."""
        result, mask = left * right, np.uint8((1 << width) - 1)
        for part in _parts(len(left), BLOCK_BITS):
            pads, (zero, one) = self._transfers.pads(left[part], len(left[part]), 1, np.uint8)
            self._peer.tell(_to_planes(zero ^ one ^ right[part], width))
            told = _from_planes(self._peer.hear((width, -(-len(pads) // 8)), torch.uint8), len(pads))
            result[part] ^= (pads ^ zero ^ left[part] * told) & mask
        return result

    def _compared(self, digits: Octets, thresholds: Octets) -> tuple[Octets, Octets]:
        """Compare own digits b with their thresholds a, and theirs with own ones.

        Shares of [b > a] in the lowest bit and [b = a] in the next: uint8, of the arguments' shapes.
        """
        own, bounds = digits.reshape(-1), thresholds.reshape(-1)
        chosen, offered = np.empty_like(own), np.empty_like(bounds)
        values = np.arange(DIGIT_VALUES, dtype=np.uint8)[:, None]
        for part in _parts(max(len(own), len(bounds)), BLOCK_BITS // DIGIT_BITS):
            digit, bound = own[part], bounds[part]
            pads, offers = self._transfers.pads(digit, len(bound), DIGIT_BITS, np.uint8)
            table = (offers & 3) ^ (values > bound) ^ ((values == bound).astype(np.uint8) << 1)
            offered[part] = table[0]  # this party's share, which leaves zeros for the first digit
            self._peer.tell(_packed_table(table ^ table[0]))
            told = self._peer.hear((_TABLE_OCTETS, len(digit)), torch.uint8).numpy()
            octets = np.take_along_axis(told, (digit >> 2).astype(np.intp)[None], 0)[0]
            chosen[part] = (pads ^ octets >> 2 * (digit & 3)) & 3
        return chosen.reshape(digits.shape), offered.reshape(thresholds.shape)


def setup_exchanges() -> Exchanges:
    """Return what it costs to make ``Bits``."""
    return [(each, each) for each in SETUP_MESSAGE_BYTES]


def wraps_exchanges(entries: int) -> Exchanges:
    """Return what ``wraps``, and ``arithmetic``, of so many entries cost."""
    return _exchanges(-(-entries // 2), entries // 2, 1, lambda count: 8 * count)


def gate_exchanges(entries: int) -> Exchanges:
    """Return what ``gate`` of so many entries costs."""
    return _exchanges(entries, entries, 1, lambda count: 8 * count)


def and_exchanges(entries: int, width: int = 1) -> Exchanges:
    """Return what ``and_`` of so many entries costs; ``width``: bits that each multiplies."""
    return _exchanges(entries, entries, 1, lambda count: width * -(-count // 8))


def negative_exchanges(entries: int) -> Exchanges:
    """Return what ``negative`` of so many entries costs."""
    leaders, others = -(-entries // 2), entries // 2
    exchanges = _exchanges(DIGITS * leaders, DIGITS * others, DIGIT_BITS, lambda count: _TABLE_OCTETS * count)
    nodes = DIGITS // 2
    while nodes:
        exchanges += and_exchanges(nodes * entries, 2)
        nodes //= 2
    return exchanges


def _exchanges(leaders: int, others: int, bits: int, offer_bytes: Callable[[int], int]) -> Exchanges:
    """Return the exchanges of so many transfers that the leader sends, and the other party."""
    found = list[tuple[int, int]]()
    for part in _parts(max(leaders, others), BLOCK_BITS // bits):
        sent, received = (len(range(count)[part]) for count in (leaders, others))
        found.append((choice_message_bytes(received, bits), choice_message_bytes(sent, bits)))
        found.append((HEADER_BYTES + offer_bytes(sent), HEADER_BYTES + offer_bytes(received)))
    return found


def _parts(count: int, most: int) -> Iterator[slice]:
    return (slice(start, start + most) for start in range(0, count, most))


def _octets(bit: Tensor) -> Octets:
    return bit.contiguous().reshape(-1).numpy().view(np.uint8)


def _digits(values: Integers) -> Octets:
    """Cut the 63 lower bits of integers [n] into digits of four bits, the lowest first: uint8 [16, n]."""
    octets = values.astype("<i8").view(np.uint8).reshape(-1, 8).T
    digits = np.stack([octets & 15, octets >> DIGIT_BITS], 1).reshape(DIGITS, -1)
    digits[-1] &= 7
    return digits


def _to_planes(values: Octets, width: int) -> Tensor:
    """Pack the lowest bits of octets [n]: uint8 [width, n / 8]."""
    return torch.from_numpy(
        np.stack([np.packbits(values >> np.uint8(bit) & _ONE, bitorder="little") for bit in range(width)])
    )


def _from_planes(planes: Tensor, count: int) -> Octets:
    bits = [np.unpackbits(plane, count=count, bitorder="little") for plane in planes.numpy()]
    return sum((plane << np.uint8(bit) for bit, plane in enumerate(bits)), np.zeros(count, np.uint8))


def _packed_table(table: Octets) -> Tensor:
    """Pack two bits for each digit, uint8 [16, n], to uint8 [4, n]."""
    fours = table.reshape(_TABLE_OCTETS, 4, -1)
    return torch.from_numpy(fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6)
