"""Oblivious transfers without end from 128 base transfers: SoftSpoken OT (Roy, CRYPTO 2022), semi-honest, k = 4.

The sender holds Δ, 32 elements of F_16. The chooser has digits u_i in F_16. Both get rows of 32 elements with

    v_i = w_i ⊕ u_i·Δ        (chooser: v_i; sender: w_i)

and the pad of digit x in transfer i is H(w_i ⊕ x·Δ, i). The chooser computes the pad of u_i from v_i, and the others
look uniform to it. Digits of one bit make 1-of-2 transfers. The rows of four bits, summed with weights 1, α, α², α³,
are a row of their digit, so they make a 1-of-16 transfer for the bytes of four 1-of-2 transfers, and fewer hashes.

For each of the 32 places the chooser grows a tree of 16 seeds. The sender learns all of them by four base transfers,
but for the seed at its place's element of Δ. Seeds expand to streams of bits r_x, and with δ = Δ at the place

    chooser   u = ⊕ r_x        v = ⊕ x·r_x
    sender    w = ⊕ (x ⊕ δ)·r_x = v ⊕ δ·u        (without r_δ, which weighs 0)

The chooser sends u ⊕ (its choices), and the sender adds δ times that to w.

- Chooser's privacy: r_δ masks u, so the message is uniform to the sender, and a simulator draws it.
- Sender's privacy: the chooser lacks the pads H(v_i ⊕ y·Δ, i) with y ≠ 0, where y·Δ is uniform like Δ. In the model of
  an ideal permutation π these are random to it with H(x, i) = π(π(x) ⊕ i) ⊕ π(x) (Guo, Katz, Wang, Yu, S&P 2020: TMMO
  is tweakable circular correlation robust). Here π is AES under a fixed key. No i occurs twice in a direction, and
  each direction has a Δ of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import xor
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import DTypeLike, NDArray

from veilgraph.core.secrets import SecretSource
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair.base_transfers import KEY_BYTES, POINT_BYTES, TRANSFERS, Pair, transfer_keys
from veilgraph.mpc.pair.peer import Peer

Words: TypeAlias = NDArray[np.uint64]

FIELD_BITS: Final = 4
LEAVES: Final = 1 << FIELD_BITS
PLACES: Final = TRANSFERS // FIELD_BITS
WORD_BITS: Final = 64
BLOCK_BITS: Final = 1 << 18
"""Bits to choose in one message: 1 MiB of message, and some 10 MiB of memory."""

SETUP_MESSAGE_BYTES: Final = (
    HEADER_BYTES + (1 + TRANSFERS) * POINT_BYTES,
    HEADER_BYTES + 2 * TRANSFERS * KEY_BYTES,
)
"""What each party sends, in this order, when ``Transfers`` are made."""

_HASHED_ROWS: Final = 1 << 13  # whose pads are made at a time: they stay in the processor's cache
_STOCK_WORDS: Final = 1 << 8
_NO_WORDS: Final = np.empty(0, np.uint64)
_LEVELS: Final = [slice(start, start + FIELD_BITS) for start in range(0, TRANSFERS, FIELD_BITS)]
"""The base transfers of each tree."""
_SWAPS: Final = (
    (32, 0x00000000FFFFFFFF),
    (16, 0x0000FFFF0000FFFF),
    (8, 0x00FF00FF00FF00FF),
    (4, 0x0F0F0F0F0F0F0F0F),
    (2, 0x3333333333333333),
    (1, 0x5555555555555555),
)


def choice_message_bytes(count: int, bits: int) -> int:
    """Return the bytes on the wire of ``count`` choices of so many bits: 4 for each bit, of whole words."""
    return HEADER_BYTES + PLACES * bits * 8 * _words_for(count)


class Transfers:
    """Oblivious transfers with a peer, each party the chooser of some and the sender of others.

    Both make it, and what one chooses the other offers in the same order: transfers are numbered.
    """

    def __init__(self, peer: Peer, secrets: SecretSource) -> None:
        """Set both directions up in two exchanges; ``ProtocolError``: as ``transfer_keys`` and ``Peer.hear``."""
        self._peer = peer
        delta = [octet % LEAVES for octet in secrets(PLACES)]
        # In each level the sender asks for the half without the leaf that it is to miss.
        asked = [not element >> level & 1 for element in delta for level in reversed(range(FIELD_BITS))]
        pairs, keys = transfer_keys(peer, asked, secrets)
        grown = [_grow(secrets(KEY_BYTES), pairs[levels]) for levels in _LEVELS]
        sums = b"".join(told for _, told in grown)
        peer.tell(torch.frombuffer(bytearray(sums), dtype=torch.uint8).reshape(TRANSFERS, 2, KEY_BYTES))
        told = peer.hear((TRANSFERS, 2, KEY_BYTES), torch.uint8).numpy()
        self._chooser = _Chooser([leaves for leaves, _ in grown])
        known = [_grow_around(element, keys[at], told[at]) for element, at in zip(delta, _LEVELS, strict=True)]
        self._sender = _Sender(delta, known)

    def choose(self, digits: NDArray[np.uint8], bits: int, dtype: DTypeLike) -> NDArray[Any]:
        """Choose by one message, and return the pads of the digits chosen: ``dtype`` [n].

        Args:
            digits: n digits below 2^bits, uint8; ``BLOCK_BITS`` bits in all keep the message and the memory small.
            bits: of a digit: 1 to 4.
            dtype: integers of 8 to 64 bits, which pads are cut to.
        """
        first = self._chooser.used
        message, rows = self._chooser.choose(digits, bits)
        self._peer.tell(torch.from_numpy(message.view(np.int64)))
        pads = np.empty(len(digits), dtype)
        for part in _parts(len(digits)):
            pads[part] = hash_rows(rows[part], first + part.start).astype(dtype)
        return pads

    def offer(self, count: int, bits: int, dtype: DTypeLike) -> NDArray[Any]:
        """Take the other party's ``choose`` of ``count`` digits, and return the pads of all digits: [2^bits, count].

        Raises ``ProtocolError``: as ``Peer.hear``.
        """
        first = self._sender.used
        message = self._peer.hear((PLACES, bits, _words_for(count)), torch.int64).numpy().view(np.uint64)
        rows, pads = self._sender.rows(message), np.empty((1 << bits, count), dtype)
        for part in _parts(count):
            for digit, multiple in enumerate(self._sender.multiples[: 1 << bits]):
                pads[digit, part] = hash_rows(rows[part] ^ multiple, first + part.start).astype(dtype)
        return pads


class _Streams:
    """What the trees of a direction expand to. A stock serves small amounts, as each expansion is 512 calls."""

    def __init__(self, trees: list[list[bytes | None]], missing: Sequence[int]) -> None:
        """``missing``: what the number of each place's leaves is XORed with."""
        self._trees = [[None if leaf is None else _stream(leaf) for leaf in tree] for tree in trees]
        self._missing, self._stock, self._used = missing, _NO_WORDS, _STOCK_WORDS

    def take(self, bits: int, words: int) -> Words:
        """Return ⊕ r_x and the sum of those r_x with each bit of x, for each place: uint64 [32, 1 + 4, bits, words]."""
        count = bits * words
        if count > _STOCK_WORDS:
            taken = self._expand(count)
        else:
            if self._used + count > _STOCK_WORDS:
                self._stock, self._used = self._expand(_STOCK_WORDS), 0
            taken = self._stock[..., self._used : self._used + count]
            self._used += count
        return taken.reshape(PLACES, 1 + FIELD_BITS, bits, words)

    def _expand(self, words: int) -> Words:
        zeros, octets = bytes(8 * words), np.zeros((LEAVES, 8 * words + KEY_BYTES), np.uint8)  # a block of slack
        leaves = octets[:, : 8 * words].view(np.uint64)
        expanded = np.empty((PLACES, 1 + FIELD_BITS, words), np.uint64)
        for tree, missing, out in zip(self._trees, self._missing, expanded, strict=True):
            for leaf, stream in enumerate(tree):
                if stream is not None:  # the leaf without one stays zeros
                    stream.update_into(zeros, octets[leaf ^ missing].data)
            _fold(leaves, out)
        return expanded


