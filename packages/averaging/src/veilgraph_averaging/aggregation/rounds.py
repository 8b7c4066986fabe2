"""One round of a sum that survives dropouts (Bonawitz 4.3): what a holder says, and what the server makes of it.

Each method is one message, in the order of the file, each at most once. Nothing here talks or keeps anything after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import PartyId
from veilgraph.mpc.mask import ring_sum
from veilgraph_averaging.aggregation import shamir
from veilgraph_averaging.aggregation.keys import (
    KEY_BYTES,
    OFFER_BYTES,
    PAIR_BYTES,
    SEALED_BYTES,
    SHARED_BYTES,
    SIGNATURE_BYTES,
    PairSecrets,
    Round,
    Sealing,
    Secrets,
    Signatures,
    commitment,
    mask_private,
    own_mask,
    pad_pair_key,
    pair_purpose,
    pairwise_mask,
)

_KEYS: Final = slice(KEY_BYTES, 2 * KEY_BYTES)  # of an offer: the public key for masks
_COMMITTED: Final = slice(2 * KEY_BYTES, 3 * KEY_BYTES)
_OFFERED: Final = "keys of "
_SURVIVORS: Final = "survivors of "


class HolderRound:
    """A holder's part of one round: makes its five messages in order. ``survivors``: those it confirmed, or empty."""

    def __init__(
        self, round_: Round, party: PartyId, signatures: Signatures, pairs: PairSecrets, secrets: SecretSource
    ) -> None:
        self._round, self._party, self._signatures, self._source = round_, party, signatures, secrets
        self._pairs, self._secrets = pairs, Secrets(secrets)
        self._sealing = Sealing(round_, party, self._secrets.sealing, pairs)
        self._done = 0
        self._offers: dict[PartyId, bytes] = {}
        self._shares: dict[PartyId, bytes] = {}
        self.survivors: tuple[PartyId, ...] = ()

    def offer(self) -> Tensor:
        """Message 1: return its public keys and commitment, signed: uint8 [OFFER_BYTES]."""
        self._check_order(1)
        offer = self._secrets.offer()
        return _to_tensor(offer + self._signatures.sign(_OFFERED + self._round.name, offer))

    def share(self, offers: Tensor) -> Tensor:
        """Message 2: share its secrets, sealed for each holder that offered keys: uint8 [P, SHARED_BYTES], else zeros.

        Behind what is sealed for a holder is the key shared with it, under a pad, for the server.
        ``offers`` is uint8 [P, OFFER_BYTES], in the job's order, zeros where a holder is not there. Raises
        ``ProtocolError``: too few offered, or an offer is not its holder's, not of this round, or not fresh.
        """
        self._check_order(2)
        for party in self._round.present(offers):
            content = self._round.row(offers, party)
            offer, signature = content[: 3 * KEY_BYTES], content[3 * KEY_BYTES :]
            self._signatures.check(party, _OFFERED + self._round.name, offer, signature)
            self._offers[party] = offer
        self._round.enough(self._offers, "offers of keys")
        publics = [key for offer in self._offers.values() for key in (offer[:KEY_BYTES], offer[_KEYS])]
        if self._offers.get(self._party) != self._secrets.offer() or len(set(publics)) < len(publics):
            raise ProtocolError(
                f"{self._party} got keys of {self._round.name} of which two are equal, or its own are not as it gave "
                "them; ask who runs the server",
                code="keys-again",
            )
        mask_keys, own_masks = (
            shamir.split(secret, self._round.threshold, len(self._round.holders), self._source)
            for secret in (self._secrets.mask_key, self._secrets.own_mask)
        )
        rows = {}
        for holder, *shares in zip(self._round.holders, mask_keys, own_masks, strict=True):
            if holder in self._offers:
                pair = b"".join(map(shamir.to_bytes, shares))
                sealed = self._sealing.seal(holder, self._offers[holder][:KEY_BYTES], pair)
                padded = pad_pair_key(self._round, self._secrets.mask_key, holder, self._pair_key(holder))
                rows[holder] = _to_tensor(sealed + padded)
        return self._round.table(rows, SHARED_BYTES)

    def mask(self, sealed: Tensor, encoded: Tensor) -> Tensor:
        """Message 3: add its own mask, and one with each holder that shared, to ``encoded``: int64 [size], uniform.

        ``sealed`` is uint8 [P, SEALED_BYTES], what each holder sealed for this one. Raises ``ProtocolError``: too few
        shared, or one who offered no keys, or shares are not what a holder sealed.
        """
        self._check_order(3)
        for party in self._round.present(sealed):
            if party not in self._offers:
                raise _unknown_holder(self._party, party, self._round)
            row = self._round.row(sealed, party)
            self._shares[party] = self._sealing.open(party, self._offers[party][:KEY_BYTES], row)
        self._round.enough(self._shares, "shares of keys")
        self._check_not_left_out(self._shares)
        size, private = encoded.numel(), mask_private(self._secrets.mask_key)
        total = encoded + own_mask(self._round, self._secrets.own_mask, size)
        for peer in self._shares:
            if peer != self._party:
                public, pair_key = self._offers[peer][_KEYS], self._pair_key(peer)
                total += pairwise_mask(self._round, self._party, private, peer, public, pair_key, size)
        return total

    def confirm(self, survivors: Tensor) -> Tensor:
        """Message 4: sign the ``survivors``, bool [P], who the server says sent values: uint8 [SIGNATURE_BYTES].

        Raises ``ProtocolError``: they are too few, or one of them did not share, or this holder is not among them.
        """
        self._check_order(4)
        chosen = tuple(holder for holder, one in zip(self._round.holders, survivors.tolist(), strict=True) if one)
        for party in chosen:
            if party not in self._shares:
                raise _unknown_holder(self._party, party, self._round)
        self._round.enough(chosen, "masked values")
        self._check_not_left_out(chosen)
        self.survivors = chosen
        return _to_tensor(self._signatures.sign(_SURVIVORS + self._round.name, self._survivor_bytes()))

    def reveal(self, confirmations: Tensor) -> Tensor:
        """Message 5: reveal its share of each survivor's own mask, and of the mask key of each holder that dropped out.

        From ``confirmations``, uint8 [P, SIGNATURE_BYTES] of survivors, to uint8 [P, ELEMENT_BYTES]. Raises
        ``ProtocolError``: too few confirmed, or one who did not survive, or one who was told of other survivors.
        """
        self._check_order(5)
        confirmed = self._round.present(confirmations)
        for party in confirmed:
            if party not in self.survivors:
                raise _unknown_holder(self._party, party, self._round)
            signature = self._round.row(confirmations, party)
            self._signatures.check(party, _SURVIVORS + self._round.name, self._survivor_bytes(), signature)
        self._round.enough(confirmed, "confirmed survivors")
        half = PAIR_BYTES // 2
        rows = {
            holder: _to_tensor(pair[half:] if holder in self.survivors else pair[:half])
            for holder, pair in self._shares.items()
        }
        return self._round.table(rows, shamir.ELEMENT_BYTES)

    def noted_key(self) -> Tensor:
        """Return its mask key, from which its pairwise masks follow, for its own records: uint8 [ELEMENT_BYTES]."""
        return _to_tensor(shamir.to_bytes(self._secrets.mask_key))

    def noted_shares(self) -> Tensor:
        """Return others' shares, decrypted, for its own records: uint8 [P, PAIR_BYTES], zeros where none came."""
        return self._round.table({holder: _to_tensor(pair) for holder, pair in self._shares.items()}, PAIR_BYTES)

    def _pair_key(self, peer: PartyId) -> bytes:
        return self._pairs.key(peer, pair_purpose(self._round, self._party, peer))

    def _survivor_bytes(self) -> bytes:
        return "\n".join(self.survivors).encode()

    def _check_not_left_out(self, present: Collection[PartyId]) -> None:
        if self._party not in present:
            raise ProtocolError(
                f"{self._party} is asked to go on with {self._round.name}, and the server has left it out",
                code="left-out",
                party=self._party,
            )

    def _check_order(self, message: int) -> None:
        """Refuse messages out of order or twice: a second answer could reveal the other share of the same secret."""
        if message != self._done + 1:
            raise ProtocolError(
                f"{self._party} is asked for message {message} of {self._round.name} after message {self._done}; each "
                "is given once, in their order",
                code="order",
                value=message,
            )
        self._done = message


