"""Multiply points of Curve25519 by secret scalars: arrays of u-coordinates (RFC 7748).

The curve v² = u³ + 486662·u² + u over the field of p = 2^255 − 19 has 8·q points, q prime. u is the same for P and −P,
so scalars matter up to their sign, and products form the group of order q up to sign:

- Scalars are X25519's, 8·m with m in [2^251, 2^252). The factor 8 takes the part of small order from any point, also
  from H(id), which has one. All that a multiplication returns, on the curve, has order q.
- ±8·m takes all residues modulo q but 2^126 of 2^252, and almost all equally often. So a scalar is uniform, and
  decisional Diffie–Hellman in the group of order q holds for u-coordinates too.
- Half of all u belong to the curve's twist, and multiples of u do so with it: a bit that every party sees, and that
  would tell guesses of an id apart. H takes no such u. A party that sends one all the same learns nothing more: the
  twist's order is four times a prime of 253 bits, and scalars are multiples of 4.

crypto_mb multiplies some crafted points wrongly, such as u = p − 2, and whether it does depends on bits of the scalar
(``x25519``). So another party's points are multiplied by two factors of the scalar, one after the other. The first is
random and new for each list of points, so it tells nothing of the scalar. What the second multiplies nobody can choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from veilgraph.core.secrets import SecretSource
from veilgraph.mpc.hash_to_curve import POINT_BYTES, HashAll, hash_all
from veilgraph.mpc.ring import in_parallel
from veilgraph.mpc.x25519 import Points, fast_multiply, multiply_by_openssl

ORDER: Final = 2**252 + 27742317777372353535851937790883648493  # q

_ALL_ONES: Final = np.uint64(2**64 - 1)
_LAST_ONES: Final = np.uint64(2**63 - 1)
_SMALL_ORDER: Final = [  # u of all points of order 1 to 8 but the neutral one, the twist's among them
    *(0, 1, 2**255 - 20),
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]
_SMALL_WORDS: Final = np.array([[u >> shift & 2**64 - 1 for shift in (0, 64, 128, 192)] for u in _SMALL_ORDER], "<u8")
_ROWS_OF_TASK: Final = 1 << 9  # that one thread multiplies at a time


def draw_scalars(secrets: SecretSource) -> tuple[bytes, bytes, bytes]:
    """Draw b and s, and return them and k = ±b·s modulo q, 32 bytes each."""
    while True:  # once, but for 2^-125
        blind, seal = _draw(secrets), _draw(secrets)
        if key := _encode(blind * seal):
            return _to_bytes(blind), _to_bytes(seal), key


def _draw(secrets: SecretSource) -> int:
    return int.from_bytes(secrets(POINT_BYTES), "little") % 2**251 * 8 + 2**254


def _encode(residue: int) -> bytes | None:
    """Return the scalar that is ±residue modulo q; None for one residue in 2^126."""
    eighth = residue * pow(8, -1, ORDER) % ORDER
    scalar = 8 * max(eighth, ORDER - eighth)
    return _to_bytes(scalar) if scalar < 2**255 else None


def _to_bytes(scalar: int) -> bytes:
    return scalar.to_bytes(POINT_BYTES, "little")


def draw_inverses(secrets: SecretSource) -> tuple[bytes, bytes]:
    """Draw b, and return it and s with b·s = ±1 modulo q, 32 bytes each."""
    return _draw_factors(_to_bytes(1), secrets)


def _draw_factors(scalar: bytes, secrets: SecretSource) -> tuple[bytes, bytes]:
    """Draw a scalar, and return it and one whose product with it is ±scalar modulo q."""
    while True:  # likewise
        first = _draw(secrets)
        if second := _encode(int.from_bytes(scalar, "little") * pow(first, -1, ORDER)):
            return _to_bytes(first), second


def hash_and_multiply(scalar: bytes, names: Sequence[bytes], hashing: HashAll = hash_all) -> Points:
    """Return scalar·H(name) of each name."""
    return _multiply_all(scalar, np.frombuffer(hashing(names), np.uint8).reshape(-1, POINT_BYTES))


def multiply(scalar: bytes, points: Points, secrets: SecretSource) -> Points:
    """Return scalar·P of each point P of another party.

    With crypto_mb, a point of the twist is multiplied by another scalar, as factors are those modulo q. ``secrets``
    gives the first factor.

    Raises:
        ValueError: a row is no u below p, or its point is of small order.
    """
    first, second = _draw_factors(scalar, secrets)  # also where they serve nothing: draws are the same everywhere
    words = np.ascontiguousarray(points).view("<u8")
    full = (words[:, 1] == _ALL_ONES) & (words[:, 2] == _ALL_ONES) & (words[:, 3] == _LAST_ONES)
    if ((words[:, 3] > _LAST_ONES) | full & (words[:, 0] >= _ALL_ONES - np.uint64(18))).any():
        raise ValueError("not below 2^255 - 19")
    if fast_multiply() is None:
        return _multiply_all(scalar, points)
    return _multiply_all(second, _multiply_all(first, points))


def _multiply_all(scalar: bytes, points: Points) -> Points:
    """Multiply by several threads: the libraries let others run.

    Raises ``ValueError``: a point is of small order, whose product crypto_mb may take for another than 0.
    """
    words = np.ascontiguousarray(points).view("<u8")
    alike = words[np.isin(words[:, 0], _SMALL_WORDS[:, 0])]
    if (alike[:, None] == _SMALL_WORDS).all(2).any():
        raise ValueError("of small order")
    some, starts = fast_multiply() or multiply_by_openssl, range(0, len(points), _ROWS_OF_TASK)
    tasks = [partial(some, scalar, points[start : start + _ROWS_OF_TASK]) for start in starts]
    return np.concatenate([points[:0], *in_parallel(tasks, "points")])
