"""Sums under masks over a link, round after round: who does not answer in time is left out, and may be back later.

A round is five messages of every holder and four of the server to each. Kinds and rounds of their tags; the step is
the number of the sum:

    message            holder → server                       server → holder
    1 keys             KEY 1         uint8 [160]             KEY 2         uint8 [P, 160]
    2 shares           MASK_SHARE 0  uint8 [P, 112]          MASK_SHARE 1  uint8 [P, 80]
    3 values           MASKED 0      int64 [size]            CONTROL 1     bool [P]
    4 survivors        CONTROL 2     uint8 [64]              CONTROL 3     uint8 [P, 64]
    5 unmasking        MASK_SHARE 2  uint8 [P, 32]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import LinkError, LinkTimeout, PeerFailed
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.collectives import Shape, gather_present, receive_as
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.mask import SecretRounding, encoded_for_sum
from veilgraph_averaging.aggregation.keys import (
    OFFER_BYTES,
    SEALED_BYTES,
    SHARED_BYTES,
    SIGNATURE_BYTES,
    PairSecrets,
    Round,
    Signatures,
)
from veilgraph_averaging.aggregation.rounds import HolderRound, Received, ServerRound
from veilgraph_averaging.aggregation.shamir import ELEMENT_BYTES
from veilgraph_averaging.aggregation.survivors import UNRECORDED, RecordedSum

GONE: Final = (PeerFailed, LinkTimeout)  # what sending to a holder that has dropped out raises


@dataclass(frozen=True, slots=True)
class Group:
    """The holders of a session's sums, alike at all parties, of which ``threshold`` must stay through each round."""

    session: str
    holders: tuple[PartyId, ...]
    threshold: int

    def round(self, number: int) -> Round:
        """Return round ``number`` of the session."""
        return Round(self.session, number, self.holders, self.threshold)


class SummingHolder:
    """A holder's end of all sums of a session; ``rounding`` puts real numbers on the sums' grid."""

    def __init__(
        self,
        link: Link,
        group: Group,
        signatures: Signatures,
        pairs: PairSecrets,
        secrets: SecretSource,
        rounding: SecretRounding,
    ) -> None:
        self._link, self._group, self._signatures, self._secrets = link, group, signatures, secrets
        self._pairs, self._rounding = pairs, rounding
        self._own = group.holders.index(link.party)
        self.had_all = False
        """Whether all holders took part in the last sum, as far as this one knows."""

    def add(
        self, number: int, values: Tensor, bits: int, what: str, remedy: str, recorded: RecordedSum = UNRECORDED
    ) -> bool:
        """Add ``values`` [size] to sum ``number``, which the server opens; False if this holder was left out.

        ``number`` is never used twice in a session, and counted alike at all parties. ``bits``: fractional bits; with 0
        the values are whole numbers in float64, which hide a summand's size in no low bits. ``what`` and ``remedy``
        are for errors; ``recorded`` is the sum in this party's record of survivors.

        Raises:
            RangeOverflow: the values do not fit with room for the sum over the holders.
            ProtocolError: too few holders are left, or somebody does not keep to the protocol; or the sum was opened
            before over other survivors.
        """
        rounding, parties = self._rounding if bits else None, len(self._group.holders)
        encoded = encoded_for_sum(values, bits, self._link.party, what, remedy, parties, rounding)
        one = HolderRound(self._group.round(number), self._link.party, self._signatures, self._pairs, self._secrets)
        self.had_all = False
        self._note(Tag(Kind.KEY, number, 1), one.noted_key)
        self._send(Tag(Kind.KEY, number, 1), one.offer())
        offers = self._receive_rows(Tag(Kind.KEY, number, 2), OFFER_BYTES)
        if not self._is_included(offers):
            return False
        self._send(Tag(Kind.MASK_SHARE, number, 0), one.share(offers))
        sealed = self._receive_rows(Tag(Kind.MASK_SHARE, number, 1), SEALED_BYTES)
        if not self._is_included(sealed):
            return False
        masked = one.mask(sealed, encoded)
        self._note(Tag(Kind.MASK_SHARE, number, 2), one.noted_shares)
        self._note(Tag(Kind.MASKED, number, 0), lambda: encoded)
        self._send(Tag(Kind.MASKED, number, 0), masked)
        survivors = receive_as(
            self._link, SERVER, Tag(Kind.CONTROL, number, 1), (len(self._group.holders),), torch.bool
        )
        if not self._is_included(survivors):
            return False
        confirmation = one.confirm(survivors)
        self.had_all = one.survivors == self._group.holders
        recorded.check(one.survivors)
        self._send(Tag(Kind.CONTROL, number, 2), confirmation)
        confirmations = self._receive_rows(Tag(Kind.CONTROL, number, 3), SIGNATURE_BYTES)
        if self._is_included(confirmations):
            shares = one.reveal(confirmations)
            recorded.add(one.survivors)  # on the disk before a share leaves
            self._send(Tag(Kind.MASK_SHARE, number, 2), shares)
        return True

    def _note(self, tag: Tag, make: Callable[[], Tensor]) -> None:
        if isinstance(self._link, RecordedLink):
            self._link.note(tag, make)

    def _send(self, tag: Tag, tensor: Tensor) -> None:
        self._link.send(SERVER, tag, tensor)

    def _receive_rows(self, tag: Tag, width: int) -> Tensor:
        return receive_as(self._link, SERVER, tag, (len(self._group.holders), width), torch.uint8)

    def _is_included(self, rows: Tensor) -> bool:
        return bool(rows[self._own].any())


