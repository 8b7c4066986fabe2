"""Base oblivious transfers, both ways: the sender gets 128 pairs of keys, the chooser one key of each pair.

The transfer is Bellare and Micali's (CRYPTO 1989), hashed as Naor and Pinkas do (SODA 2001), on secp256k1. C is a
point that is hashed from a name, so nobody knows its logarithm. The sender draws a and sends A = a·G. The chooser of
bit c draws r, sets B_c = r·G and B_{1−c} = C − B_c, and sends B_0. The keys are hashes of a·B_0 and a·B_1, and the
chooser computes its own from a·B_c = r·A.

- Chooser's privacy: B_0 is a uniform point for either bit, so it says nothing, whatever the sender computes.
- Sender's privacy: a·B_0 + a·B_1 = a·C. Who asks the hash, a random oracle, for both keys of a pair has solved the
  Diffie–Hellman problem of (A, C). This holds for every B_0, so also for a chooser that deviates.

The hash covers the direction, the transfer's number, the side and both messages, so one A serves all transfers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

import torch
from coincurve import PublicKey

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.mpc.intersect import POINT_BYTES, hash_and_multiply, multiply, random_scalar
from veilgraph.mpc.pair.peer import Peer

TRANSFERS: Final = 128
KEY_BYTES: Final = 16

Pair: TypeAlias = tuple[bytes, bytes]

_DOMAIN: Final = b"veilgraph base transfer/"


def transfer_keys(peer: Peer, choices: Sequence[bool], secrets: SecretSource) -> tuple[list[Pair], list[bytes]]:
    """Transfer keys both ways in one exchange; both parties call it, once.

    Args:
        peer: the other party.
        choices: which key of each of its pairs this party takes: ``TRANSFERS`` of them.
        secrets: gives the scalars.

    Returns:
        The pairs of keys that this party sends, and the keys that it has chosen, 16 bytes each.

    Raises:
        ProtocolError: the other party sent what is no point, or C itself, which leaves no second point.
    """
    own = random_scalar(secrets)
    scalars = [random_scalar(secrets) for _ in choices]
    points = [_of_generator(scalar) for scalar in scalars]
    sides = [(point, _rest(point)) for point in points]  # both, so that the time says nothing of the choice
    firsts = [side[choice] for side, choice in zip(sides, choices, strict=True)]
    message = b"".join([_of_generator(own), *firsts])
    peer.tell(torch.frombuffer(bytearray(message), dtype=torch.uint8).reshape(-1, POINT_BYTES))
    told = peer.hear((1 + TRANSFERS, POINT_BYTES), torch.uint8).numpy().tobytes()
    theirs, *their_firsts = [told[start : start + POINT_BYTES] for start in range(0, len(told), POINT_BYTES)]
    try:
        their_seconds = [_rest(point) for point in their_firsts]
        opened = [multiply(own, side) for side in (their_firsts, their_seconds)]
        reached = [multiply(scalar, [theirs])[0] for scalar in scalars]
    except ValueError as error:
        raise ProtocolError(
            f"{peer.other} sent bytes that are no point of secp256k1 a base transfer can use",
            code="no-point",
            party=peer.other,
        ) from error
    ours, others = _direction(peer.leads, message, told), _direction(not peer.leads, told, message)
    sent = [
        (_key(ours, number, 0, first), _key(ours, number, 1, second))
        for number, (first, second) in enumerate(zip(*opened, strict=True))
    ]
    chosen = [
        _key(others, number, int(choice), point)
        for number, (choice, point) in enumerate(zip(choices, reached, strict=True))
    ]
    return sent, chosen


def _direction(sender_leads: bool, sender: bytes, chooser: bytes) -> bytes:
    """Hash which party sends, and both messages."""
    return hashlib.sha256(_DOMAIN + bytes([sender_leads]) + sender + chooser).digest()


def _key(direction: bytes, number: int, side: int, point: bytes) -> bytes:
    return hashlib.sha256(direction + bytes([number, side]) + point).digest()[:KEY_BYTES]


def _of_generator(scalar: int) -> bytes:
    """Return scalar·G."""
    return PublicKey.from_valid_secret(scalar.to_bytes(32, "big")).format()


def _rest(point: bytes) -> bytes:
    """Return C − point; ``ValueError``: this is no point."""
    negative = bytes([point[0] ^ 1]) + point[1:]  # the other root of the curve's equation
    return PublicKey.combine_keys([_nobodys_point(), PublicKey(negative)]).format()


@cache
def _nobodys_point() -> PublicKey:
    """Return C, which is hashed to the curve."""
    return PublicKey(hash_and_multiply(1, ["base transfers"])[0])
