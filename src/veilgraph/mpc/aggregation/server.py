"""The server's part of one round of a sum that survives dropouts: whom it counts in, and how the masks come off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import PartyId
from veilgraph.mpc import shamir
from veilgraph.mpc.aggregation.keys import (
    KEY_BYTES,
    OFFER_BYTES,
    SEALED_BYTES,
    Round,
    commitment,
    mask_private,
    own_mask,
    pairwise_mask,
)
from veilgraph.mpc.aggregation.signatures import SIGNATURE_BYTES

Received = Mapping[PartyId, Tensor]
"""Holder → its message, of those from whom one came."""
_KEYS: Final = slice(KEY_BYTES, 2 * KEY_BYTES)
_COMMITTED: Final = slice(2 * KEY_BYTES, 3 * KEY_BYTES)


class ServerRound:
    """The server's.

    Args:
        round_: which one.

    Attributes:
        counted: who is in the sum, once the values are there.
    """

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._offers: Received = {}
        self._sharing: list[PartyId] = []
        self._total = torch.zeros(())
        self.counted: tuple[PartyId, ...] = ()

    def offers(self, received: Received) -> Tensor:
        """For every holder the offers of all: uint8 [P, OFFER_BYTES]. Errors as ``Round.enough``, here and below."""
        self._round.enough(list(received), "offers of keys")
        self._offers = dict(received)
        return self._rows(received, OFFER_BYTES)

    def shares(self, received: Received) -> dict[PartyId, Tensor]:
        """Who offered → what all sealed for it: uint8 [P, SEALED_BYTES].

        Raises:
            ProtocolError: a holder shared with others than those who offered.
        """
        for holder, rows in received.items():
            if self._round.present(rows) != list(self._offers):
                raise ProtocolError(
                    f"{holder} has not shared its secrets of {self._round.name} with all who offered keys, and with "
                    "nobody else; do all run the same release?",
                    code="shared-with-others",
                    party=holder,
                )
        self._round.enough(list(received), "shares of keys")
        self._sharing = list(received)
        return {
            holder: self._rows({sender: rows[self._place(holder)] for sender, rows in received.items()}, SEALED_BYTES)
            for holder in self._offers
        }

    def survivors(self, received: Received) -> Tensor:
        """Adds the masked values up, and says whose they are: bool [P]."""
        self._round.enough(list(received), "masked values")
        self.counted = tuple(received)
        first, *rest = received.values()
        self._total = first.clone()
        for values in rest:
            self._total += values
        return torch.tensor([holder in received for holder in self._round.holders])

    def confirmations(self, received: Received) -> Tensor:
        """For every survivor the signatures of all: uint8 [P, SIGNATURE_BYTES]."""
        self._round.enough(list(received), "confirmed survivors")
        return self._rows(received, SIGNATURE_BYTES)

    def unmask(self, received: Received) -> Tensor:
        """The sum over those who are counted: int64 [size].

        Args:
            received: uint8 [P, ELEMENT_BYTES] of each holder that still answers.

        Raises:
            ProtocolError: a holder gave a wrong share.
        """
        self._round.enough(list(received), "revealed shares")
        chosen = list(received.items())[: self._round.threshold]
        points = [self._place(holder) + 1 for holder, _ in chosen]
        each = shamir.weights(points)
        size = self._total.numel()
        for holder in self._sharing:
            place = self._place(holder)
            given = (shamir.of_bytes(rows[place].numpy().tobytes()) for _, rows in chosen)
            secret = sum(weight * share for weight, share in zip(each, given, strict=True)) % shamir.FIELD
            offer = self._offers[holder].numpy().tobytes()
            if holder in self.counted:
                self._fits(commitment(secret) == offer[_COMMITTED], holder)
                self._total -= own_mask(self._round, secret, size)
                continue
            private = mask_private(secret)
            self._fits(private.public_key().public_bytes_raw() == offer[_KEYS], holder)
            for peer in self.counted:
                public = self._offers[peer].numpy().tobytes()[_KEYS]
                # what the one who dropped out would have added cancels what the survivors added for it
                self._total += pairwise_mask(self._round, holder, private, peer, public, size)
        return self._total

    def _fits(self, fits: bool, holder: PartyId) -> None:
        if not fits:
            raise ProtocolError(
                f"the shares of {holder}'s secret of {self._round.name} do not fit what {holder} offered: a holder "
                "gave a wrong one; do all run the same release?",
                code="bad-share",
                party=holder,
            )

    def _place(self, holder: PartyId) -> int:
        return self._round.holders.index(holder)

    def _rows(self, received: Received, width: int) -> Tensor:
        rows = torch.zeros(len(self._round.holders), width, dtype=torch.uint8)
        for holder, content in received.items():
            rows[self._place(holder)] = content
        return rows
