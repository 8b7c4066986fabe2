"""The holder's own process: a local model that computes on all machines of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from veilgraph.core.errors import ConfigError
from veilgraph.nn.layers import Masks, draw_mask
from veilgraph.nn.local.model import HopModel, LocalSettings, not_partitioned
from veilgraph.nn.neighbourhood import Edges, Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph_machines.blocks import Partition, balanced, cut
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.halo import HaloAdjacency
from veilgraph_machines.passes import BlockPasses, Recipe, flat, shaped
from veilgraph_machines.worker import RECIPE, Command


class Leader:
    """The leader's view of its group, once every machine has its block of the graph.

    Args:
        group: of this party, at the leader.
        recipe: of the model.
        adjacency: of the whole graph.
        partition: which machine has which nodes.
    """

    def __init__(
        self, group: MachineGroup, recipe: Recipe, adjacency: Adjacency, partition: Partition = balanced
    ) -> None:
        self._group, self._recipe = group, recipe
        self.adjacency = adjacency
        self._bounds: np.ndarray = partition(np.diff(adjacency.incoming.indptr).astype(np.int64), group.count)
        blocks = cut(adjacency, self._bounds)
        own = next(blocks)
        for machine, block in enumerate(blocks, 1):
            group.send_named(machine, {RECIPE: recipe.to_tensor(), **block.tensors()})
        self._passes = BlockPasses(HaloAdjacency(own, recipe.dtype, group), recipe.models())

    def forward(
        self,
        round_: int,
        rows: Sequence[Tensor],
        weights: Sequence[Tensor],
        generator: torch.Generator | None,
        *,
        learns: bool,
    ) -> Tensor:
        """A round's local model over all nodes.

        Args:
            round_: from 1 to R.
            rows: h, Tensor[N, d], and h^0 where the model uses it and it is another.
            weights: in the model's order.
            generator: source of dropout; None means evaluation.
            learns: whether ``backward`` follows.

        Returns:
            Tensor[N, d], t.
        """
        group, recipe = self._group, self._recipe
        masks = 0 if generator is None else recipe.masks
        group.command(Command.FORWARD, round_, learns, len(rows), masks)
        vector = flat(weights, recipe.dtype)
        if len(vector):
            group.broadcast(vector)
        own = [group.deal(matrix, self._bounds) for matrix in rows]
        drawn = [self._masked(rows[0], generator) for _ in range(masks)] if generator is not None else []
        result = self._passes.forward(
            round_, own, shaped(vector, self._passes.sizes(round_)), Masks(drawn) if drawn else None, learns=learns
        )
        return group.collect(result, self._bounds)

    def backward(self, round_: int, gradient: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The way back of the round's newest pass that learns.

        Args:
            round_: from 1 to R.
            gradient: Tensor[N, d], of t.

        Returns:
            The gradients of the pass's rows, and of its weights.
        """
        self._group.command(Command.BACKWARD, round_)
        rows, weights = self._passes.backward(round_, self._group.deal(gradient, self._bounds))
        collected = [self._group.collect(row, self._bounds) for row in rows]
        if len(weights):
            self._group.total(weights)
        return collected, list(shaped(weights, self._passes.sizes(round_)).values())

    def close(self) -> None:
        """Tells the others that the job is done."""
        self._group.command(Command.CLOSE)

    def rows(self, h: Tensor, initial: Tensor) -> list[Tensor]:
        """What of a round's input the model uses, nothing twice."""
        return [h, initial] if self._recipe.uses_initial and initial is not h else [h]

    def _masked(self, h: Tensor, generator: torch.Generator) -> Tensor:
        """Draws the mask of all rows, as one machine would, and deals it: own rows, Tensor[n, d] uint8.

        Drawn here and not at each machine: what torch draws may depend on the processor and on how much is drawn at
        a time.
        """
        mask = draw_mask(h, self._recipe.settings.dropout, generator).to(torch.uint8)
        return self._group.deal(mask, self._bounds).clone()


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
        if edges is not self._machines.adjacency:
            result: Tensor = self._alone[0](h, initial, edges, generator)
            return result
        rows, weights = self._machines.rows(h, initial), list(self.parameters())
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*rows, *weights)):
            of = (self._machines, self._round, generator, len(rows))
            return cast(Tensor, _Pass.apply(*of, *rows, *weights))  # type: ignore[no-untyped-call]
        return self._machines.forward(self._round, rows, weights, generator, learns=False)

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
        count: int,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.machines, ctx.round = machines, round_
        return machines.forward(round_, tensors[:count], tensors[count:], generator, learns=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's context
        rows, weights = ctx.machines.backward(ctx.round, gradients[0])
        return None, None, None, None, *rows, *weights


def distribute(
    local: nn.ModuleList,
    adjacency: Adjacency,
    settings: LocalSettings,
    dim: int,
    holders: int,
    group: MachineGroup,
    partition: Partition = balanced,
) -> Leader:
    """Has a holder's local models compute on all machines of its group from now on.

    Args:
        local: the rounds' local models; each is replaced by one with the same weights, its parameters the same objects.
        adjacency: of the holder's graph.
        settings: ``model.local`` of the job.
        dim: d.
        holders: P.
        group: of the party's machines, all of which ``serve``.
        partition: which machine has which nodes.

    Returns:
        The machines; close them at the end.

    Raises:
        ConfigError: the local model does not run on several machines.
        LinkError: a machine is gone.
    """
    if reason := not_partitioned(settings):
        raise ConfigError(reason)
    precision = "float64" if adjacency.dtype == torch.float64 else "float32"
    recipe = Recipe(settings, dim, holders, len(local), precision)
    machines = Leader(group, recipe, adjacency, partition)
    for index, model in enumerate(local):
        local[index] = PartitionedLocal(cast(HopModel[Any], model), index + 1, machines)
    return machines
