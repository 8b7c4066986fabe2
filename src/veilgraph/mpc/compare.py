"""The secure maximum (SAPGNN 4.5.3): the server learns the elementwise maximum, every holder where it attained it.

Values are compared by the order of their floating-point representation, an integer of 32 or 64 bits: the maximum is
exact bit for bit (zeros come out positive), −inf (a node that the holder does not know) is a value like others, and
there is no range to leave.

    once      server → holder: a seed                                       (correlated randomness: ``bits.py``)
    compare   every pair i < j, all pairs at once, in digits of two bits and then a tree over the digits:
              an XOR share at i and one at j of  t^i < t^j
    win       all holders: w_i = [t^i > −inf] · ∏_{j<i} [t^j < t^i] · ∏_{j>i} (1 ⊕ [t^i < t^j]), a tree of products
    open      every holder sends its share of w_i to i, and only to i
    maximum   i sends the code of t^i where it won, and 0 elsewhere, under pairwise masks; the sum is the maximum's code

Entries are compared and their wins made in blocks, one block after another, so that the memory that it takes does not
grow with their number; wins are opened, and the maximum is sent, for all at once.

So ties go to the first holder, and where all have −inf nobody wins and the sum is 0, the code of −inf. Pairs are
compared instead of winners of a tournament because a pair's two values are private to two holders: the first products
cost half as much as those of shared bits, no winner has to be selected obliviously, and all pairs go at the same time.

What each party sees, and why it says no more than that: docs/explanation/proofs.md#the-secure-maximum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError, ProtocolError
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import gather, receive_as
from veilgraph.mpc.bits import (
    AND,
    AND_EACH,
    Group,
    Level,
    Product,
    deal,
    from_plane,
    multiply,
    to_planes,
    words_for,
    xor,
)
from veilgraph.mpc.mask import PairwiseMasks, ring_sum

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}  # type of the values → type of their codes


def order_codes(values: Tensor) -> Tensor:
    """Map float32 or float64 without NaN to int32 or int64 whose unsigned order is theirs; −inf is 0, −0.0 as 0.0.

    The bits of an IEEE 754 number grow with its magnitude; turned into two's complement they grow with the value.
    """
    return _ordered(values) - _ordered(_minus_infinity(values.dtype))


def from_order_codes(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of ``order_codes``; integers that are nobody's code become NaN."""
    ordered = codes + _ordered(_minus_infinity(dtype))
    return _flipped_if_negative(ordered).view(dtype)


def _minus_infinity(dtype: torch.dtype) -> Tensor:
    return torch.tensor(float("-inf"), dtype=dtype)


def _ordered(values: Tensor) -> Tensor:
    """Reinterpret floats as signed integers in their order: sign and magnitude → two's complement; −0.0 is 0."""
    bits = values.detach().contiguous().view(INTEGERS[values.dtype])
    return _flipped_if_negative(torch.where(bits == torch.iinfo(bits.dtype).min, 0, bits))


def _flipped_if_negative(bits: Tensor) -> Tensor:
    """Flip all bits but the sign of negative integers: its own inverse."""
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & torch.iinfo(bits.dtype).max)


