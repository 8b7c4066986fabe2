"""A local model of the user's own, given from Python."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import ClassVar, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import seeded_global
from veilgraph.nn.local.model import LocalModel, LocalSettings, normalize_rows
from veilgraph.nn.neighbourhood import Edges
from veilgraph.nn.propagate import first_rows

_WEIGHT: Final = "edge_weight"

CustomModel = Callable[[int], nn.Module]
"""Makes a user's own local model for a width: a module with PyTorch Geometric's ``forward(x, edge_index)``.

Where edges have weights, it has ``forward(x, edge_index, edge_weight)``.
"""


class CustomLocal(LocalModel[LocalSettings]):
    """A user's own module in place of the K hops: anything with PyTorch Geometric's ``forward(x, edge_index)``.

    Hops, activation and dropout of the settings do not apply to it. In training it may draw from torch's
    process-wide generator, which is seeded for it and restored afterwards.

    Args:
        module: the user's.
    """

    words: ClassVar[str] = "its neighbours by a local model of the user's own"

    def __init__(self, settings: LocalSettings, dim: int, holders: int, *, normalize: bool, module: nn.Module) -> None:
        super().__init__(settings, dim, holders, normalize=normalize)
        self.module = module
        self._normalize = normalize

    @override
    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """As ``LocalModel.forward``.

        Raises:
            ConfigError: the module's output has another shape than ``h``, or it takes no weights and edges have some.
        """
        given = [h, edges.edge_index.to(h.device)]
        if (weight := edges.edge_weight) is not None:
            given.append(weight.to(h))
            if _WEIGHT not in signature(self.module.forward).parameters:
                raise ConfigError(
                    f"local.model='custom': the holder's edges have weights, and {type(self.module).__name__}.forward "
                    f"takes none; give it an argument {_WEIGHT!r} after x and edge_index, or leave the weights out"
                )
        if generator is None:
            self.module.eval()
            result = self.module(*given)
        else:
            self.module.train()
            seed = int(torch.randint(2**63 - 1, (), generator=generator))
            with seeded_global(seed):
                result = self.module(*given)
        if not isinstance(result, Tensor) or result.shape != h.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"local.model='custom': {type(self.module).__name__} returned {got} for x of shape {list(h.shape)}; "
                f"it must keep the shape, so give it an output width of dim={h.shape[1]}"
            )
        result = first_rows(result, edges.num_targets)
        return normalize_rows(result) if self._normalize else result
