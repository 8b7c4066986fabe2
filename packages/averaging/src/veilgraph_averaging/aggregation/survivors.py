"""The survivors of every sum that a holder helped to open, on its disk before the masks come off.

Two sums of the same values over other survivors differ by single holders' values, to the bit. A sum that was opened is
therefore opened again over the same survivors alone, in whatever session. Holders tell the server their records when a
training goes on, so that a server without its part of the run makes the same sums again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError
from veilgraph.core.tensor_file import OPENED, Keeper
from veilgraph.core.types import PartyId

What = Literal["weights", "facts", "scores"]
_LEAVE: Final = (
    "give leave: limits.restart: true in a holder's party file, or, with all parties on this machine, veilgraph resume "
    "RUN --restart"
)
_WHATS: Final = get_args(What)
_DIGEST: Final = 16


class SumId(NamedTuple):
    """Identifies a sum that may be made again: its kind of values, epoch (−1: none), and a digest of the weights."""

    what: What
    epoch: int
    weights: bytes

    @classmethod
    def of(cls, what: What, epoch: int | None, weights: Tensor) -> SumId:
        """Make the id of a sum of values that follow from ``weights``, of any shape; ``epoch`` None: no epoch."""
        digest = hashlib.sha256(weights.numpy().tobytes()).digest()[:_DIGEST]
        return cls(what, -1 if epoch is None else epoch, digest)

    def __str__(self) -> str:
        return f"the sum of {self.what}" + (f" of round {self.epoch}" if self.epoch >= 0 else "")


class SurvivorRecord:
    """One party's record of a run's opened sums and their survivors, on disk; ``RunError`` if it is damaged.

    Sums over tables of another ``alignment`` lose their epochs, and are matched by weights alone.
    """

    def __init__(self, party: PartyId, holders: Sequence[PartyId], keeper: Keeper, alignment: str = "") -> None:
        self.party, self._holders, self._keeper, self._alignment = party, tuple(holders), keeper, alignment
        self.sums: dict[SumId, tuple[PartyId, ...]] = {}
        # A row: the sum's name, −1 for no epoch, and whose values are in it.
        self._form = np.dtype(
            [("what", "u1"), ("epoch", "<i8"), ("weights", f"V{_DIGEST}"), ("of", "?", (len(holders),))]
        )
        if (kept := keeper.get(OPENED)) is not None:
            rows = kept.tensors[OPENED].clone()
            if kept.facts.get("alignment") != alignment:
                rows[:, 1:9] = 255  # the epoch: -1
            self.merge(rows, party)

    @property
    def width(self) -> int:
        """Bytes of a row of ``rows``."""
        return self._form.itemsize

    def rows(self) -> Tensor:
        """Serialise the record, a row for each sum: uint8 [sums, width]."""
        rows = [
            (_WHATS.index(one.what), one.epoch, one.weights, [holder in survivors for holder in self._holders])
            for one, survivors in self.sums.items()
        ]
        return torch.from_numpy(np.array(rows, self._form).view(np.uint8).reshape(len(rows), self.width))

    def merge(self, rows: Tensor, sender: PartyId) -> None:
        """Add a holder's record, as from ``rows``; ``ProtocolError``: it is malformed, or contradicts this one."""
        for what, epoch, weights, there in rows.contiguous().numpy().view(self._form)[:, 0]:
            survivors = tuple(holder for holder, one in zip(self._holders, there, strict=True) if one)
            if what >= len(_WHATS) or not survivors:
                raise ProtocolError(
                    f"{self.party} cannot understand {sender}'s record of survivors; install the same release of "
                    "veilgraph at every party, or restore that file",
                    code="survivors",
                    party=sender,
                )
            sum_id = SumId(_WHATS[what], int(epoch), weights.tobytes())
            RecordedSum(self, sum_id).check(survivors)
            self.sums[sum_id] = survivors

    def add(self, sum_id: SumId, survivors: Sequence[PartyId]) -> None:
        """Keep the survivors over which a sum is opened: they are on the disk when this returns."""
        if sum_id not in self.sums:
            self.sums[sum_id] = tuple(survivors)
            self._save()

    def forget(self, sum_id: SumId) -> None:
        """Drop a sum from the record and the disk, if it is there."""
        if self.sums.pop(sum_id, None) is not None:
            self._save()

    def _save(self) -> None:
        self._keeper.put(OPENED, {OPENED: self.rows()}, {"alignment": self._alignment})


class RecordedSum:
    """One sum in a party's record; ``record`` None: no check is needed (no dropouts, or fresh noise in each sum)."""

    def __init__(self, record: SurvivorRecord | None, sum_id: SumId) -> None:
        self._record, self._id = record, sum_id

    def survivors(self) -> tuple[PartyId, ...] | None:
        """The survivors over which the sum was opened; None where it was not."""
        return next(iter(self._earlier_survivors()), None)

    def check_weights(self) -> None:
        """Raise ``ProtocolError`` if this epoch's sum was opened before with other weights, as an extra round."""
        if self._record is None:
            return
        known = {one.weights for one in self._record.sums if one[:2] == self._id[:2]}
        if known and self._id.weights not in known:
            raise ProtocolError(
                f"{self._record.party} opened {self._id} before, and is asked for it with other weights. The server "
                "goes on from another state, or a machine was replaced. Restore that party's part of the run, or "
                f"{_LEAVE}",
                code="other-weights",
                value=self._id.epoch,
            )

    def check(self, survivors: Sequence[PartyId]) -> None:
        """Raise ``ProtocolError`` if the sum was opened before over other survivors."""
        for before in self._earlier_survivors():
            if before != tuple(survivors) and self._record is not None:
                raise ProtocolError(
                    f"{self._record.party} knows that {self._id} was opened over {', '.join(before)}, and is asked to "
                    f"open it over {', '.join(survivors)}. The difference would be single holders' values. Resume "
                    f"when {', '.join(before)} answer within averaging.patience_s, or train in a new run",
                    code="other-survivors",
                    value=tuple(survivors),
                )

    def add(self, survivors: Sequence[PartyId]) -> None:
        """Record the survivors over which the sum is opened; on disk when this returns."""
        if self._record is not None:
            self._record.add(self._id, survivors)

    def forget(self) -> None:
        """Drop the sum, which was of zeros alone, so that holders with values can be in it when it is made again."""
        if self._record is not None:
            self._record.forget(self._id)

    def _earlier_survivors(self) -> set[tuple[PartyId, ...]]:
        """Return the survivors of recorded sums of the same kind with the same epoch or the same weights."""
        what, epoch, weights = self._id
        return {
            survivors
            for one, survivors in ({} if self._record is None else self._record.sums).items()
            if one.what == what and (one.weights == weights or (epoch >= 0 and one.epoch == epoch))
        }


UNRECORDED: Final = RecordedSum(None, SumId("weights", -1, b""))