def packed_words(entries: int, dtype: torch.dtype) -> int:
    """Return how many int64 words ``packed`` makes of that many codes of values of ``dtype``."""
    return -(-entries * dtype.itemsize // 8)


def packed(codes: Tensor) -> Tensor:
    """Codes [entries] → int64 [words] in new memory, two int32 codes to a word.

    The sum of several is that of the codes only where at most one code of an entry is not 0: then nothing carries.
    """
    if codes.dtype == torch.int64:
        return codes.clone()
    half = packed_words(codes.numel(), torch.float32)
    words = codes[:half].to(torch.int64) & 0xFFFFFFFF
    words[: codes.numel() - half] |= codes[half:].to(torch.int64) << 32
    return words


def unpacked(words: Tensor, entries: int, dtype: torch.dtype) -> Tensor:
    """Inverse of ``packed`` for codes of values of ``dtype``."""
    if dtype == torch.float64:
        return words
    return torch.cat([words, words >> 32]).to(torch.int32)[:entries]


SEED_TAG = Tag(Kind.SEED, 0, 1)  # round 0 is the seed of the secure product

# Entries that are compared at a time, a multiple of 64; with four holders that takes each some 40 MB.
BLOCK_ENTRIES: Final = 1 << 18

ROUNDS: Final = 32  # maxima of one step, at most; a job has one for each of its layers, counted from 1


def _digits_local(x: Tensor) -> Tensor:
    """Return [less, equal] as far as one holder's planes [high, low, high·low] make them alone."""
    return torch.stack([torch.zeros_like(x[2]), x[2]])


def _digits_cross(x: Tensor, y: Tensor) -> Tensor:
    """Return the terms of [less, equal] that are bilinear in two holders' planes [high, low, high·low]."""
    less = (x[0] & y[0]) ^ (x[1] & y[2]) ^ (x[2] & y[1])
    return torch.stack([less, (x[0] & y[1]) ^ (x[1] & y[0])])


DIGITS = Product(3, 2, _digits_local, _digits_cross)
"""Compares digits x of the first and y of the second holder, given ¬x and y as high bit h, low bit l, and hl each.

With h, l of ¬x and H, L of y, bits in which x and y agree have h ⊕ H = 1. So x < y is hH ⊕ (h ⊕ H)·lL, and
x = y is (h ⊕ H)(l ⊕ L): sums of products of one number of each holder.
"""


def comparison_levels(holders: Sequence[PartyId], dtype: torch.dtype) -> list[Level]:
    """List the exchanges that compare all pairs of holders: digits of two bits, then a tree over the digits."""
    pairs = tuple(combinations(holders, 2))
    count = 8 * dtype.itemsize // 2
    plan = [Level(DIGITS, count, pairs)]
    while count > 2:
        count //= 2
        plan.append(Level(AND_EACH, count, pairs))
    return [*plan, Level(AND, 1, pairs)]  # whether the values are equal is not needed


def win_levels(holders: Sequence[PartyId]) -> list[Level]:
    """List the exchanges that multiply the P factors of each holder's win, in a tree."""
    plan, factors = [], len(holders)
    while factors > 1:
        plan.append(Level(AND, factors // 2 * len(holders), (tuple(holders),)))
        factors -= factors // 2
    return plan


def _block_sizes(entries: int) -> list[int]:
    """Entries of each block; all but the last fill whole words, and there is one at least."""
    full, rest = divmod(entries, BLOCK_ENTRIES)
    return [BLOCK_ENTRIES] * full + [rest] * (rest > 0 or not full)


class _Side:
    """What holders and server know of every maximum: its exchanges."""

    def __init__(self, link: Link, holders: Sequence[PartyId], dtype: torch.dtype) -> None:
        if len(holders) < 2 or len(set(holders)) < len(holders):
            raise ConfigError(f"holders: {', '.join(holders)}: a secure maximum needs two or more, each named once")
        if dtype not in INTEGERS:
            raise ConfigError(
                f"dtype={dtype}: a secure maximum of it is not possible; use torch.float32 or torch.float64"
            )
        self._link, self._holders, self._dtype = link, tuple(holders), dtype
        self._comparing, self._winning = comparison_levels(holders, dtype), win_levels(holders)

    def _exchanges(self, round_: int, block: int) -> Iterator[int]:
        """Give the tags' rounds of a block's exchanges in maximum ``round_``; ``ConfigError``: not below ``ROUNDS``."""
        if not 0 <= round_ < ROUNDS:
            raise ConfigError(
                f"round={round_} of a secure maximum must be from 0 to {ROUNDS - 1}; count it in the step"
            )
        exchanges = len(self._comparing) + len(self._winning)
        first = (block * ROUNDS + round_) * exchanges
        return iter(range(first, first + exchanges))


class SecureMax(_Side):
    """One holder's side of all secure maxima of a session, of float32 or float64; ties go to the first holder.

    Raises ``ConfigError``: fewer than two holders, one named twice, or another dtype; ``LinkError``: no seed came.
    """

    def __init__(self, link: Link, holders: Sequence[PartyId], masks: PairwiseMasks, dtype: torch.dtype) -> None:
        super().__init__(link, holders, dtype)
        self._masks = masks
        self._seed = receive_as(link, SERVER, SEED_TAG, (SEED_BYTES,), torch.uint8).numpy().tobytes()

    def compete(self, values: Tensor, step: int, round_: int) -> Tensor:
        """Take part in one maximum of all holders' values, −inf where unknown; return where this holder attains it.

        The result is bool, of their shape; at most one holder's is true. ``step`` and ``round_``, below ``ROUNDS``,
        name the maximum, and are never used twice in a session. Raises ``DataError``: a NaN, or another dtype;
        ``ConfigError``: ``round_`` is out of range; or as ``Link.send`` and ``receive_as``.
        """
        if values.dtype != self._dtype or values.isnan().any():
            raise DataError(
                f"party {self._link.party!r}: values: for the secure maximum of step {step}, round {round_} must be "
                f"{self._dtype} without NaN; got {values.dtype} with {int(values.isnan().sum())} NaN"
            )
        codes = order_codes(values).reshape(-1)
        blocks = enumerate(torch.split(codes, _block_sizes(codes.numel())))
        wins = torch.cat([self._block(part, step, self._exchanges(round_, block)) for block, part in blocks], dim=1)
        mine = from_plane(self._open(wins, Tag(Kind.WIN_SHARE, step, round_)), codes.numel())
        won = packed(torch.where(mine, codes, 0))
        won += self._masks.mask(f"maximum/{round_}", step, tuple(won.shape))
        self._link.send(SERVER, Tag(Kind.MASKED, step, round_), won)
        return mine.reshape(values.shape)

    def _block(self, codes: Tensor, step: int, exchanges: Iterator[int]) -> Tensor:
        """Return this holder's XOR shares of all holders' wins, [P, words], for a block of codes, int64 [entries]."""
        known = to_planes((codes != 0).to(torch.int32))[0]
        less = self._compare(to_planes(codes), step, exchanges)
        return self._win(less, known, step, exchanges)

    def _compare(self, planes: Tensor, step: int, exchanges: Iterator[int]) -> dict[PartyId, Tensor]:
        """Compare planes [bits, words] of codes: other holder → share of whether the earlier is less, [words]."""
        party = self._link.party
        digits, *tree = self._comparing
        operands = {}
        for pair in digits.groups:
            if party in pair:
                bits = ~planes if party == pair[0] else planes
                low, high = bits[0::2], bits[1::2]
                operands[pair] = torch.stack([high, low, high & low])
        shares = self._multiply(digits, operands, step, next(exchanges))
        for level in tree:  # a share is [less, equal], of ever longer digits
            low_high = {pair: (share[:, 0::2], share[:, 1::2]) for pair, share in shares.items()}
            operands = {
                pair: torch.cat([high[1:], low[: level.product.results]]) for pair, (low, high) in low_high.items()
            }
            products = self._multiply(level, operands, step, next(exchanges))
            shares = {
                pair: torch.cat([low_high[pair][1][:1] ^ product[:1], product[1:]])
                for pair, product in products.items()
            }
        return {first if second == party else second: share[0, 0] for (first, second), share in shares.items()}

    def _win(self, less: dict[PartyId, Tensor], known: Tensor, step: int, exchanges: Iterator[int]) -> Tensor:
        """Return this holder's XOR shares of all holders' wins, [P, words]; ``known`` is its plane of t > −inf."""
        at = self._holders.index(self._link.party)
        factors = torch.zeros(len(self._holders), len(self._holders), known.numel(), dtype=torch.int64)
        factors[at, at] = known
        for index, holder in enumerate(self._holders):
            if index != at:  # factors[k, i] is the k-th factor of w_i; the earlier of a pair negates
                factors[at, index] = less[holder]
                factors[index, at] = ~less[holder] if at < index else less[holder]
        for level in self._winning:
            half = factors.shape[0] // 2
            operand = torch.stack([factors[:half].flatten(0, 1), factors[half : 2 * half].flatten(0, 1)])
            products = self._multiply(level, {self._holders: operand}, step, next(exchanges))[self._holders]
            factors = torch.cat([products.view(half, *factors.shape[1:]), factors[2 * half :]])
        return factors[0]

    def _open(self, wins: Tensor, tag: Tag) -> Tensor:
        """Send each other holder this share of its win; return this holder's own win, a plane [words]."""
        own, others = wins[self._holders.index(self._link.party)], []
        for holder, share in zip(self._holders, wins, strict=True):
            if holder != self._link.party:
                others.append(holder)
                self._link.send(holder, tag, share)
        return xor([own, *gather(self._link, others, tag, own.shape, torch.int64).values()])

    def _multiply(self, level: Level, operands: dict[Group, Tensor], step: int, exchange: int) -> dict[Group, Tensor]:
        return multiply(self._link, self._seed, level, operands, step, exchange)


class MaxServer(_Side):
    """The server's side of all secure maxima of a session: deals ahead, and receives the maximum. As ``SecureMax``."""

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource, dtype: torch.dtype) -> None:
        super().__init__(link, holders, dtype)
        self._seeds = {holder: secrets(SEED_BYTES) for holder in holders}

    def send_seeds(self) -> None:
        """Give every holder its seed, once."""
        for holder, seed in self._seeds.items():
            self._link.send(holder, SEED_TAG, torch.frombuffer(bytearray(seed), dtype=torch.uint8))

    def deal(self, shape: Sequence[int], step: int, round_: int) -> None:
        """Send the correlated randomness of one maximum of ``shape``; depends on no value, so it may run ahead."""
        for block, entries in enumerate(_block_sizes(prod(shape))):
            exchanges = self._exchanges(round_, block)
            for level, exchange in zip([*self._comparing, *self._winning], exchanges, strict=True):
                deal(self._link, self._seeds, level, words_for(entries), step, exchange)

    def receive(self, shape: Sequence[int], step: int, round_: int) -> Tensor:
        """Return the maximum, of ``shape`` and the session's dtype, −inf where unknown; ``ProtocolError``: a NaN."""
        entries = prod(shape)
        expected = (packed_words(entries, self._dtype),)
        pieces = gather(self._link, self._holders, Tag(Kind.MASKED, step, round_), expected, torch.int64)
        maximum = from_order_codes(unpacked(ring_sum(pieces.values()), entries, self._dtype), self._dtype)
        if maximum.isnan().any():
            raise ProtocolError(
                f"what {', '.join(self._holders)} sent as the maximum of step {step}, round {round_} has no value",
                code="no-maximum",
                value=step,
            )
        return maximum.reshape(tuple(shape))
