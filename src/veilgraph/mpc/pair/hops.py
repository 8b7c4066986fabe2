"""Shares of a secret sparse matrix of one party times a mask of the other one: by ring-LWE, without a dealer.

The mask's owner encrypts blocks of its rows, packed as in ``products`` for the transposed product. The matrix's owner
adds encryptions, each times an entry and a power of x, which shifts coefficients: it needs no transform, and work for
its own entries only. How many there are does not show in what it sends.

Columns of masks cost little: all that lie side by side, up to N in all, share the encryptions' second part. Bytes for
a column fall with the square root of their number, so several hops of one graph are best computed as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.mpc.pair import ntt
from veilgraph.mpc.pair.lattice import AT_ONCE, Owner, Responder, Scheme, scheme
from veilgraph.mpc.pair.ntt import Words
from veilgraph.mpc.pair.peer import Peer
from veilgraph.mpc.pair.products import SECONDS_A_BYTE, Messages, Sizes, cuts, parts

WEIGHT_BITS: Final = 16
"""log2 of the most that a row's entries may sum up to, in magnitude."""
_SECONDS_A_POINT: Final = 4e-8
_DTYPES: Final = {32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class HopPlan:
    """A product [n, k]·[k, m]: m columns in blocks of a, b rows of the mask and c rows of the result a ciphertext."""

    sizes: Sizes
    block: Sizes
    scheme: Scheme

    @property
    def grid(self) -> Sizes:
        """Blocks of columns, of the mask's rows, and of the result's rows."""
        n, k, m = self.sizes
        a, b, c = self.block
        return -(-m // a), -(-k // b), -(-n // c)

    @property
    def places(self) -> Words:
        """[a·c]: where a result has its entries."""
        a, b, c = self.block
        return (np.arange(a)[:, None] * (b * c) + np.arange(c) * b + b - 1).reshape(-1).astype(np.uint64)

    @property
    def kept(self) -> int:
        """Coefficients of a first part that are used, the first ones: with c = 1, those that carry the mask."""
        a, b, c = self.block
        return a * b if c == 1 else self.scheme.degree

    def messages(self) -> Messages:
        """Bytes that the matrix's owner and the mask's owner send, message by message."""
        columns, inner, rows = self.grid
        fresh = [SEED_BYTES, 8 * self.scheme.fresh_words(1)]
        fresh += [8 * self.scheme.fresh_words(len(part), self.kept) for part in parts(columns * inner, AT_ONCE)]
        at_once = max(1, AT_ONCE // columns)
        answers = [self.scheme.answer_words(len(part) * columns, len(self.places)) for part in parts(rows, at_once)]
        return [(0, size) for size in fresh] + [(8 * size, 0) for size in answers]

    def cost(self) -> float:
        """Seconds: of both parties' CPU but for the entries, and of the bytes on the wire."""
        columns, inner, rows = self.grid
        residues = columns * (inner + rows) * self.scheme.degree * self.scheme.primes
        sent = self.scheme.wire_bytes(columns * inner, self.kept, columns * rows, self.block[0] * self.block[2])
        return residues * _SECONDS_A_POINT + SECONDS_A_BYTE * sent


@lru_cache(256)
def plan_hop(sizes: Sizes, ring: int) -> HopPlan:
    """Choose the blocks that cost least."""
    form = scheme(1 << ring, 2.0**WEIGHT_BITS, 4.0**WEIGHT_BITS)
    n, k, m = sizes
    plans = []
    for a, b in product(cuts(m, form.degree), cuts(k, form.degree)):
        if a * b <= form.degree:
            most = min(n, form.degree // (a * b))
            plans.append(HopPlan(sizes, (a, b, -(-n // -(-n // most))), form))
            if most > 1:
                plans.append(HopPlan(sizes, (a, b, 1), form))
    return min(plans, key=lambda plan: plan.cost())


def hop_messages(sizes: Sizes, ring: int) -> Messages:
    """Bytes that the matrix's owner and the mask's owner send in ``hop``, message by message."""
    return plan_hop(sizes, ring).messages()


def hop(peer: Peer, secrets: SecretSource, adjacency: Any, mask: Tensor | None, sizes: Sizes, ring: int) -> Tensor:
    """Return this party's share of adjacency @ mask modulo 2^ring: [n, m] of the mask's dtype.

    Args:
        peer: the other party.
        secrets: source of secret bytes.
        adjacency: sparse integers [n, k] of scipy at their owner; None at the other party.
        mask: [k, m], uniform, int32 for the ring of 32 bits and int64 for that of 64, at its owner; else None.
        sizes: (n, k, m).
        ring: 32 or 64.

    Raises:
        RangeOverflow: a row of ``adjacency`` sums up to more than 2^16 in magnitude.

    """
    plan = plan_hop(sizes, ring)
    if (adjacency is None) == (mask is None):
        raise ValueError("each party gives either `adjacency` or `mask`")
    if mask is not None:
        result = _encrypt_mask(peer, Owner(plan.scheme, secrets), plan, mask)
    else:
        entries = sp.csr_matrix(adjacency, dtype=np.int64)
        _check_weights(entries)
        result = _apply_entries(peer, Responder(plan.scheme, secrets, peer), plan, entries)
    n, _, m = sizes
    share = result.transpose(1, 3, 0, 2).reshape(result.shape[1] * result.shape[3], -1)[:n, :m]
    return torch.from_numpy(np.ascontiguousarray(share).view(np.int64)).to(_DTYPES[ring])


def _check_weights(entries: Any) -> None:
    """Refuse weights that the bound on the noise does not cover."""
    largest = int(abs(entries).sum(axis=1).max()) if entries.nnz else 0
    if largest > 1 << WEIGHT_BITS:
        raise RangeOverflow(
            f"a row of `adjacency` sums up to {largest} in magnitude, above {1 << WEIGHT_BITS}; cap edges or weights"
        )


def _encrypt_mask(peer: Peer, owner: Owner, plan: HopPlan, mask: Tensor) -> Words:
    """The mask's owner's part: its share [columns, rows, a, c]."""
    (a, b, c), (columns, inner, rows) = plan.block, plan.grid
    padded = np.zeros((inner * b, columns * a), np.uint64)
    padded[: mask.shape[0], : mask.shape[1]] = mask.to(torch.int64).numpy().view(np.uint64)
    if mask.dtype == torch.int32:
        padded &= np.uint64((1 << 32) - 1)
    blocks = padded.reshape(inner, b, columns, a).transpose(2, 0, 3, 1).reshape(columns * inner, a, b)
    owner.begin(peer)
    for part in parts(len(blocks), AT_ONCE):
        polynomials = np.zeros((len(part), plan.scheme.degree), np.uint64)
        polynomials[:, : a * b * c].reshape(len(part), a, c, b)[:, :, 0] = blocks[part.start : part.stop, :, ::-1]
        first = owner.encrypt(polynomials, transformed=False)
        owner.send(peer, np.ascontiguousarray(first[:, :, : plan.kept]))
    share = np.empty((columns, rows, a, c), np.uint64)
    for part in parts(rows, max(1, AT_ONCE // columns)):
        answers = owner.receive(peer, columns * len(part), plan.places)
        share[:, part.start : part.stop] = answers.reshape(columns, len(part), a, c)
    return share


def _apply_entries(peer: Peer, responder: Responder, plan: HopPlan, entries: Any) -> Words:
    """The matrix's owner's part: its share [columns, rows, a, c]."""
    (a, b, c), (columns, inner, rows) = plan.block, plan.grid
    polynomials, shape, places = plan.scheme.ring, (plan.scheme.primes, plan.scheme.degree), plan.places
    first = np.empty((columns * inner, plan.scheme.primes, plan.kept), np.uint64)
    second = np.empty((columns * inner, *shape), np.uint64)
    for part in parts(columns * inner, AT_ONCE):
        first[part.start : part.stop], second[part.start : part.stop] = responder.receive(peer, len(part), plan.kept)
    ciphertexts = first.reshape(columns, inner, shape[0], -1), second.reshape(columns, inner, *shape)
    at_rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    blocks = entries.indices.astype(np.uint64) // np.uint64(b)
    shifts = (at_rows % c * b + entries.indices % b).astype(np.uint64)
    factors = polynomials.factors(entries.data.view(np.uint64))
    share = np.empty((columns, rows, a, c), np.uint64)
    mask = np.uint64(plan.scheme.modulus - 1)
    for part in parts(rows, max(1, AT_ONCE // columns)):
        sums = np.zeros((columns, len(part), *shape), np.uint64)
        wanted = np.zeros((columns, len(part), shape[0], len(places)), np.uint64)
        for place, row in enumerate(part):
            start, stop = entries.indptr[[row * c, min((row + 1) * c, entries.shape[0])]]
            ntt.add_shifted(
                wanted[:, place],
                sums[:, place],
                ciphertexts,
                places,
                (blocks[start:stop], shifts[start:stop]),
                (factors[0][start:stop], factors[1][start:stop]),
                polynomials.constants,
            )
        own = responder.draw(columns * len(part), a * c) & mask
        responder.answer(
            peer, wanted.reshape(-1, shape[0], len(places)), sums.reshape(-1, *shape), places, own, transformed=False
        )
        share[:, part.start : part.stop] = own.reshape(columns, len(part), a, c)
    return share
