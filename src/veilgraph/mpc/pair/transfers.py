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
from veilgraph.mpc.intersect import POINT_BYTES
from veilgraph.mpc.pair.base_transfers import KEY_BYTES, TRANSFERS, Pair, transfer_keys
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
        places = np.frombuffer(secrets(PLACES), np.uint8) % LEAVES
        # In each level the sender asks for the half that its missing leaf is not in.
        asked = [not (place >> level) & 1 for place in places.tolist() for level in reversed(range(FIELD_BITS))]
        pairs, keys = transfer_keys(peer, asked, secrets)
        roots = [secrets(KEY_BYTES) for _ in range(PLACES)]
        leaves, sums = zip(
            *(_grow(root, pairs[at : at + 4]) for root, at in zip(roots, _starts(), strict=True)), strict=True
        )
        peer.tell(torch.frombuffer(bytearray(b"".join(sums)), dtype=torch.uint8).reshape(TRANSFERS, 2, KEY_BYTES))
        told = peer.hear((TRANSFERS, 2, KEY_BYTES), torch.uint8).numpy()
        self._chooser = _Chooser([[_stream(leaf) for leaf in tree] for tree in leaves])
        known = [
            _grow_around(int(place), keys[at : at + 4], told[at : at + 4])
            for place, at in zip(places, _starts(), strict=True)
        ]
        self._sender = _Sender(places, [[leaf if leaf is None else _stream(leaf) for leaf in tree] for tree in known])

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
        rows, pads = self._sender.rows(message, bits), np.empty((1 << bits, count), dtype)
        for part in _parts(count):
            for digit, multiple in enumerate(self._sender.multiples[: 1 << bits]):
                pads[digit, part] = hash_rows(rows[part] ^ multiple, first + part.start).astype(dtype)
        return pads


class _Chooser:
    """One direction's chooser; ``used``: the number of the next row."""

    def __init__(self, trees: list[list[CipherContext]]) -> None:
        self._trees, self.used = trees, 0

    def choose(self, digits: NDArray[np.uint8], bits: int) -> tuple[Words, Words]:
        """Return the message, uint64 [32, bits, words], and the rows v of the digits: uint64 [64·words, 2]."""
        words = _words_for(len(digits))
        choices = np.stack([_packed(digits >> np.uint8(bit) & np.uint8(1)) for bit in range(bits)])
        message, planes = np.empty((PLACES, bits, words), np.uint64), np.empty((TRANSFERS, words), np.uint64)
        room = _Room(bits, words)
        for place, tree in enumerate(self._trees):
            total, weighted = _folded(room.fill(tree))
            message[place] = total ^ choices
            planes[place * FIELD_BITS : (place + 1) * FIELD_BITS] = _joined(weighted)
        self.used += WORD_BITS * words
        return message, _transposed(planes)


class _Sender:
    """One direction's sender; ``used``: the number of the next row; ``multiples``: x·Δ, uint64 [16, 2]."""

    def __init__(self, places: NDArray[np.uint8], trees: list[list[CipherContext | None]]) -> None:
        self._places, self._trees, self.used = places.tolist(), trees, 0
        octets = [[_times(digit, place) for place in self._places] for digit in range(LEAVES)]
        halves = np.array(octets, np.uint8).reshape(LEAVES, PLACES // 2, 2)
        self.multiples = (halves[..., 0] | halves[..., 1] << FIELD_BITS).view("<u8")

    def rows(self, message: Words, bits: int) -> Words:
        """Return the rows w of what the chooser's message is about: uint64 [64·words, 2]."""
        words = message.shape[-1]
        planes, room = np.empty((TRANSFERS, words), np.uint64), _Room(bits, words)
        for place, (missing, tree) in enumerate(zip(self._places, self._trees, strict=True)):
            _, weighted = _folded(room.fill(tree, missing))  # nothing is at 0, which weighs nothing
            for bit in range(FIELD_BITS):
                if missing >> bit & 1:
                    weighted[bit] ^= message[place]
            planes[place * FIELD_BITS : (place + 1) * FIELD_BITS] = _joined(weighted)
        self.used += WORD_BITS * words
        return _transposed(planes)


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


def _starts() -> range:
    return range(0, TRANSFERS, FIELD_BITS)


def _words_for(count: int) -> int:
    return -(-count // WORD_BITS)


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _HASHED_ROWS, count)) for start in range(0, count, _HASHED_ROWS))


def _children(seeds: list[bytes]) -> list[bytes]:
    digests = [hashlib.sha256(b"veilgraph tree" + seed).digest() for seed in seeds]
    return [half for digest in digests for half in (digest[:KEY_BYTES], digest[KEY_BYTES:])]


def _sum(seeds: list[bytes]) -> bytes:
    return reduce(xor, (int.from_bytes(seed, "big") for seed in seeds)).to_bytes(KEY_BYTES, "big")


def _grow(root: bytes, pairs: list[Pair]) -> tuple[list[bytes], bytes]:
    """Return a tree's leaves, and for every level the sums of its left and of its right nodes under a pair's keys."""
    layer, told = [root], []
    for pair in pairs:
        layer = _children(layer)
        told += [_sum([*layer[side::2], key]) for side, key in enumerate(pair)]
    return layer, b"".join(told)


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


class _Room:
    """Room for what the 16 leaves of a tree expand to, filled for one tree after the other."""

    def __init__(self, bits: int, words: int) -> None:
        self._zeros, self._shape = bytes(8 * bits * words), (LEAVES, bits, words)
        self._octets = np.zeros((LEAVES, len(self._zeros) + KEY_BYTES), np.uint8)  # a block more, as the library asks

    def fill(self, streams: Sequence[CipherContext | None], missing: int = 0) -> Words:
        """Return what leaf x expands to, at x ⊕ ``missing``, zeros without a stream: uint64 [16, bits, words]."""
        for leaf, stream in enumerate(streams):
            if stream is not None:
                stream.update_into(self._zeros, self._octets[leaf ^ missing].data)
        return self._octets[:, : len(self._zeros)].view(np.uint64).reshape(self._shape)


def _folded(leaves: Words) -> tuple[Words, list[Words]]:
    """Return ⊕ r_x, and for each bit of x, the lowest first, the sum of those r_x whose x has it."""
    weighted = list[Words]()
    while len(leaves) > 1:
        half = len(leaves) // 2
        weighted.insert(0, np.bitwise_xor.reduce(leaves[half:], axis=0))
        leaves = leaves[:half] ^ leaves[half:]
    return leaves[0], weighted


def _joined(planes: list[Words]) -> list[Words]:
    """Sum the rows of a digit's bits j with the weights α^j: bits of F_16, each [bits, words], → each [words]."""
    total = [plane[-1] for plane in planes]
    for bit in reversed(range(len(planes[0]) - 1)):
        zero, one, two, three = total
        total = [above ^ plane[bit] for above, plane in zip((three, zero ^ three, one, two), planes, strict=True)]
    return total


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
