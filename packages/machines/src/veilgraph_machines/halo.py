"""A machine's block of the adjacency matrix: every product first fetches the rows of its halo."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from veilgraph.nn.propagate import Adjacency
from veilgraph_machines.blocks import Block
from veilgraph_machines.group import MachineGroup


class HaloAdjacency(Adjacency):
    """The rows of the whole graph's adjacency that belong to one machine's nodes.

    Methods are those of ``Adjacency`` with x Tensor[n, d] of the machine's own nodes. All machines of the group call
    the same ones in the same order, forward and backward.

    Args:
        block: this machine's.
        dtype: of every product.
        group: of the party's machines.
    """

    def __init__(self, block: Block, dtype: torch.dtype, group: MachineGroup) -> None:
        super().__init__(block.incoming, dtype, block.degrees)
        self._block, self._group = block, group

    def maximum(self, x: Tensor) -> Tensor:
        """Element-wise maximum over neighbours: Tensor[n, d] to Tensor[n, d]."""
        return super().maximum(self._with_halo(x))

    def _product(
        self, key: str, x: Tensor, of_target: np.ndarray | None = None, of_source: np.ndarray | None = None
    ) -> Tensor:
        return super()._product(key, self._with_halo(x), of_target, of_source)

    def _with_halo(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Halo.apply(x, self._block, self._group))  # type: ignore[no-untyped-call]


class _Halo(torch.autograd.Function):
    """x of the own nodes to x of these and the halo; backward, the halo's gradients go home and are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, group: MachineGroup) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.block, ctx.group = block, group
        own, everything = block.incoming.shape
        result = x.new_empty(everything, x.shape[1])
        result[:own] = x
        group.exchange(result[own:], x[block.sends], block.receive_counts, block.send_counts)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 - torch's context
        block, own = ctx.block, ctx.block.incoming.shape[0]
        gradient = gradients[0].contiguous()
        theirs = gradient.new_empty(len(block.sends), gradient.shape[1])
        ctx.group.exchange(theirs, gradient[own:], block.send_counts, block.receive_counts)
        return gradient[:own].index_add(0, block.sends, theirs), None, None
