"""Base oblivious transfers, both ways: the sender gets 128 pairs of keys, the chooser one key of each pair.

The transfer is Bellare and Micali's (CRYPTO 1989), hashed as Naor and Pinkas do (SODA 2001), in the group of prime
order on edwards25519 (RFC 8032), by libsodium, which refuses points outside of it. C is hashed from a name to the
group, so nobody knows its logarithm. The sender draws a and sends A = a·G. The chooser of bit c draws r, sets
B_c = r·G and B_{1−c} = C − B_c, and sends B_0. The keys are hashes of a·B_0 and a·B_1, and the chooser computes its
own from a·B_c = r·A.

- Chooser's privacy: B_0 is a uniform point for either bit, so it says nothing, whatever the sender computes.
- Sender's privacy: a·B_0 + a·B_1 = a·C. Who asks the hash, a random oracle, for both keys of a pair has solved the
  Diffie–Hellman problem of (A, C). This holds for every B_0 in the group, so also for a chooser that deviates.

The hash covers the direction, the transfer's number, the side and both messages, so one A serves all transfers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from nacl import bindings
from nacl.exceptions import CryptoError

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.mpc.pair.peer import Peer

TRANSFERS: Final = 128
KEY_BYTES: Final = 16
POINT_BYTES: Final = 32

Pair: TypeAlias = tuple[bytes, bytes]

_DOMAIN: Final = b"veilgraph base transfer/"
_NOBODYS_POINT: Final = bindings.crypto_core_ed25519_from_uniform(hashlib.sha256(_DOMAIN + b"C").digest())


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
    own, *scalars = [_random_scalar(secrets) for _ in range(1 + len(choices))]
    points = [bindings.crypto_scalarmult_ed25519_base_noclamp(scalar) for scalar in scalars]
    sides = [(point, _rest(point)) for point in points]  # both, so that the time says nothing of the choice
    firsts = [side[choice] for side, choice in zip(sides, choices, strict=True)]
    message = b"".join([bindings.crypto_scalarmult_ed25519_base_noclamp(own), *firsts])
    peer.tell(torch.frombuffer(bytearray(message), dtype=torch.uint8).reshape(-1, POINT_BYTES))
    told = peer.hear((1 + TRANSFERS, POINT_BYTES), torch.uint8).numpy().tobytes()
    theirs, *their_firsts = [told[start : start + POINT_BYTES] for start in range(0, len(told), POINT_BYTES)]
    try:
        their_seconds = [_rest(point) for point in their_firsts]
        opened = [[_times(own, point) for point in side] for side in (their_firsts, their_seconds)]
        reached = [_times(scalar, theirs) for scalar in scalars]
    except CryptoError as error:
        raise ProtocolError(
            f"{peer.other} sent bytes that are no point a base transfer can use",
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


def _random_scalar(secrets: SecretSource) -> bytes:
    """Draw a scalar, uniform below the group's order."""
    return bindings.crypto_core_ed25519_scalar_reduce(secrets(bindings.crypto_core_ed25519_NONREDUCEDSCALARBYTES))


def _times(scalar: bytes, point: bytes) -> bytes:
    """Return scalar·point; ``CryptoError``: this is not the one encoding of a point of the group, or is 0."""
    return bindings.crypto_scalarmult_ed25519_noclamp(scalar, point)


def _rest(point: bytes) -> bytes:
    """Return C − point; ``CryptoError``: this is no point of the curve."""
    return bindings.crypto_core_ed25519_sub(_NOBODYS_POINT, point)
