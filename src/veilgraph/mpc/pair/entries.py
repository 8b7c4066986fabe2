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


def elementwise_messages(entries: int, *, crossed: bool = True) -> Messages:
    """Bytes that the leader and the other party send in ``elementwise`` of so many entries, message by message.

    ``crossed``: each party has an l and an r.
    """
    form, groups = entries_scheme(), parts(-(-entries // _DEGREE), _AT_ONCE)
    if not entries:
        return []
    sides = 2 if crossed else 1
    fresh = [SEED_BYTES, 8 * form.fresh_words(1)]
    fresh += [8 * form.fresh_words(sides * len(group)) for group in groups for _ in _SLOTS.primes]
    answers = [8 * form.answer_words(len(group), _DEGREE) for group in groups for _ in _SLOTS.primes]
    return [(size, 0) for size in fresh] + [(0, size) for size in answers]


def elementwise(peer: Peer, secrets: SecretSource, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return this party's share of l0·r1 + l1·r0 modulo 2^64, int64 of the shape of l and r.

    If one party has only an l and the other only an r, the share is one of their product, for less.

    Args:
        peer: the other party.
        secrets: source of secret bytes.
        left: l of this party, int64 of any shape; None if it has none.
        right: r of this party, int64 of the same shape; None if it has none.

    """
    own = [tensor for tensor in (left, right) if tensor is not None]
    if not own or own[0].shape != own[-1].shape:
        shapes = [tuple(tensor.shape) for tensor in own]
        raise ValueError(f"`left` and `right` have the shapes {shapes}; give one of them, or both of one shape")
    entries = own[0].numel()
    if not entries:
        return torch.zeros_like(own[0])
    count = -(-entries // _DEGREE)
    sides = np.zeros((len(own), count * _DEGREE), np.uint64)
    for side, tensor in zip(sides, own, strict=True):
        side[:entries] = tensor.reshape(-1).numpy().view(np.uint64)
    slots = np.ascontiguousarray(sides.reshape(len(own), count, _DEGREE).transpose(1, 0, 2))
    share = _encrypt(peer, Owner(entries_scheme(), secrets), slots) if peer.leads else _answer(peer, secrets, slots)
    return torch.from_numpy(share.reshape(-1)[:entries].view(np.int64).copy()).reshape(own[0].shape)


def _encrypt(peer: Peer, owner: Owner, slots: Words) -> Words:
    """Do the leader's part with its one or two numbers [count, sides, N], and return its share [count, N]."""
    owner.begin(peer)
    for group in parts(len(slots), _AT_ONCE):
        messages = _SLOTS.untransform(_SLOTS.residues(slots[group.start : group.stop].reshape(-1, _DEGREE)))
        for place, modulus in enumerate(_SLOTS.primes):
            owner.send(peer, owner.encrypt(np.ascontiguousarray(messages[:, place]), modulus=modulus))
    shares = []
    for group in parts(len(slots), _AT_ONCE):
        answers = [owner.receive(peer, len(group), _PLACES, modulus) for modulus in _SLOTS.primes]
        shares.append(_SLOTS.integers(_SLOTS.transform(np.stack(answers, axis=1)))[1])
    return np.concatenate(shares)


def _answer(peer: Peer, secrets: SecretSource, slots: Words) -> Words:
    """Do the other party's part, likewise."""
    responder, sides = Responder(entries_scheme(), secrets, peer), slots.shape[1]
    ring, shares = responder.scheme.ring, []
    for group in parts(len(slots), _AT_ONCE):
        factors = slots[group.start : group.stop, ::-1].reshape(-1, _DEGREE)  # l meets the other one's r
        plain = _SLOTS.untransform(_SLOTS.residues(factors))
        own, masks = _draw_masks(responder, len(group))
        shares.append(own)
        for place, modulus in enumerate(_SLOTS.primes):
            around_zero = plain[:, place] - np.where(plain[:, place] > modulus // 2, np.uint64(modulus), np.uint64(0))
            weights = ring.transform(ring.residues(around_zero))
            received = responder.receive(peer, sides * len(group))
            first, second = (_summed(ring, ring.multiply(part, weights), sides) for part in received)
            mask = np.ascontiguousarray(masks[:, place])
            responder.answer(peer, (first, second), _PLACES, mask, modulus=modulus)
    return np.concatenate(shares)


def _summed(ring: Ring, products: Words, sides: int) -> Words:
    """Sums of each ``sides`` polynomials, one or two."""
    return products if sides == 1 else ring.add(products[::2].copy(), products[1::2])


def _draw_masks(responder: Responder, count: int) -> tuple[Words, Words]:
    """Draw Z uniform in ±2^169: modulo 2^64 [count, N], and as polynomials with these slots [count, 3, N]."""
    upper, middle, lower = responder.draw(3, count, _DEGREE)
    upper = (upper.view(np.int64) >> _MASK_SHIFT).view(np.uint64)
    residues = _SLOTS.wide_residues(upper, middle, signed=True)
    _SLOTS.by_constants(residues, [1 << 64] * len(_SLOTS.primes))
    _SLOTS.add(residues, _SLOTS.wide_residues(np.zeros_like(lower), lower, signed=False))
    return lower, _SLOTS.untransform(residues)
