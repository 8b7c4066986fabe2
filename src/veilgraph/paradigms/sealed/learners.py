"""Put in, pick and reveal rows of the holders with labels, stacked: of one label holder, or of every holder its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire, concatenate
from veilgraph.paradigms.sealed.plan import Block, Context

Rows = Literal["training", "validation", "asked"]


class Learners:
    """One party's part. Rows of several holders are interleaved evenly, in a public order, except "asked" ones."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context

    def put(self, what: str, made: Callable[[Tensor], Tensor], rows: Rows, width: int, bits: int) -> Wire:
        """Put in ``made`` of attribute ``what`` of each holder's ``OwnData``, stacked: [T or V, width] of 2^−bits."""
        parts = []
        for holder, block in self._context.learners.items():
            if size := self._count(rows, block):
                own = self._context.of(holder, what)
                parts.append(self._machine.put(holder, None if own is None else made(own), (size, width), bits))
        return concatenate(parts).map(partial(self._interleave, rows))

    def pick(self, what: str, rows: Rows, *wires: Wire) -> Summands:
        """Pick rows of wires [N, ·] side by side by a secret, ``what`` of each holder's ``OwnData``: [T, V or R, d]."""
        parts = []
        for holder, block in self._context.learners.items():
            if size := self._count(rows, block):
                own = self._context.of(holder, what)
                parts.append(self._machine.pick(holder, own, size, *(wire[block.rows] for wire in wires)))
        if len(parts) == 1:
            return parts[0]
        return Summands(torch.cat([part.part for part in parts]), parts[0].bits).map(partial(self._interleave, rows))

    def reveal(self, wire: Wire) -> Tensor | None:
        """Reveal to each holder with labels its own rows of a wire [N, d], float64; None at others, all in the twin.

        Where nodes are named, the wire is [R, d] with rows in the order of ``pick``.
        """
        machine, learners = self._machine, self._context.learners
        rows = {holder: block.rows for holder, block in learners.items()}
        if self._context.sizes.asked is not None:
            ends = dict(zip(learners, accumulate(block.asked for block in learners.values()), strict=True))
            rows = {holder: slice(ends[holder] - block.asked, ends[holder]) for holder, block in learners.items()}
        told = [machine.reveal(wire[of], holder) for holder, of in rows.items() if of.stop > of.start]
        known = [each for each in told if each is not None]
        return torch.cat(known) if known else None

    @staticmethod
    def _count(rows: Rows, block: Block) -> int:
        sizes = {"training": block.training, "validation": block.validation, "asked": block.asked}
        return sizes[rows]

    def _interleave(self, rows: Rows, part: Tensor) -> Tensor:
        sizes = [self._count(rows, block) for block in self._context.learners.values()]
        if len(sizes) == 1 or rows == "asked":
            return part
        order = torch.cat([(torch.arange(size) + 0.5) / max(size, 1) for size in sizes]).argsort(stable=True)
        return part.index_select(0, order.to(part.device))