def _unknown_holder(party: PartyId, other: PartyId, round_: Round) -> ProtocolError:
    return ProtocolError(
        f"{party} is told that {other} goes on with {round_.name}, and has not heard of it before; ask who runs the "
        "server",
        code="who",
        party=other,
    )


def _to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


Received = Mapping[PartyId, Tensor]  # holder → its message, of those from whom one came


class ServerRound:
    """The server's part of one round. ``counted``: the holders in the sum, empty until ``survivors`` is called."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._offers: Received = {}
        self._shared: Received = {}
        self._total = torch.zeros(())
        self.counted: tuple[PartyId, ...] = ()

    def offers(self, received: Received) -> Tensor:
        """Stack the holders' offers, to send to all: uint8 [P, OFFER_BYTES]; errors as ``Round.enough``, also below."""
        self._round.enough(received, "offers of keys")
        self._offers = dict(received)
        return self._round.table(received, OFFER_BYTES)

    def shares(self, received: Received) -> dict[PartyId, Tensor]:
        """Regroup sealed shares by receiver: each holder that offered → uint8 [P, SEALED_BYTES] from all senders.

        ``received`` is uint8 [P, SHARED_BYTES] from each.
        Raises ``ProtocolError``: a holder did not share with exactly those that offered.
        """
        for holder, rows in received.items():
            if self._round.present(rows) != list(self._offers):
                raise ProtocolError(
                    f"{holder} has not shared its secrets of {self._round.name} with all who offered keys, and with "
                    "nobody else; do all run the same release?",
                    code="shared-with-others",
                    party=holder,
                )
        self._round.enough(received, "shares of keys")
        self._shared = dict(received)
        places = {holder: self._round.holders.index(holder) for holder in self._offers}
        return {
            holder: self._round.table(
                {sender: rows[place, :SEALED_BYTES] for sender, rows in received.items()}, SEALED_BYTES
            )
            for holder, place in places.items()
        }

    def survivors(self, received: Received) -> Tensor:
        """Add up the masked values, int64 [size] each, and return whose they are: bool [P]."""
        self._round.enough(received, "masked values")
        self.counted = tuple(received)
        self._total = ring_sum(received.values())
        return torch.tensor([holder in received for holder in self._round.holders])

    def confirmations(self, received: Received) -> Tensor:
        """Stack the survivors' signatures, to send to all of them: uint8 [P, SIGNATURE_BYTES]."""
        self._round.enough(received, "confirmed survivors")
        return self._round.table(received, SIGNATURE_BYTES)

    def unmask(self, received: Received) -> Tensor:
        """Remove all masks by revealed shares, uint8 [P, ELEMENT_BYTES] each: the sum over ``counted``, int64 [size].

        Raises ``ProtocolError``: a reconstructed secret does not fit its holder's offer.
        """
        self._round.enough(received, "revealed shares")
        chosen = list(received.items())[: self._round.threshold]
        each = shamir.weights([1 + self._round.holders.index(holder) for holder, _ in chosen])
        size = self._total.numel()
        for holder in self._shared:
            given = (shamir.of_bytes(self._round.row(rows, holder)) for _, rows in chosen)
            secret = sum(weight * share for weight, share in zip(each, given, strict=True)) % shamir.FIELD
            offer = self._offers[holder].numpy().tobytes()
            if holder in self.counted:
                self._check_fits(commitment(secret) == offer[_COMMITTED], holder)
                self._total -= own_mask(self._round, secret, size)
                continue
            private = mask_private(secret)
            self._check_fits(private.public_key().public_bytes_raw() == offer[_KEYS], holder)
            for peer in self.counted:
                public = self._offers[peer].numpy().tobytes()[_KEYS]
                padded = self._round.row(self._shared[holder], peer)[SEALED_BYTES:]
                pair_key = pad_pair_key(self._round, secret, peer, padded)
                # what the one who dropped out would have added cancels what the survivors added for it
                self._total += pairwise_mask(self._round, holder, private, peer, public, pair_key, size)
        return self._total

    def _check_fits(self, fits: bool, holder: PartyId) -> None:
        if not fits:
            raise ProtocolError(
                f"the shares of {holder}'s secret of {self._round.name} do not fit what {holder} offered: a holder "
                "gave a wrong one; do all run the same release?",
                code="bad-share",
                party=holder,
            )
