"""The two kinds of randomness, never mixed.

*Learning* randomness (initial weights, dropout) comes from named streams derived from a seed: stateless, so that
a resumed job draws exactly what an uninterrupted one would have drawn.

*Protective* randomness (shares, masks, keys) is expanded from 32-byte seeds of the operating system with
AES-256-CTR. It cancels in every result, so results do not depend on it.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from math import prod

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from torch import Tensor

from veilgraph.core.secrets import SEED_BYTES, derive_key, system_secrets

PUBLIC_SEEDS = 1 << 63
"""A job's seeds are below; private seeds are not."""

_TWISTER_AT, _TWISTER_WORDS = 3, 624
_AES_BLOCK = 16
_PIECE = 1 << 20
_ZEROS = bytes(_PIECE)
WIDE_BYTES = 1 << 15  # bytes: below, a second cipher costs more than it saves
GCM_BYTES = (1 << 36) - 32  # that GCM gives under one nonce
_GLOBAL_GENERATOR = threading.Lock()


class LearningStreams:
    """Named, counted, stateless random streams for learning.

    ``seed`` fixes all of them and ``party`` keeps the streams of different parties apart. Whoever knows a party's seed
    knows its initial weights. torch's CPU generator keeps 32 bits of what it is seeded with, few enough to try them
    all; the streams of a ``private_seed`` therefore fill the generator's whole state.
    """

    def __init__(self, seed: int, party: str) -> None:
        self._seed = seed
        self._root = hashlib.sha256(f"veilgraph/{seed}/{party}".encode()).digest()
        self._is_private = seed >= PUBLIC_SEEDS

    def to_share(self) -> int:
        """Return a seed to tell other parties: a public seed itself, of a private one a hash that does not show it."""
        return seed_of(self._key("to share", ())) if self._is_private else self._seed

    def secret(self, purpose: str) -> bytes:
        """32 bytes for ``purpose``, as secret as the seed is."""
        return self._key(f"secret/{purpose}", ())

    def seed(self, purpose: str, *counters: int) -> int:
        """A 63-bit seed for ``purpose`` and the counters (epoch, round, ...)."""
        return int.from_bytes(self._key(purpose, counters)[:8], "big") >> 1

    def generator(self, purpose: str, *counters: int) -> torch.Generator:
        """A fresh CPU generator for ``purpose`` and the counters."""
        generator = torch.Generator().manual_seed(self.seed(purpose, *counters))
        if self._is_private:
            generator.set_state(_fill_twister(generator.get_state(), self._key(purpose, counters)))
        return generator

    @contextmanager
    def global_generator(self, purpose: str, *counters: int) -> Iterator[None]:
        """Seed torch's process-wide generator in the block, for code that draws from it, and restore it afterwards.

        One block at a time in a process, so that parties in threads draw what they would draw alone.
        """
        with seeded_global(self.seed(purpose, *counters)):
            if self._is_private:
                torch.set_rng_state(_fill_twister(torch.get_rng_state(), self._key(purpose, counters)))
            yield

    def order(self, purpose: str, ids: Sequence[str]) -> list[int]:
        """Return the rows of ``ids`` sorted by keyed BLAKE2b: an order that says nothing of the ids or their order."""
        digests = self._keyed_digests(purpose, ids)
        return sorted(range(len(digests)), key=digests.__getitem__)

    def uniform(self, purpose: str, ids: Sequence[str]) -> list[float]:
        """Return a pseudorandom number in [0, 1) for each id, from its keyed BLAKE2b alone."""
        return [(int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53 for digest in self._keyed_digests(purpose, ids)]

    def _keyed_digests(self, purpose: str, ids: Sequence[str]) -> list[bytes]:
        key = self._key(purpose, ())
        return [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key).digest() for text in ids]

    def _key(self, purpose: str, counters: tuple[int, ...]) -> bytes:
        """Derive 32 bytes by SHA-256 from the seed, the party, ``purpose`` and the counters."""
        return hashlib.sha256(self._root + "/".join([purpose, *map(str, counters)]).encode()).digest()


def private_seed() -> int:
    """A learning seed that nobody can guess: 256 bits of the operating system, and above every public one."""
    return seed_of(system_secrets(SEED_BYTES))


