"""What every machine does in a pass: its own nodes' rows through the local model of a round, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilgraph.nn.layers import Masks, zero_with_gradients
from veilgraph.nn.local.build import local_settings
from veilgraph.nn.local.model import LocalSettings
from veilgraph_machines.blocks import Block
from veilgraph_machines.group import LEADER, MachineGroup
from veilgraph_machines.halo import HaloAdjacency

RECIPE: Final = "recipe"
"""Name of the recipe among the tensors of a block."""

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Recipe:
    """What a machine has to know of the model, without its weights.

    Attributes:
        settings: ``model.local`` of the job.
        dim: d.
        holders: P.
        rounds: R.
        precision: name of the dtype of weights and rows.
    """

    settings: LocalSettings
    dim: int
    holders: int
    rounds: int
    precision: str

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and rows."""
        return _DTYPES[self.precision]

    @property
    def masks(self) -> int:
        """How many dropout masks a training pass takes."""
        return self.settings.hops if self.settings.dropout > 0 else 0

    def models(self) -> list[nn.Module]:
        """The rounds' local models, without storage for their weights."""
        kind, settings = self.settings.kind, self.settings
        ends = [round_ == self.rounds for round_ in range(1, self.rounds + 1)]
        with torch.device("meta"):
            return [
                kind(settings, self.dim, self.holders, normalize=settings.normalize and last).to(self.dtype)
                for last in ends
            ]

    def to_tensor(self) -> Tensor:
        """Tensor[b] uint8, as JSON."""
        facts = {**vars(self), "settings": self.settings.model_dump(mode="json")}
        return torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8)

    @classmethod
    def of_tensor(cls, tensor: Tensor) -> Recipe:
        """The inverse of ``to_tensor``."""
        facts = json.loads(tensor.numpy().tobytes())
        return cls(**{**facts, "settings": local_settings(facts["settings"])})


class Command(IntEnum):
    """The first word of what the leader says."""

    CLOSE = 0
    """The job is done."""
    FORWARD = 1
    """Round; whether it learns; how many matrices of rows it takes; how many masks."""
    BACKWARD = 2
    """Round."""


@dataclass(frozen=True)
class _Pending:
    """A pass that waits for its backward pass: the leaves of its graph, how many of them are rows, and the result."""

    leaves: tuple[Tensor, ...]
    rows: int
    result: Tensor


class BlockPasses:
    """One machine's part of every pass. All machines of the group call the same methods in the same order.

    The leader gives tensors of all N nodes and gets such; the others give and get None in their place.

    Args:
        block: this machine's.
        recipe: of the model.
        group: of the party's machines.
        nodes: at the leader, each machine's nodes.
    """

    def __init__(
        self, block: Block, recipe: Recipe, group: MachineGroup, nodes: Sequence[np.ndarray] | None = None
    ) -> None:
        self._edges, self._models = HaloAdjacency(block, recipe.dtype, group), recipe.models()
        self._dtype, self._shape = recipe.dtype, (block.incoming.shape[0], recipe.dim)
        self._group, self._nodes = group, None if nodes is None else [torch.from_numpy(rows) for rows in nodes]
        self._pending: dict[int, _Pending] = {}

    def forward(
        self,
        round_: int,
        rows: Iterable[Tensor | None],
        masks: Iterable[Tensor | None],
        weights: Sequence[Tensor] | None,
        *,
        learns: bool,
    ) -> Tensor | None:
        """Run a round's local model.

        Args:
            round_: from 1 to R.
            rows: h, Tensor[N, d], and h^0 where the model uses it and it is another.
            masks: of dropout, Tensor[N, d] uint8 each; none in evaluation.
            weights: in the model's order.
            learns: whether ``backward`` follows, before the round's next pass that learns.

        Returns:
            Tensor[N, d], t.
        """
        shapes = self.shapes(round_)
        vector = torch.empty(sum(shape.numel() for shape in shapes.values()), dtype=self._dtype)
        if weights is not None:
            vector = flat(weights, self._dtype)
        if len(vector):
            self._group.broadcast(vector)
        leaves = [self._scatter(matrix, self._dtype).requires_grad_(learns) for matrix in rows]
        used = {name: weight.detach().requires_grad_(learns) for name, weight in shaped(vector, shapes).items()}
        drawn = [self._scatter(mask, torch.uint8) for mask in masks]
        with torch.set_grad_enabled(learns):
            arguments = (leaves[0], leaves[-1], self._edges, Masks(drawn) if drawn else None)
            result: Tensor = functional_call(self._models[round_ - 1], used, arguments)
        if learns:
            self._pending[round_] = _Pending((*leaves, *used.values()), len(leaves), result)
        return self._gather(result.detach())

    def backward(self, round_: int, gradient: Tensor | None) -> tuple[list[Tensor | None], Tensor]:
        """Run the backward pass of the round's newest pass that learns.

        Args:
            round_: from 1 to R.
            gradient: Tensor[N, d], of t.

        Returns:
            The gradients of ``rows``, Tensor[N, d] each, and at the leader of all weights as one vector in their order.
        """
        pending = self._pending.pop(round_)
        own = self._scatter(gradient, self._dtype)
        gradients = torch.autograd.grad(
            zero_with_gradients([pending.result], [own]), pending.leaves, allow_unused=True, materialize_grads=True
        )
        rows = [self._gather(row) for row in gradients[: pending.rows]]
        weights = flat(gradients[pending.rows :], self._dtype)
        if len(weights):
            self._group.total(weights)
        return rows, weights

    def shapes(self, round_: int) -> dict[str, torch.Size]:
        """Shapes of a round's weights by name, in their order."""
        return {name: weight.shape for name, weight in self._models[round_ - 1].named_parameters()}

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
    passes = BlockPasses(Block.of_tensors(setup), recipe, group)
    while True:
        command, round_, learns, rows, masks, *_ = group.command()
        if command == Command.CLOSE:
            return
        if command == Command.FORWARD:
            passes.forward(round_, [None] * rows, [None] * masks, None, learns=bool(learns))
        else:
            passes.backward(round_, None)


def flat(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All elements of some tensors, one after another: Tensor[n]."""
    return torch.cat([torch.empty(0, dtype=dtype), *(tensor.detach().flatten() for tensor in tensors)])


def shaped(vector: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The inverse of ``flat``: views by name."""
    parts = torch.split(vector, [shape.numel() for shape in shapes.values()]) if shapes else ()
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
