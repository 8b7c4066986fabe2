"""What a party's other machines do: what the leader says, until it is done."""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

from veilgraph.nn.layers import Masks
from veilgraph_machines.blocks import Block
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.halo import HaloAdjacency
from veilgraph_machines.passes import BlockPasses, Recipe, shaped

RECIPE = "recipe"
"""Name of the recipe among the tensors of a block."""


class Command(IntEnum):
    """The first word of what the leader says."""

    CLOSE = 0
    """The job is done."""
    FORWARD = 1
    """Round; whether it learns; how many matrices of rows it takes; how many masks."""
    BACKWARD = 2
    """Round."""


def serve(group: MachineGroup) -> None:
    """Takes a block of the graph from the leader and computes on it until the leader closes.

    Raises:
        LinkError: another machine is gone.
    """
    setup = group.receive_named()
    recipe = Recipe.of_tensor(setup.pop(RECIPE))
    block = Block.of_tensors(setup)
    passes = BlockPasses(HaloAdjacency(block, recipe.dtype, group), recipe.models())
    shape = (block.incoming.shape[0], recipe.dim)
    while True:
        command, round_, *words = group.command()
        if command == Command.CLOSE:
            return
        if command == Command.FORWARD:
            learns, rows, masks = words[:3]
            _forward(group, passes, round_, (shape, recipe.dtype), (bool(learns), rows, masks))
        else:
            gradients, weights = passes.backward(round_, group.take(shape, recipe.dtype))
            for gradient in gradients:
                group.hand_in(gradient)
            if len(weights):
                group.total(weights)


def _forward(
    group: MachineGroup,
    passes: BlockPasses,
    round_: int,
    of: tuple[tuple[int, int], torch.dtype],
    asked: tuple[bool, int, int],
) -> None:
    (shape, dtype), (learns, rows, masks) = of, asked
    sizes = passes.sizes(round_)
    weights = torch.empty(sum(size.numel() for size in sizes.values()), dtype=dtype)
    if len(weights):
        group.broadcast(weights)
    matrices = [group.take(shape, dtype) for _ in range(rows)]
    drawn: list[Tensor] = [group.take(shape, torch.uint8) for _ in range(masks)]
    result = passes.forward(round_, matrices, shaped(weights, sizes), Masks(drawn) if masks else None, learns=learns)
    group.hand_in(result)
