"""The twin, that holds what it computes against the rings: nothing that passes the range tests may come near them."""

from collections.abc import Sequence

from typing_extensions import override

from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.mpc.sealed.opening import GUARD
from veilgraph.mpc.sealed.wire import Bit, Ring, Summands, Wire


class BoundedMachine(PlainMachine):
    """Notes what is opened, or summed over neighbours, and does not fit its ring; what is compared, and its bound."""

    def __init__(self, holders: Sequence[PartyId], noise: SecretSource = system_secrets) -> None:
        super().__init__(holders, noise)
        self.beyond: list[float] = []

    @override
    def open(self, summands: Summands, shift: int = 0, ring: Ring = 64, *, bits: int | None = None) -> Wire:
        self._check(summands, 64)
        return super().open(summands, shift, ring, bits=bits)

    @override
    def negative(self, wire: Wire, whole_bits: int | None = None, fine_bits: int | None = None) -> Bit:
        if whole_bits is not None and wire.known.numel() and not float(wire.known.abs().max()) < 2.0**whole_bits:
            self.beyond.append(float(wire.known.abs().max()))
        return super().negative(wire, whole_bits, fine_bits)

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        found = super().hop(graphs, wire)
        self._check(found, wire.ring)
        return found

    def _check(self, summands: Summands, ring: int) -> None:
        """Whether values of Z_2^n are below 2^(n − GUARD), as they have to be where they are cut or lifted."""
        if summands.part.numel() and not float(summands.part.abs().max()) < 2.0 ** (ring - GUARD - summands.bits):
            self.beyond.append(float(summands.part.abs().max()))