@dataclass(frozen=True, slots=True)
class Sum:
    """What the server learns of a round: ``total``, int64 [size], over the holders ``counted``, in the job's order."""

    total: Tensor
    counted: tuple[PartyId, ...]


class SummingServer:
    """The server's end of all sums of a session; it waits ``patience_s`` seconds for each message of all holders."""

    def __init__(self, link: Link, group: Group, patience_s: float) -> None:
        self._link, self._group, self._patience_s = link, group, patience_s
        self._late: list[tuple[PartyId, Tag]] = []

    def add(self, number: int, size: int, recorded: RecordedSum = UNRECORDED) -> Sum:
        """Run one sum of ``size`` numbers with all holders that answer in time; errors as of ``SummingHolder.add``."""
        self._forget_late()
        one, holders = ServerRound(self._group.round(number)), self._group.holders
        count, keys = len(holders), Tag(Kind.KEY, number, 1)
        summed = recorded.survivors() or holders
        self._late += [(holder, keys) for holder in holders if holder not in summed]
        offered = self._gather(summed, keys, (OFFER_BYTES,))
        offers = one.offers(offered)
        self._send_to_all(holders, Tag(Kind.KEY, number, 2), lambda _: offers)
        shared = self._gather(list(offered), Tag(Kind.MASK_SHARE, number, 0), (count, SHARED_BYTES))
        shares = one.shares(shared)
        self._send_to_all(list(offered), Tag(Kind.MASK_SHARE, number, 1), shares.__getitem__)
        values = self._gather(list(shared), Tag(Kind.MASKED, number, 0), (size,), torch.int64)
        survivors = one.survivors(values)
        recorded.check(one.counted)
        self._send_to_all(list(shared), Tag(Kind.CONTROL, number, 1), lambda _: survivors)
        confirmed = self._gather(list(values), Tag(Kind.CONTROL, number, 2), (SIGNATURE_BYTES,))
        confirmations = one.confirmations(confirmed)
        self._send_to_all(list(values), Tag(Kind.CONTROL, number, 3), lambda _: confirmations)
        revealed = self._gather(list(confirmed), Tag(Kind.MASK_SHARE, number, 2), (count, ELEMENT_BYTES))
        recorded.add(one.counted)
        return Sum(one.unmask(revealed), one.counted)

    def _gather(self, holders: Sequence[PartyId], tag: Tag, shape: Shape, dtype: torch.dtype = torch.uint8) -> Received:
        present = gather_present(self._link, holders, tag, shape, dtype, self._patience_s)
        self._late += [(holder, tag) for holder in holders if holder not in present]
        return present

    def _send_to_all(self, holders: Sequence[PartyId], tag: Tag, message: Callable[[PartyId], Tensor]) -> None:
        for holder in holders:
            with suppress(*GONE):
                self._link.send(holder, tag, message(holder))

    def _forget_late(self) -> None:
        """Receive and drop messages that came too late, so that they do not fill the mailbox."""
        missing = []
        for holder, tag in self._late:
            if not self._link.comes(holder, tag, 0.0):
                missing.append((holder, tag))
                continue
            with suppress(LinkError):
                self._link.receive(holder, tag)
        self._late = missing


def holder_bytes(holders: int, size: int) -> tuple[int, int]:
    """Return the bytes that a holder that stays to the end sends and receives in a round, with headers of H bytes.

    5·H + 160 + 112·P + 8·size + 64 + 32·P, and 4·H + P·(160 + 80 + 1 + 64).
    """
    sent = OFFER_BYTES + holders * SHARED_BYTES + 8 * size + SIGNATURE_BYTES + holders * ELEMENT_BYTES
    received = holders * (OFFER_BYTES + SEALED_BYTES + 1 + SIGNATURE_BYTES)
    return 5 * HEADER_BYTES + sent, 4 * HEADER_BYTES + received
