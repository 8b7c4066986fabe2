"""All that two parties compute together, from the shares that each has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import Link, PartyId
from veilgraph.mpc.pair import entries, products
from veilgraph.mpc.pair.bits import Bits
from veilgraph.mpc.pair.peer import Peer


class Exchange(Bits):
    """One party's end."""

    def __init__(self, link: Link, holders: Sequence[PartyId], secrets: SecretSource) -> None:
        (other,) = [holder for holder in holders if holder != link.party]
        super().__init__(Peer(link, other, leads=link.party == holders[0]), secrets)

    def matmul(self, left: Tensor | None, right: Tensor | None, sizes: tuple[int, int, int]) -> Tensor:
        left, right = (None if part is None else part.contiguous() for part in (left, right))
        return products.matmul(self._peer, self._secrets, left, right, sizes, 64)

    def inner(self, own: Tensor, bits: int = 64) -> Tensor:
        total = torch.zeros(own.shape[1], dtype=torch.int64)
        if len(own) % 2:
            own = torch.cat([own, torch.zeros_like(own[:1])])
        for one, other in zip(own[::2], own[1::2], strict=True):
            pair = (one, other) if self._peer.leads else (other, one)  # l0·r1 + l1·r0
            total += entries.elementwise(self._peer, self._secrets, pair[0].contiguous(), pair[1].contiguous())
        return total

    def hop(
        self, matrix: Any, rows: Tensor | None, shape: tuple[int, int], columns: int, ring: Literal[32, 64]
    ) -> Tensor:
        rows = None if rows is None else rows.contiguous()
        return products.hop(self._peer, self._secrets, matrix, rows, (*shape, columns), ring)