def seed_of(secret: bytes) -> int:
    """Turn 32 secret bytes into a private seed: 2^256 plus their value."""
    return (1 << 256) | int.from_bytes(secret, "big")


def _fill_twister(state: Tensor, key: bytes) -> Tensor:
    """Replace the 624 Mersenne Twister words in a CPU generator's ``state`` by words expanded from ``key``: uint8."""
    words = state.clone().view(torch.int64)
    words[_TWISTER_AT : _TWISTER_AT + _TWISTER_WORDS] = expand(key, "twister", (_TWISTER_WORDS,)) & 0xFFFFFFFF
    return words.view(torch.uint8)


@contextmanager
def seeded_global(seed: int) -> Iterator[None]:
    """Seeds torch's process-wide generator inside the block and restores it; one block at a time, and not nested."""
    with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.manual_seed(seed)
        else:  # which would keep, for a GPU to come, a stack of calls with every seed
            torch.default_generator.manual_seed(seed)
        yield


class Keystream:
    """Secret bytes that two parties expand alike, as long as they take the same numbers of them in the same order.

    Every (32-byte seed, purpose) has its own AES-256 key.
    """

    def __init__(self, seed: bytes, purpose: str) -> None:
        self._key = algorithms.AES256(derive_key(seed, purpose))
        self._parts: Iterator[tuple[CipherContext, int]] | None = None
        self._left = 0

    def take(self, length: int) -> Tensor:
        """Return the keystream's next ``length`` bytes: uint8 [length], AES-256-CTR."""
        buffer = torch.empty(length + _AES_BLOCK - 1, dtype=torch.uint8)
        view, zeros = memoryview(buffer.numpy().data), memoryview(_ZEROS)
        if self._parts is None:
            self._parts = self._in_parts(length >= WIDE_BYTES and gcm_is_faster())
        start = 0
        while start < length:
            if self._left == 0:
                self._stream, self._left = next(self._parts)
            size = min(_PIECE, length - start, self._left)
            self._stream.update_into(zeros[:size], view[start : start + size + _AES_BLOCK - 1])
            self._left -= size
            start += size
        return buffer[:length]

    def _in_parts(self, wide: bool) -> Iterator[tuple[CipherContext, int]]:
        """Yield the ciphers that make the keystream in turn, and how many bytes each gives; GCM too if ``wide``.

        GCM encrypts in counter mode too (NIST SP 800-38D, 7.1): under a nonce of zeros its counter begins at 2 and has
        32 bits. OpenSSL does it with wider instructions, and no tag is asked for.
        """
        blocks = 0
        if wide:
            yield Cipher(self._key, modes.CTR(bytes(_AES_BLOCK))).encryptor(), 2 * _AES_BLOCK
            yield Cipher(self._key, modes.GCM(bytes(12))).encryptor(), GCM_BYTES
            blocks = 2 + GCM_BYTES // _AES_BLOCK
        yield Cipher(self._key, modes.CTR(blocks.to_bytes(_AES_BLOCK, "big"))).encryptor(), sys.maxsize


@cache
def gcm_is_faster() -> bool:
    """Time AES-256 on this machine, once: True where GCM, which uses vector instructions, beats CTR."""
    zeros, buffer = memoryview(_ZEROS)[: 1 << 18], bytearray((1 << 18) + _AES_BLOCK)

    def seconds(mode: modes.CTR | modes.GCM) -> float:
        stream = Cipher(algorithms.AES256(bytes(32)), mode).encryptor()
        times = [time.perf_counter()]
        for _ in range(3):
            stream.update_into(zeros, buffer)
            times.append(time.perf_counter())
        return min(after - before for before, after in pairwise(times))

    return seconds(modes.GCM(bytes(12))) < seconds(modes.CTR(bytes(_AES_BLOCK)))


def expand(seed: bytes, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Expand 32 secret bytes to uniform elements of Z_2^64, int64 of ``shape``: ``Keystream`` of (seed, purpose)."""
    return Keystream(seed, purpose).take(8 * prod(shape)).view(torch.int64).reshape(shape)
