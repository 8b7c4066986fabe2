"""All that two parties compute together, from the shares that each has, and what it costs them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final, Literal

import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Link, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.pair import entries, products
from veilgraph.mpc.pair.bits import Bits, wraps_exchanges
from veilgraph.mpc.pair.blocks import parts
from veilgraph.mpc.pair.lattice import Keys, Scheme, key_messages
from veilgraph.mpc.pair.peer import Exchanges, Peer
from veilgraph.mpc.pair.products import Side

WORD_BITS: Final = 64


class Exchange(Bits):
    """One party's end; ``holders`` are both, the first of them leads. Both call the same methods in the same order."""

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        (other,) = [holder for holder in holders if holder != link.party]
        peer = Peer(link, other, leads=link.party == holders[0])
        super().__init__(peer, secrets)
        self._keys, self._calls, self._leads = Keys(peer, secrets), count(), peer.leads

    def matmul(
        self,
        left: Tensor | None,
        right: Tensor | None,
        sizes: tuple[int, int, int],
        multiplies: Side | None = None,
    ) -> Tensor:
        """Return a share of ``left`` [n, k] of one party times ``right`` [k, m] of the other: int64 [n, m].

        ``multiplies``: public, the side whose owner does not encrypt; None: the cheaper one.
        """
        return products.matmul(self._keys, left, right, sizes, multiplies=multiplies)

    def scale(self, factors: Tensor | None, rows: Tensor | None, sizes: tuple[int, int]) -> Tensor:
        """Return a share of the other's ``rows`` [n, m], each times its factor of one party, [n]: int64 [n, m]."""
        return entries.scale(self._keys, factors, rows, sizes)

    def masked(self, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Send ``own``, which masks hide that are used once, and return it; None: receive the other's."""
        if own is None:
            return self._peer.hear(shape, dtype)
        self._peer.tell(own)
        return own

    def inner(self, own: Tensor, bits: int = WORD_BITS) -> Tensor:
        """Return a share of Σ_j x_j·y_j of each party's [J, n], below 2^``bits`` in magnitude unless 64: int64 [n]."""
        if bits <= entries.NARROW_BITS:
            return self._lifted(self._inner(own, bits))
        found = list[Tensor]()
        for columns in torch.split(own, entries.widths(*own.shape), 1):
            sums = [self._inner(part, bits) for part in torch.split(columns, entries.MOST_TERMS)]
            found.append(torch.stack(sums).sum(0))
        return torch.cat(found)

    def _inner(self, own: Tensor, bits: int) -> Tensor:
        return entries.inner(self._keys, own, bits, encrypts=self._leads == _leader_encrypts(next(self._calls)))

    def _lifted(self, share: Tensor) -> Tensor:
        """Turn shares modulo a prime p of sums below p/4 into shares modulo 2^64.

        With p/4 added a sum is below p/2. So its shares wrap around exactly if one of them is p/2 or more.
        """
        prime, quarter = entries.narrow_prime(), entries.narrow_prime() // 4 * self._leads
        part = (share + quarter) % prime
        return part - quarter + prime * (self.wraps(part <= prime // 2) - int(self._leads))

    def hop(
        self,
        matrix: sp.csr_array | None,
        rows: Tensor | None,
        shape: tuple[int, int],
        columns: int,
        ring: Literal[32, 64],
        bits: int,
    ) -> Tensor:
        """Return a share of a sparse ``matrix`` of one party, of rows that sum up to 2^bits, times the other's rows."""
        return products.hop(self._keys, matrix, rows, (*shape, columns), ring, bits)


def _leader_encrypts(call: int) -> bool:
    """Parties take turns in who encrypts, as an answer has fewer bytes."""
    return call % 2 == 0


class ProductCosts:
    """Counts, call by call, what the products of an ``Exchange`` cost."""

    def __init__(self) -> None:
        self._calls, self._told = count(), set[tuple[Scheme, bool]]()

    def matmul(self, sizes: tuple[int, int, int], multiplies: Side | None, *, left_leads: bool) -> Exchanges:
        """Return what ``matmul`` costs; ``left_leads``: the leader has the left matrix."""
        encrypts_left, plan = products.plan_matmul(sizes, WORD_BITS, multiplies)
        return self._exchanges(plan.scheme, plan.messages(), leads=left_leads == encrypts_left)

    def scale(self, rows: int, columns: int, *, factors_lead: bool) -> Exchanges:
        """Return what ``scale`` costs; ``factors_lead``: the leader has the factors."""
        plan = entries.plan_scale(rows, columns)
        return self._exchanges(plan.scheme, plan.messages(), leads=factors_lead)

    def inner(self, terms: int, size: int, bits: int) -> Exchanges:
        """Return what ``inner`` of [terms, size] numbers costs."""
        if bits <= entries.NARROW_BITS:
            return self._inner(terms, size, bits) + wraps_exchanges(size)
        rows = [len(part) for part in parts(terms, entries.MOST_TERMS)]
        cuts = [(count, width) for width in entries.widths(terms, size) for count in rows]
        return [each for cut in cuts for each in self._inner(*cut, bits)]

    def _inner(self, terms: int, size: int, bits: int) -> Exchanges:
        plan = entries.plan_of(terms, size, bits)
        return self._exchanges(plan.scheme, plan.messages(), leads=_leader_encrypts(next(self._calls)))

    def hop(
        self,
        shape: tuple[int, int],
        columns: int,
        ring: Literal[32, 64],
        bits: int,
        *,
        matrix_leads: bool,
    ) -> Exchanges:
        """Return what ``hop`` costs; ``matrix_leads``: the leader has the matrix."""
        plan = products.plan_hop((*shape, columns), ring, bits)
        return self._exchanges(plan.scheme, plan.messages(), leads=not matrix_leads)

    def _exchanges(self, form: Scheme, messages: list[tuple[int, int]], *, leads: bool) -> Exchanges:
        """Turn messages of who encrypts and who answers into bytes on the wire; ``leads``: the leader encrypts."""
        fresh = [encrypting for encrypting, _ in messages if encrypting]
        if (form, leads) not in self._told:
            self._told.add((form, leads))
            fresh = [*key_messages(form), *fresh]
        answers = [answering for _, answering in messages if answering]
        sent = sum(HEADER_BYTES + size for size in fresh), sum(HEADER_BYTES + size for size in answers)
        return [(sent[0], 0), (0, sent[1])] if leads else [(0, sent[0]), (sent[1], 0)]
