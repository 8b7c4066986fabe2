"""What holders with labels put in and pick, each of its own rows, one below the other: one of them, or every holder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire, joined
from veilgraph.paradigms.sealed.plan import Block, Context

Rows = Literal["training", "validation", "asked"]


class Learners:
    """One party's part in it. Rows of several holders are mixed, evenly and in a public order, but for those asked."""

    def __init__(self, machine: Machine, context: Context) -> None:
        self._machine, self._context = machine, context

    def put(self, what: str, made: Callable[[Tensor], Tensor], rows: Rows, width: int, bits: int) -> Wire:
        """What is made of an attribute of what each puts in: [T or V, width]."""
        parts = []
        for holder, block in self._context.learners.items():
            if size := self._size(rows, block):
                own = self._context.of(holder, what)
                parts.append(self._machine.put(holder, None if own is None else made(own), (size, width), bits))
        return joined(parts).map(partial(self._mixed, rows))

    def pick(self, what: str, rows: Rows, wire: Wire) -> Summands:
        """Rows of a wire [N, d] that an attribute of what each puts in names, and nobody else knows: [T or V, d]."""
        parts = []
        for holder, block in self._context.learners.items():
            if size := self._size(rows, block):
                own = self._context.of(holder, what)
                parts.append(self._machine.pick(holder, own, size, wire[block.rows]))
        return Summands(torch.cat([part.part for part in parts]), parts[0].bits).map(partial(self._mixed, rows))

    def reveal(self, wire: Wire) -> Tensor | None:
        """Rows of a wire [N, d] at each that has labels there, float64; None elsewhere, and in one place all.

        Where nodes are named, of a wire [R, d], whose rows are in the order of ``pick``.
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
    def _size(rows: Rows, block: Block) -> int:
        sizes = {"training": block.training, "validation": block.validation, "asked": block.asked}
        return sizes[rows]

    def _mixed(self, rows: Rows, part: Tensor) -> Tensor:
        sizes = [self._size(rows, block) for block in self._context.learners.values()]
        if len(sizes) == 1 or rows == "asked":
            return part
        order = torch.cat([(torch.arange(size) + 0.5) / max(size, 1) for size in sizes]).argsort(stable=True)
        return part.index_select(0, order.to(part.device))