class _Chooser:
    """One direction's chooser; ``used``: the number of the next transfer."""

    def __init__(self, trees: list[list[bytes | None]]) -> None:
        self._streams, self.used = _Streams(trees, [0] * PLACES), 0

    def choose(self, digits: NDArray[np.uint8], bits: int) -> tuple[Words, Words]:
        """Return the message, uint64 [32, bits, words], and the rows v of the digits: uint64 [64·words, 2]."""
        words = _words_for(len(digits))
        choices = np.stack([_packed(digits >> np.uint8(bit) & np.uint8(1)) for bit in range(bits)])
        taken = self._streams.take(bits, words)
        self.used += WORD_BITS * words
        return taken[:, 0] ^ choices, _rows(taken[:, 1:])


class _Sender:
    """One direction's sender; ``used``: the number of the next transfer; ``multiples``: x·Δ, uint64 [16, 2]."""

    def __init__(self, delta: list[int], trees: list[list[bytes | None]]) -> None:
        self._delta, self._streams, self.used = delta, _Streams(trees, delta), 0
        octets = [[_times(digit, element) for element in delta] for digit in range(LEAVES)]
        halves = np.array(octets, np.uint8).reshape(LEAVES, PLACES // 2, 2)
        self.multiples = (halves[..., 0] | halves[..., 1] << FIELD_BITS).view("<u8")

    def rows(self, message: Words) -> Words:
        """Return the rows w of a chooser's message, uint64 [32, bits, words]: uint64 [64·words, 2]."""
        _, bits, words = message.shape
        weighted = self._streams.take(bits, words)[:, 1:]
        for place, element in enumerate(self._delta):
            for bit in range(FIELD_BITS):
                if element >> bit & 1:
                    weighted[place, bit] ^= message[place]
        self.used += WORD_BITS * words
        return _rows(weighted)


def hash_rows(rows: Words, first: int) -> Words:
    """Return π(π(x) ⊕ i) ⊕ π(x) of rows x numbered i = ``first``, …: uint64 [n, 2] → uint64 [n], its first 64 bits."""
    once = _permuted(rows)
    tweaked = once.copy()
    tweaked[:, 0] ^= np.arange(first, first + len(rows), dtype=np.uint64)
    return _permuted(tweaked)[:, 0] ^ once[:, 0]


_PERMUTATION: Final = Cipher(algorithms.AES128(hashlib.sha256(b"veilgraph transfers").digest()[:16]), modes.ECB())  # noqa: S305 a permutation


def _permuted(rows: Words) -> Words:
    rows = np.ascontiguousarray(rows)
    out = np.empty(rows.nbytes + KEY_BYTES - 1, np.uint8)
    _PERMUTATION.encryptor().update_into(rows.view(np.uint8).data, out.data)
    return out[: rows.nbytes].view(np.uint64).reshape(rows.shape)


def _words_for(count: int) -> int:
    return -(-count // WORD_BITS)


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _HASHED_ROWS, count)) for start in range(0, count, _HASHED_ROWS))


