"""What every machine does in a pass: its own nodes' rows through the local model of a round, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import torch
from pydantic_core import from_json
from torch import Tensor, nn

from veilgraph.nn.layers import Masks, zero_with_gradients
from veilgraph.nn.local.build import local_settings
from veilgraph.nn.local.model import LocalSettings
from veilgraph_machines.blocks import Block
from veilgraph_machines.group import LEADER, MachineGroup
from veilgraph_machines.halo import HaloAdjacency

RECIPE: Final = "recipe"
"""Name of the recipe among the tensors of a block."""


@dataclass(frozen=True)
class Recipe:
    """What a machine has to know of the model.

    Attributes:
        settings: ``model.local`` of the job.
        dim: d.
        holders: P.
        rounds: R.
        double: whether weights and rows are float64, and not float32.
    """

    settings: LocalSettings
    dim: int
    holders: int
    rounds: int
    double: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and rows."""
        return torch.float64 if self.double else torch.float32

    def models(self) -> list[nn.Module]:
        """The rounds' local models with weights of no meaning; nothing is drawn."""
        kind, settings = self.settings.kind, self.settings
        ends = [round_ == self.rounds for round_ in range(1, self.rounds + 1)]
        with torch.device("meta"):
            made = [kind(settings, self.dim, self.holders, normalize=settings.normalize and last) for last in ends]
        return [model.to(self.dtype).to_empty(device="cpu") for model in made]

    def to_tensor(self) -> Tensor:
        """Tensor[b] uint8, as JSON."""
        facts = {**vars(self), "settings": self.settings.model_dump(mode="json")}
        return torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> Recipe:
        """The inverse of ``to_tensor``."""
        facts = from_json(tensor.numpy().tobytes())
        return cls(**{**facts, "settings": local_settings(facts["settings"])})


class Command(IntEnum):
    """The first word of what the leader says."""

    CLOSE = 0
    """The job is done."""
    FORWARD = 1
    """Round; whether it learns; how many matrices of rows it takes; how many masks."""
    BACKWARD = 2
    """Round."""


class BlockPasses:
    """One machine's part of every pass. All machines of the group call the same methods in the same order.

    The leader gives tensors of all N nodes and gets such; the others give and get None in their place.

    Args:
        block: this machine's.
        recipe: of the model.
        models: the rounds' local models; a pass uses the leader's weights, and writes them into the others'.
        group: of the party's machines.
        nodes: at the leader, each machine's nodes.
    """

    def __init__(
        self,
        block: Block,
        recipe: Recipe,
        models: Sequence[nn.Module],
        group: MachineGroup,
        nodes: Sequence[np.ndarray] | None = None,
    ) -> None:
        self._edges, self._models, self._group = HaloAdjacency(block, recipe.dtype, group), models, group
        self._dtype, self._shape = recipe.dtype, (block.incoming.shape[0], recipe.dim)
        self._nodes = None if nodes is None else [torch.from_numpy(rows) for rows in nodes]
        self._pending: dict[int, tuple[list[Tensor], Tensor]] = {}

    def forward(
        self, round_: int, rows: Iterable[Tensor | None], masks: Iterable[Tensor | None], *, learns: bool
    ) -> Tensor | None:
        """Run a round's local model.

        Args:
            round_: from 1 to R.
            rows: h, Tensor[N, d], and h^0 where the model uses it and it is another.
            masks: of dropout, Tensor[N, d] uint8 each; none in evaluation.
            learns: whether ``backward`` follows, before the round's next pass that learns.

        Returns:
            Tensor[N, d], t.
        """
        model = self._models[round_ - 1]
        for weight in model.parameters():
            self._group.broadcast(weight.detach())
        leaves = [self._scatter(matrix, self._dtype).requires_grad_(learns) for matrix in rows]
        drawn = [self._scatter(mask, torch.uint8) for mask in masks]
        with torch.set_grad_enabled(learns):
            result: Tensor = model(leaves[0], leaves[-1], self._edges, Masks(drawn) if drawn else None)
        if learns:
            self._pending[round_] = leaves, result
        return self._gather(result.detach())

    def backward(self, round_: int, gradient: Tensor | None) -> list[Tensor | None]:
        """Run the backward pass of the round's newest pass that learns.

        Args:
            round_: from 1 to R.
            gradient: Tensor[N, d], of t.

        Returns:
            The gradients of ``rows``, Tensor[N, d] each, then those of the model's weights.
        """
        leaves, result = self._pending.pop(round_)
        weights = list(self._models[round_ - 1].parameters())
        own = zero_with_gradients([result], [self._scatter(gradient, self._dtype)])
        found = torch.autograd.grad(own, [*leaves, *weights], allow_unused=True, materialize_grads=True)
        rows = [self._gather(row) for row in found[: len(leaves)]]
        return [*rows, *(self._group.total(weight.contiguous()) for weight in found[len(leaves) :])]

    def _scatter(self, x: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Give every machine its rows of the leader's x, Tensor[N, d], one machine after another: Tensor[n, d]."""
        if x is None or self._nodes is None:
            return self._group.receive(LEADER, torch.empty(self._shape, dtype=dtype))
        for machine, rows in enumerate(self._nodes[1:], 1):
            self._group.send(machine, x.detach().index_select(0, rows))
        return x.detach().index_select(0, self._nodes[LEADER])

    def _gather(self, own: Tensor) -> Tensor | None:
        """Collect all machines' rows at the leader, the inverse of ``_scatter``."""
        if self._nodes is None:
            self._group.send(LEADER, own)
            return None
        result = own.new_empty(sum(map(len, self._nodes)), own.shape[1])
        result[self._nodes[LEADER]] = own
        for machine, rows in enumerate(self._nodes[1:], 1):
            result[rows] = self._group.receive(machine, own.new_empty(len(rows), own.shape[1]))
        return result


def serve(group: MachineGroup) -> None:
    """Take a block of the graph from the leader and compute on it until the leader closes.

    Raises:
        LinkError: another machine is gone.
    """
    setup = group.receive_named(LEADER)
    recipe = Recipe.of_tensor(setup.pop(RECIPE))
    passes = BlockPasses(Block.of_tensors(setup), recipe, recipe.models(), group)
    while True:
        command, round_, learns, rows, masks, *_ = group.command()
        if command == Command.CLOSE:
            return
        if command == Command.FORWARD:
            passes.forward(round_, [None] * rows, [None] * masks, learns=bool(learns))
        else:
            passes.backward(round_, None)
