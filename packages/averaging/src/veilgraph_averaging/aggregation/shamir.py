"""Shamir's secret sharing: any t of n shares give the secret, and fewer say nothing of it (Shamir 1979).

Secrets and shares are elements of the prime field of 2^255 − 19. Holder number i, from 1, has f(i) for a random
polynomial f of degree t − 1 with f(0) the secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.secrets import SecretSource

FIELD: Final = 2**255 - 19
ELEMENT_BYTES: Final = 32
_SOURCE_BYTES: Final = 64  # twice the size of the field: the remainder is uniform to 2^-256


def draw(secrets: SecretSource) -> int:
    """A uniform element of the field."""
    return int.from_bytes(secrets(_SOURCE_BYTES), "little") % FIELD


def to_bytes(element: int) -> bytes:
    """An element of the field as ``ELEMENT_BYTES`` bytes."""
    return element.to_bytes(ELEMENT_BYTES, "little")


def of_bytes(content: bytes) -> int:
    """Decode bytes of ``to_bytes``; ``ProtocolError`` for what is no element of the field."""
    element = int.from_bytes(content, "little")
    if len(content) != ELEMENT_BYTES or element >= FIELD:
        raise ProtocolError(
            f"{len(content)} bytes came that are no number below 2^255 - 19, a share was expected", code="bad-share"
        )
    return element


def split(secret: int, threshold: int, holders: int, secrets: SecretSource) -> list[int]:
    """Split a field element into shares for holders 1 to n = ``holders``; any ``threshold``, t, of them restore it.

    Raises ``ConfigError``: t is not in 1 … n.
    """
    if not 1 <= threshold <= holders:
        raise ConfigError(f"threshold={threshold} must lie in 1 to {holders}, the number of holders")
    coefficients = [secret, *(draw(secrets) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, point) for point in range(1, holders + 1)]


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % FIELD
    return value


def weights(points: Sequence[int]) -> list[int]:
    """Return Lagrange's weights that give f(0) from f at distinct ``points``; they serve many secrets."""
    found = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other % FIELD, below * (other - point) % FIELD
        found.append(above * pow(below, -1, FIELD) % FIELD)
    return found


def combine(shares: Mapping[int, int]) -> int:
    """Restore a secret from at least t shares, by holders' numbers; from fewer the result is another element."""
    each = weights(list(shares))
    return sum(weight * share for weight, share in zip(each, shares.values(), strict=True)) % FIELD
