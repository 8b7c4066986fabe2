"""The twin, that refuses what would not fit the rings: masked numbers that overflow show nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.machine import GUARD, HiddenGraph, Ring
from veilgraph.mpc.sealed.twin import PlainMachine
from veilgraph.mpc.sealed.wire import Summands, Wire


class BoundedMachine(PlainMachine):
    """Holds every opened value, and every sum over neighbours, against its ring.

    Args:
        holders: in the job's order.
        key: the setting that the error names; its ``value`` is said beside it.
        value: of that setting.
        remedy: in the error, what to change.
    """

    def __init__(self, holders: Sequence[PartyId], key: str, value: object, remedy: str) -> None:
        super().__init__(holders)
        self._key, self._value, self._remedy = key, value, remedy
        self._stage = "enter"

    @override
    def at(self, stage: str) -> None:
        super().at(stage)
        self._stage = stage

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        self._check(summands, 64)
        return super().open(summands, shift, ring, bits=bits)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        found = super().hop(graphs, wire)
        self._check(found, wire.ring)
        return found

    def _check(self, summands: Summands, ring: int) -> None:
        """Whether values of Z_2^n are below 2^(n − GUARD), as they have to be where they are cut or lifted."""
        if not summands.part.numel():
            return
        room = ring - GUARD - summands.bits
        largest = float(summands.part.abs().max())
        if not largest < 2.0**room:  # true for NaN too
            raise RangeOverflow(
                f"{self._key}={self._value}: the holders' columns are too large for the ring: {self._stage!r} has "
                f"values of about {largest:.3g}, which must stay below 2^{room} in magnitude; {self._remedy}",
                code="beyond-the-ring",
                key=self._key,
                value=self._value,
            )
