"""A network that keeps what its parties added up before they trained it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

FACT_BITS: Final = 20
"""Fractional bits of the sums before the first round: they stay below 2^41."""


class FactNetwork(nn.Module):
    """A network with facts beside its weights: Tensor[K] float64, what holders added up first; or absent."""

    facts: Tensor

    def keep_facts(self, count: int) -> None:
        """Makes room, once, for so many numbers that holders add up before the first round."""
        if count:
            self.register_buffer("facts", torch.full((count,), torch.nan, dtype=torch.float64))

    @property
    def has_facts(self) -> bool:
        """Whether all that is to be known before the first round is known."""
        found = self._buffers.get("facts")
        return found is None or not bool(found.isnan().any())

    def gather(self, sizes: Sequence[int], summed: Callable[[int, Tensor], Tensor]) -> None:
        """Learns the facts, one sum after another: ``summed`` takes its size and the facts of the sums before."""
        known = torch.empty(0, dtype=torch.float64)
        for size in sizes:
            known = torch.cat([known, summed(size, known).double()])
        if sizes:
            self.facts.copy_(known)