def _children(seeds: list[bytes]) -> list[bytes]:
    digests = [hashlib.sha256(b"veilgraph tree" + seed).digest() for seed in seeds]
    return [half for digest in digests for half in (digest[:KEY_BYTES], digest[KEY_BYTES:])]


def _sum(seeds: list[bytes]) -> bytes:
    return reduce(xor, (int.from_bytes(seed, "big") for seed in seeds)).to_bytes(KEY_BYTES, "big")


def _grow(root: bytes, pairs: list[Pair]) -> tuple[list[bytes | None], bytes]:
    """Return a tree's leaves, and for every level the sums of its left and of its right nodes under a pair's keys."""
    layer, told = [root], []
    for pair in pairs:
        layer = _children(layer)
        told += [_sum([*layer[side::2], key]) for side, key in enumerate(pair)]
    return list(layer), b"".join(told)


def _grow_around(place: int, keys: list[bytes], told: NDArray[np.uint8]) -> list[bytes | None]:
    """Return a tree's leaves but the one at ``place``: each level's sum gives the node beside the path to it."""
    layer: list[bytes | None] = [None]
    for level, key in enumerate(keys):
        path = place >> (FIELD_BITS - 1 - level)
        layer = [child for seed in layer for child in ([None, None] if seed is None else _children([seed]))]
        beside = path ^ 1
        known = [seed for seed in layer[beside & 1 :: 2] if seed is not None]
        layer[beside] = _sum([*known, key, told[level, beside & 1].tobytes()])
    return layer


