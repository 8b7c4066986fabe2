"""What every machine does in a pass: its own nodes' rows through the local model of a round, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from veilgraph.nn.layers import Masks, zero_with_gradients
from veilgraph.nn.local.build import local_settings
from veilgraph.nn.local.model import LocalSettings
from veilgraph_machines.halo import HaloAdjacency

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Recipe:
    """What a machine has to know of the model, without its weights.

    Attributes:
        settings: ``model.local`` of the job.
        dim: d.
        holders: P.
        rounds: R.
        precision: name of the dtype.
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
    def uses_initial(self) -> bool:
        """Whether the model uses h^0 beside the round's input."""
        return self.settings.kind.uses_initial

    @property
    def masks(self) -> int:
        """How many dropout masks a training pass takes."""
        return self.settings.hops if self.settings.dropout > 0 else 0

    def models(self) -> list[nn.Module]:
        """The rounds' local models, without storage for their weights."""
        last = [round_ == self.rounds for round_ in range(1, self.rounds + 1)]
        with torch.device("meta"):
            kind, settings = self.settings.kind, self.settings
            return [
                kind(settings, self.dim, self.holders, normalize=settings.normalize and ends).to(self.dtype)
                for ends in last
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


@dataclass(frozen=True)
class _Pending:
    """A pass that waits for its backward pass: the leaves of its graph and the result."""

    rows: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    result: Tensor


class BlockPasses:
    """This machine's part of every pass. All machines of the group call the same methods in the same order.

    Args:
        edges: of this machine's block.
        models: the rounds' local models; their own weights are not used.
    """

    def __init__(self, edges: HaloAdjacency, models: Sequence[nn.Module]) -> None:
        self._edges, self._models = edges, models
        self._pending: dict[int, _Pending] = {}

    def sizes(self, round_: int) -> dict[str, torch.Size]:
        """Shapes of a round's weights by name, in their order."""
        return {name: weight.shape for name, weight in self._models[round_ - 1].named_parameters()}

    def forward(
        self, round_: int, rows: Sequence[Tensor], weights: Mapping[str, Tensor], masks: Masks | None, *, learns: bool
    ) -> Tensor:
        """The model over the machine's own rows.

        Args:
            round_: from 1 to R.
            rows: h, Tensor[n, d], and h^0 where it is another.
            weights: of this pass, by name.
            masks: of dropout; None means evaluation.
            learns: whether ``backward`` follows, before the round's next pass that learns.

        Returns:
            Tensor[n, d], t.
        """
        leaves = tuple(row.detach().requires_grad_(learns) for row in rows)
        used = {name: weight.detach().requires_grad_(learns) for name, weight in weights.items()}
        with torch.set_grad_enabled(learns):
            arguments = (leaves[0], leaves[-1], self._edges, masks)
            result: Tensor = functional_call(self._models[round_ - 1], used, arguments)
        if learns:
            self._pending[round_] = _Pending(leaves, tuple(used.values()), result)
        return result.detach()

    def backward(self, round_: int, gradient: Tensor) -> tuple[list[Tensor], Tensor]:
        """The backward pass of the round's newest pass that learns.

        Args:
            round_: from 1 to R.
            gradient: Tensor[n, d], of t.

        Returns:
            The gradients of ``rows``, and of this machine's part of all weights as one vector in their order.
        """
        pending = self._pending.pop(round_)
        leaves = (*pending.rows, *pending.weights)
        gradients = torch.autograd.grad(
            zero_with_gradients([pending.result], [gradient]), leaves, allow_unused=True, materialize_grads=True
        )
        rows = len(pending.rows)
        return list(gradients[:rows]), flat(gradients[rows:], gradient.dtype)


def flat(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All elements of some tensors, one after another: Tensor[n]."""
    return torch.cat([torch.empty(0, dtype=dtype), *(tensor.detach().flatten() for tensor in tensors)])


def shaped(vector: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The inverse of ``flat``: views by name."""
    parts = torch.split(vector, [shape.numel() for shape in shapes.values()]) if shapes else ()
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
