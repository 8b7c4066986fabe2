"""Hash text to Curve25519, and multiply points by secret scalars: arrays of u-coordinates (RFC 7748).

The curve v² = u³ + 486662·u² + u over the field of p = 2^255 − 19 has 8·q points, q prime. u is the same for P and −P,
so scalars matter up to their sign, and products form the group of order q up to sign:

- Scalars are X25519's, 8·m with m in [2^251, 2^252). The factor 8 takes the part of small order from any point, also
  from H(id), which has one. All that a multiplication returns, on the curve, has order q.
- ±8·m takes all residues modulo q but 2^126 of 2^252, and almost all equally often. So a scalar is uniform, and
  decisional Diffie–Hellman in the group of order q holds for u-coordinates too.
- Half of all u belong to the curve's twist, and multiples of u do so with it: a bit that every party sees, and that
  would tell guesses of an id apart. H takes no such u. A party that sends one all the same learns nothing more: the
  twist's order is four times a prime of 253 bits, and scalars are multiples of 4.

crypto_mb multiplies some crafted points wrongly, such as u = p − 3, and whether it does depends on bits of the scalar
(``x25519``). So another party's points are multiplied by two factors of the scalar, one after the other. The first is
random and tells nothing of the product; what the second multiplies nobody can choose. Points of small order are
refused before each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

import gmpy2
import numpy as np

from veilgraph.core.secrets import SecretSource
from veilgraph.mpc.ring import in_parallel
from veilgraph.mpc.x25519 import POINT_BYTES, Points, fast_multiply, multiply_by_openssl

ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # q

_PRIME: Final = 2**255 - 19
_A: Final = 486662
_HASHED: Final = (1 << 255) - 1
_DOMAINS: Final = [b"veilgraph alignment/" + bytes([count]) for count in range(256)]
_ALL_ONES: Final = np.uint64(2**64 - 1)
_LAST_ONES: Final = np.uint64(2**63 - 1)
_SMALL_ORDER: Final = [  # u of all points of order 1 to 8 but the neutral one, the twist's among them
    *(0, 1, _PRIME - 1),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
_SMALL_WORDS: Final = np.frombuffer(b"".join(u.to_bytes(32, "little") for u in _SMALL_ORDER), "<u8").reshape(-1, 4)
_ROWS_OF_TASK: Final = 1 << 9  # that one thread multiplies at a time


@dataclass(frozen=True, slots=True)
class Scalar:
    """A secret scalar of X25519, and two factors of it: whole = ±first·second modulo q. Each is 32 bytes."""

    whole: bytes
    first: bytes
    second: bytes


def draw_scalars(secrets: SecretSource) -> tuple[Scalar, Scalar, Scalar]:
    """Draw b and s, and return them and k = ±b·s modulo q."""
    while True:  # once, but for 2^-124
        drawn = [int.from_bytes(secrets(POINT_BYTES), "little") for _ in range(5)]
        blind, seal, *firsts = [each % 2**251 * 8 + 2**254 for each in drawn]
        wholes = blind, seal, blind * seal
        seconds = [whole * pow(first, -1, ORDER) for whole, first in zip(wholes, firsts, strict=True)]
        eighths = [_eighth(each) for each in (*wholes, *firsts, *seconds)]
        if max(eighths) < 2**252:
            parts = [(8 * eighth).to_bytes(POINT_BYTES, "little") for eighth in eighths]
            return Scalar(*parts[::3]), Scalar(*parts[1::3]), Scalar(*parts[2::3])


def _eighth(scalar: int) -> int:
    """Return m with 8·m = ±scalar modulo q, at least 2^251."""
    eighth = scalar * pow(8, -1, ORDER) % ORDER
    return max(eighth, ORDER - eighth)


def hash_and_multiply(scalar: Scalar, names: Sequence[bytes]) -> Points:
    """Return scalar·H(name) of each name.

    H(name) is the first of SHA-256(domain, 0, name), (domain, 1, name), … that is a u of the curve by its first 255
    bits. It is of small order, which is refused, with probability 2^-252. The time depends on the name.
    """
    hashed = np.frombuffer(b"".join(map(_hash, names)), np.uint8).reshape(-1, POINT_BYTES)
    return _multiply_all(scalar.whole, hashed)


def _hash(name: bytes) -> bytes:
    for domain in _DOMAINS:  # half of all numbers are a u of the curve
        u = int.from_bytes(sha256(domain + name).digest(), "little") & _HASHED
        if u < _PRIME and gmpy2.jacobi(((u + _A) * u + 1) * u, _PRIME) == 1:
            return u.to_bytes(POINT_BYTES, "little")
    raise AssertionError


def multiply(scalar: Scalar, points: Points) -> Points:
    """Return scalar·P of each point P of another party.

    With crypto_mb, points of the twist are multiplied by another scalar, as factors are those modulo q.

    Raises:
        ValueError: a row is no u below p, or its point is of small order.
    """
    words = np.ascontiguousarray(points).view("<u8")
    full = (words[:, 1] == _ALL_ONES) & (words[:, 2] == _ALL_ONES) & (words[:, 3] == _LAST_ONES)
    if ((words[:, 3] > _LAST_ONES) | full & (words[:, 0] >= _ALL_ONES - np.uint64(18))).any():
        raise ValueError("not below 2^255 - 19")
    if fast_multiply() is None:
        return _multiply_all(scalar.whole, points)
    return _multiply_all(scalar.second, _multiply_all(scalar.first, points))


def _multiply_all(scalar: bytes, points: Points) -> Points:
    """Multiply by several threads: the libraries let others run.

    Raises ``ValueError``: a point is of small order, whose product crypto_mb may take for another than 0.
    """
    words = np.ascontiguousarray(points).view("<u8")
    if (words[:, None] == _SMALL_WORDS).all(2).any():
        raise ValueError("of small order")
    some, starts = fast_multiply() or multiply_by_openssl, range(0, len(points), _ROWS_OF_TASK)
    tasks = [partial(some, scalar, points[start : start + _ROWS_OF_TASK]) for start in starts]
    return np.concatenate([points[:0], *in_parallel(tasks, "points")])
