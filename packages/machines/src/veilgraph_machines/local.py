"""The holder's own process: local models that compute on all machines of its group."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError
from veilgraph.nn.layers import draw_mask
from veilgraph.nn.local.model import HopModel, not_partitioned
from veilgraph.nn.neighbourhood import Edges, Sampler
from veilgraph.protocol.role import LocalPart
from veilgraph_machines.blocks import Partition, cut, metis, own_nodes
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.passes import RECIPE, BlockPasses, Command, Recipe


class Leader:
    """The leader's view of its group, once every machine has its block of the graph.

    Args:
        group: of this party, at the leader; the others ``serve``.
        part: of the holder.
        partition: which machine has which nodes.
    """

    def __init__(self, group: MachineGroup, part: LocalPart, partition: Partition) -> None:
        self.adjacency, self._group, self._settings = part.adjacency, group, part.settings
        double = part.adjacency.dtype == torch.float64
        recipe = Recipe(part.settings, part.dim, part.holders, len(part.local), double)
        owner = partition(self.adjacency.incoming, group.count)
        blocks = cut(self.adjacency, owner, group.count)
        own = next(blocks)
        for machine, block in enumerate(blocks, 1):
            group.send_named(machine, {RECIPE: recipe.to_tensor(), **block.tensors()})
        self._passes = BlockPasses(own, recipe, list(part.local), group, own_nodes(owner, group.count))

    def forward(self, round_: int, rows: list[Tensor], generator: torch.Generator | None, *, learns: bool) -> Tensor:
        """A round's local model over all nodes, as ``BlockPasses.forward``; without ``generator`` it is evaluation."""
        rate = self._settings.dropout
        masks = 0 if generator is None or rate == 0 else self._settings.hops
        self._group.command(Command.FORWARD, round_, learns, len(rows), masks)
        # Drawn here for all rows: what torch draws may depend on the processor and on how much is drawn at a time.
        drawn = (draw_mask(rows[0], rate, cast(torch.Generator, generator)).to(torch.uint8) for _ in range(masks))
        return cast(Tensor, self._passes.forward(round_, rows, drawn, learns=learns))

    def backward(self, round_: int, gradient: Tensor) -> list[Tensor]:
        """The gradients of rows and weights, as ``BlockPasses.backward``."""
        self._group.command(Command.BACKWARD, round_)
        return cast(list[Tensor], self._passes.backward(round_, gradient))

    def close(self) -> None:
        """Tell the others that the job is done."""
        self._group.command(Command.CLOSE)


class PartitionedLocal(nn.Module):
    """A ``HopModel`` with the same weights under the same names, that computes on several machines.

    A step over a neighbourhood, whose cost does not grow with the graph, is computed on this one alone.

    Args:
        model: whose weights it trains.
        round_: its exchange round, from 1 to R.
        machines: of the party.
    """

    def __init__(self, model: HopModel[Any], round_: int, machines: Leader) -> None:
        super().__init__()
        self.hops = model.hops
        self._alone = (model,)  # in a tuple, so that its weights are not registered twice
        self._round, self._machines = round_, machines

    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """As ``LocalModel.forward``."""
        (model,), machines = self._alone, self._machines
        if edges is not machines.adjacency:
            result: Tensor = model(h, initial, edges, generator)
            return result
        rows = [h, initial] if model.uses_initial and initial is not h else [h]
        weights = list(self.parameters())
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*rows, *weights)):
            of = (machines, self._round, generator, len(rows))
            return cast(Tensor, _Pass.apply(*of, *rows, *weights))  # type: ignore[no-untyped-call]
        return machines.forward(self._round, rows, generator, learns=False)

    def in_blocks(self, initial: Tensor, sampler: Sampler) -> Tensor:
        """As ``LocalModel.in_blocks``, on all machines."""
        result: Tensor = self(initial, initial, self._machines.adjacency, None)
        return result


class _Pass(torch.autograd.Function):
    """A pass of all machines as one operation."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context
        machines: Leader,
        round_: int,
        generator: torch.Generator | None,
        rows: int,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.machines, ctx.round = machines, round_
        return machines.forward(round_, list(tensors[:rows]), generator, learns=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's context
        return None, None, None, None, *ctx.machines.backward(ctx.round, gradients[0])


def distribute(part: LocalPart, group: MachineGroup, partition: Partition = metis) -> Leader:
    """Have a holder's local models compute on all machines of its group from now on.

    Args:
        part: of the holder; each of ``part.local`` is replaced by one with the same weights, the same objects.
        group: of the party's machines, all of which ``serve``.
        partition: which machine has which nodes.

    Returns:
        The machines; close them at the end.

    Raises:
        ConfigError: the local model does not run on several machines.
        LinkError: a machine is gone.
    """
    if reason := not_partitioned(part.settings):
        raise ConfigError(reason)
    machines = Leader(group, part, partition)
    for index, model in enumerate(part.local):
        part.local[index] = PartitionedLocal(cast(HopModel[Any], model), index + 1, machines)
    return machines