def _stream(seed: bytes) -> CipherContext:
    return Cipher(algorithms.AES128(seed), modes.CTR(bytes(KEY_BYTES))).encryptor()


def _fold(leaves: Words, out: Words) -> None:
    """Set ``out``, [5, words], to ⊕ r_x and the sum of those r_x with each bit of x, the lowest first, of 16 leaves."""
    for bit in reversed(range(FIELD_BITS)):
        half = 1 << bit
        np.bitwise_xor.reduce(leaves[half:], axis=0, out=out[1 + bit])
        leaves = leaves[:half] ^ leaves[half:]
    out[0] = leaves[0]


def _rows(weighted: Words) -> Words:
    """Sum the bits j of each digit with the weights α^j, and transpose: [32, 4, bits, words] → [64·words, 2]."""
    total = weighted[:, :, -1]
    for bit in reversed(range(weighted.shape[2] - 1)):
        zero, one, two, three = np.moveaxis(total, 1, 0)
        total = np.stack([three, zero ^ three, one, two], 1) ^ weighted[:, :, bit]
    return _transposed(total.reshape(TRANSFERS, -1))


def _times(left: int, right: int) -> int:
    """Multiply in F_16 = F_2[α] / (α^4 + α + 1)."""
    product = 0
    for bit in reversed(range(FIELD_BITS)):
        product <<= 1
        if product >> FIELD_BITS:
            product ^= 0b10011
        if left >> bit & 1:
            product ^= right
    return product


def _packed(bits: NDArray[np.uint8]) -> Words:
    """Pack bits to words so that bit j of word w is of row j·words + w, as ``_transposed`` numbers rows."""
    words = _words_for(len(bits))
    padded = np.zeros((WORD_BITS, words), np.uint8)
    padded.reshape(-1)[: len(bits)] = bits
    octets = np.packbits(padded, axis=0, bitorder="little")
    return np.ascontiguousarray(octets.T).view("<u8").reshape(words)


def _transposed(planes: Words) -> Words:
    """Transpose 128 planes of bits, in place: bit j of word w goes to row j·words + w of uint64 [64·words, 2]."""
    words = planes.shape[-1]
    for step, mask in _SWAPS:  # of blocks of 64 × 64 bits, each swap the off-diagonal halves of smaller blocks
        blocks = planes.reshape(TRANSFERS // (2 * step), 2, step, words)
        low, high = blocks[:, 0], blocks[:, 1]
        moved = low >> np.uint64(step)
        moved ^= high
        moved &= np.uint64(mask)
        high ^= moved
        moved <<= np.uint64(step)
        low ^= moved
    return np.ascontiguousarray(planes.reshape(2, WORD_BITS * words).T)
