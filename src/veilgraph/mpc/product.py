"""The holder's side of the exact secure product (VFGNN Algorithm 3).

Holder i's features x^i are private and static; W^i, the weight block of its columns, is additively shared among
all holders. One forward product gives every holder an additive share of Σ_i x^i·W^i; one backward product turns
holders' private gradients g_j into shares of every block's update x^iᵀ·Σ_j g_j. Nothing is truncated and nothing
but h^0 is opened.

    once      dealer → holder: a seed          holder i → every other: E_i = x^i − U_i
    forward   holder j → owner i: F_ji = ⟨W^i⟩_j − V_ji
              owner i adds  x^i·(⟨W^i⟩_i + Σ_j F_ji) + (U_i·Σ_j V_ji − Σ_j Z_ji),  holder j adds  E_i·V_ji + Z_ji
    backward  holder j → every owner: F_j = g_j − V_j
              owner i adds  x^iᵀ·(g_i + Σ_j F_j) + (U_iᵀ·Σ_j V_j − Σ_j Z_ji),      holder j adds  E_iᵀ·V_j + Z_ji

Everything that does not depend on W or g of the step is in ``prepare`` and can run ahead of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from veilgraph.core.randomness import SEED_BYTES, expand
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, exchange, gather, receive_as
from veilgraph.mpc.dealer import Direction, operand_mask_name, result_mask_name, static_mask_name
from veilgraph.mpc.mask import add
from veilgraph.mpc.ring import DenseOperand, StaticOperand


@dataclass(frozen=True)
class Prepared:
    """The offline half of one product."""

    masks: dict[PartyId, Tensor]
    """owner → V, the mask of what this holder sends to that owner (the same for all owners when backward)."""
    pieces: dict[PartyId, Tensor]
    """owner → E·V + Z, this holder's share of the product with that owner's features."""
    correlation: Tensor
    """The dealer's half for the product with this holder's own features."""


class SecureProduct:
    """One holder's side of all secure products of a session.

    Args:
        link: this holder's.
        operand: x^i in the ring, [N, F_i].
        dense: the same matrix strided, needed once to send E.
        features: holder → number of feature columns, in the job's order of holders.
        dim: d.
    """

    def __init__(
        self, link: Link, operand: StaticOperand, dense: Tensor, features: Mapping[PartyId, int], dim: int
    ) -> None:
        self._link, self._operand, self._features, self._dim = link, operand, dict(features), dim
        self._nodes = operand.shape[0]
        self._others = [holder for holder in features if holder != link.party]
        seed = receive_as(link, SERVER, Tag(Kind.SEED), (SEED_BYTES,), torch.uint8)
        self._seed = seed.numpy().tobytes()
        difference = dense - expand(self._seed, static_mask_name(), (self._nodes, self._features[link.party]))
        tag = Tag(Kind.STATIC_DIFFERENCE)
        broadcast(link, self._others, tag, difference)
        self._differences = {
            other: DenseOperand(receive_as(link, other, tag, (self._nodes, features[other]), torch.int64))
            for other in self._others
        }

    def prepare(self, direction: Direction, step: int) -> Prepared:
        """Expands this product's masks, multiplies them, and waits for the dealer's half."""
        forward = direction is Direction.FORWARD
        masks: dict[PartyId, Tensor] = {}
        pieces: dict[PartyId, Tensor] = {}
        for owner in self._others:
            rows = self._features[owner] if forward else self._nodes
            if forward or not masks:
                mask = expand(self._seed, operand_mask_name(owner, direction, step), (rows, self._dim))
            difference = self._differences[owner]
            piece = difference.times(mask) if forward else difference.transposed_times(mask)
            name = result_mask_name(owner, direction, step)
            pieces[owner] = piece.add_(expand(self._seed, name, tuple(piece.shape)))
            masks[owner] = mask
        rows = self._nodes if forward else self._features[self._link.party]
        tag = Tag(Kind.CORRELATION, step, int(direction))
        correlation = receive_as(self._link, SERVER, tag, (rows, self._dim), torch.int64)
        return Prepared(masks, pieces, correlation)

    def forward(self, step: int, prepared: Prepared, shares: Mapping[PartyId, Tensor]) -> Tensor:
        """This holder's share of Σ_i x^i·W^i.

        Args:
            step: of the session.
            prepared: of this step's forward product.
            shares: owner → this holder's share of that owner's weight block, int64 [F_owner, d].

        Returns:
            int64 [N, d].
        """
        party = self._link.party
        tag = Tag(Kind.MASKED_OPERAND, step, int(Direction.FORWARD))
        for owner in self._others:
            self._link.send(owner, tag, shares[owner] - prepared.masks[owner])
        received = gather(self._link, self._others, tag, (self._features[party], self._dim), torch.int64)
        operand = add([shares[party], *received.values()])
        share = self._operand.times(operand).add_(prepared.correlation)
        for piece in prepared.pieces.values():
            share += piece
        return share

    def backward(self, step: int, prepared: Prepared, gradient: Tensor) -> dict[PartyId, Tensor]:
        """Shares of x^iᵀ·Σ_j g_j for every block i.

        Args:
            step: of the session.
            prepared: of this step's backward product.
            gradient: this holder's g in the ring, int64 [N, d].

        Returns:
            owner → int64 [F_owner, d].
        """
        masked = gradient - prepared.masks[self._others[0]]
        tag = Tag(Kind.MASKED_OPERAND, step, int(Direction.BACKWARD))
        operand = add([gradient, *exchange(self._link, self._others, tag, masked).values()])
        own = self._operand.transposed_times(operand).add_(prepared.correlation)
        return {self._link.party: own, **prepared.pieces}
