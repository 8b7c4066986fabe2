"""Products of two parties' numbers entry by entry, whose results they share: by ring-LWE, without a dealer.

Modulo a prime t ≡ 1 mod 2N a polynomial stands for N slots, its values at the roots of x^N + 1, and a product of
polynomials for the products of their slots (Smart and Vercauteren, 2014). The leader encrypts its l and r in slots, and
the other party answers with V − Z for V = l0·r1 + l1·r0. Three primes t hold that integer exactly: |V| ≤ 2^127, and Z,
the other party's share, is uniform in ±2^169, which hides V up to a statistical distance of 2^-42. Both shares are
taken modulo 2^64 at the end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.mpc.pair.blocks import parts
from veilgraph.mpc.pair.lattice import Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.polynomials import Ring, primes_below
from veilgraph.mpc.pair.products import Messages

_DEGREE: Final = 8192
_PRIME_BITS: Final = 57
_SLOTS: Final = Ring(_DEGREE, primes_below(_PRIME_BITS, 6, _DEGREE)[3:])  # the first three are the scheme's own
_MASK_SHIFT: Final = 64 - (170 - 128)
_AT_ONCE: Final = 4
_PLACES: Final = np.arange(_DEGREE, dtype=np.uint64)


def entries_scheme() -> Scheme:
    """The scheme for two products of a message and a polynomial with coefficients up to t/2."""
    half = 2.0 ** (_PRIME_BITS - 1)
    return scheme(_SLOTS.primes[0], 2 * _DEGREE * half, 2 * _DEGREE * half * half)


def elementwise_messages(entries: int) -> Messages:
    """Bytes that the leader and the other party send in ``elementwise`` of so many entries, message by message."""
    form, groups = entries_scheme(), parts(-(-entries // _DEGREE), _AT_ONCE)
    if not entries:
        return []
    fresh = [SEED_BYTES, 8 * form.fresh_words(1)]
    fresh += [8 * form.fresh_words(2 * len(group)) for group in groups for _ in _SLOTS.primes]
    answers = [8 * form.answer_words(len(group), _DEGREE) for group in groups for _ in _SLOTS.primes]
    return [(size, 0) for size in fresh] + [(0, size) for size in answers]


def elementwise(peer: Peer, secrets: SecretSource, left: Tensor, right: Tensor) -> Tensor:
    """Return this party's share of l0·r1 + l1·r0 modulo 2^64, int64 of the shape of l and r.

    Args:
        peer: the other party.
        secrets: source of secret bytes.
        left: l of this party, int64 of any shape.
        right: r of this party, int64 of the same shape.

    """
    if left.shape != right.shape:
        raise ValueError(f"`left` has the shape {tuple(left.shape)} and `right` {tuple(right.shape)}; give equal ones")
    if not left.numel():
        return torch.zeros_like(left)
    count = -(-left.numel() // _DEGREE)
    pairs = np.zeros((count, 2, _DEGREE), np.uint64)
    for place, tensor in enumerate((left, right)):
        flat = tensor.reshape(-1).numpy().view(np.uint64)
        for group in range(count):
            piece = flat[group * _DEGREE : (group + 1) * _DEGREE]
            pairs[group, place, : len(piece)] = piece
    share = _encrypt(peer, Owner(entries_scheme(), secrets), pairs) if peer.leads else _answer(peer, secrets, pairs)
    return torch.from_numpy(share.reshape(-1)[: left.numel()].view(np.int64).copy()).reshape(left.shape)


def _encrypt(peer: Peer, owner: Owner, pairs: Words) -> Words:
    """The leader's part: its share [count, N]."""
    owner.begin(peer)
    for group in parts(len(pairs), _AT_ONCE):
        messages = _SLOTS.untransform(_SLOTS.residues(pairs[group.start : group.stop].reshape(-1, _DEGREE)))
        for place, modulus in enumerate(_SLOTS.primes):
            owner.send(peer, owner.encrypt(np.ascontiguousarray(messages[:, place]), modulus=modulus))
    shares = []
    for group in parts(len(pairs), _AT_ONCE):
        answers = [owner.receive(peer, len(group), _PLACES, modulus) for modulus in _SLOTS.primes]
        shares.append(_SLOTS.integers(_SLOTS.transform(np.stack(answers, axis=1)))[1])
    return np.concatenate(shares)


def _answer(peer: Peer, secrets: SecretSource, pairs: Words) -> Words:
    """The other party's part: its share [count, N]."""
    responder = Responder(entries_scheme(), secrets, peer)
    polynomials, shares = responder.scheme.ring, []
    for group in parts(len(pairs), _AT_ONCE):
        factors = pairs[group.start : group.stop, ::-1].reshape(-1, _DEGREE)  # l meets the other one's r
        plain = _SLOTS.untransform(_SLOTS.residues(factors))
        own, masks = _draw_masks(responder, len(group))
        shares.append(own)
        for place, modulus in enumerate(_SLOTS.primes):
            around_zero = plain[:, place] - np.where(plain[:, place] > modulus // 2, np.uint64(modulus), np.uint64(0))
            weights = polynomials.transform(polynomials.residues(around_zero))
            first, second = (
                _sums_of_pairs(polynomials, polynomials.multiply(part, weights))
                for part in responder.receive(peer, 2 * len(group))
            )
            responder.answer(peer, (first, second), _PLACES, np.ascontiguousarray(masks[:, place]), modulus=modulus)
    return np.concatenate(shares)


def _sums_of_pairs(polynomials: Ring, products: Words) -> Words:
    """Add each other polynomial to the one before it."""
    return polynomials.add(np.ascontiguousarray(products[::2]), np.ascontiguousarray(products[1::2]))


def _draw_masks(responder: Responder, count: int) -> tuple[Words, Words]:
    """Draw Z uniform in ±2^169: modulo 2^64 [count, N], and as polynomials with these slots [count, 3, N]."""
    upper, middle, lower = responder.draw(3, count, _DEGREE)
    upper = (upper.view(np.int64) >> _MASK_SHIFT).view(np.uint64)
    residues = _SLOTS.wide_residues(upper, middle, signed=True)
    _SLOTS.by_constants(residues, [1 << 64] * len(_SLOTS.primes))
    _SLOTS.add(residues, _SLOTS.wide_residues(np.zeros_like(lower), lower, signed=False))
    return lower, _SLOTS.untransform(residues)
