"""A holder's local model from the settings of a job, the user's own among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Annotated, Any, ClassVar, Final

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams, seeded_global
from veilgraph.core.settings import read_by
from veilgraph.graph.rules import Relation
from veilgraph.nn.local.hops import AppnpSettings, GatSettings, SageMeanSettings
from veilgraph.nn.local.model import LOCAL_MODELS, LocalModel, LocalSettings, normalize_rows
from veilgraph.nn.neighbourhood import Edges
from veilgraph.nn.propagate import first_rows

CustomModel = Callable[[int], nn.Module]
"""Makes a user's own local model for a width: a module with PyTorch Geometric's ``forward(x, edge_index)``.

Where edges have weights, it has ``forward(x, edge_index, edge_weight)``.
"""


class CustomLocal(LocalModel[LocalSettings]):
    """A user's own module in place of the K hops: anything with PyTorch Geometric's ``forward(x, edge_index)``.

    Hops, activation and dropout of the settings do not apply to it. In training it may draw from torch's
    process-wide generator, which is seeded for it and restored afterwards.
    """

    words: ClassVar[str] = "its neighbours by a local model of the user's own"

    def __init__(self, settings: LocalSettings, dim: int, holders: int, *, normalize: bool, module: nn.Module) -> None:
        super().__init__(settings, dim, holders, normalize=normalize)
        self.module = module
        self._normalize = normalize

    @override
    def forward(self, h: Tensor, initial: Tensor, edges: Edges, generator: torch.Generator | None) -> Tensor:
        """As ``LocalModel.forward``; raises ``ConfigError`` where the module takes no weights, or changes the shape."""
        given = [h, edges.edge_index.to(h.device)]
        if (weight := edges.edge_weight) is not None:
            given.append(weight.to(h))
            if "edge_weight" not in signature(self.module.forward).parameters:
                raise ConfigError(
                    f"local.model='custom': the holder's edges have weights, and {type(self.module).__name__}.forward "
                    "takes none; give it an argument 'edge_weight' after x and edge_index, or leave the weights out"
                )
        if generator is None:
            self.module.eval()
            result = self.module(*given)
        else:
            self.module.train()
            with seeded_global(int(torch.randint(2**63 - 1, (), generator=generator))):
                result = self.module(*given)
        if not isinstance(result, Tensor) or result.shape != h.shape:
            got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"local.model='custom': {type(self.module).__name__} returned {got} for x of shape {list(h.shape)}; "
                f"it must keep the shape, so give it an output width of dim={h.shape[1]}"
            )
        result = first_rows(result, edges.num_targets)
        return normalize_rows(result) if self._normalize else result


_FIRST: Final = frozenset({"sage-mean", "sage-lstm", "sage-pool", "gcn", "gat", "gin", "appnp", "custom"})


class FirstSettings(SageMeanSettings, GatSettings, AppnpSettings):
    """Settings of any of the first models: a job spells out those of all of them, and its hash covers them."""


def local_settings(said: Mapping[str, object]) -> LocalSettings:
    """Validate what a job says under ``model.local`` as its model's settings; raises ``ValidationError``."""
    name = said.get("model", FirstSettings().model)
    if not isinstance(name, str) or name not in LOCAL_MODELS:
        return LocalSettings.model_validate(said)  # which refuses it
    return (FirstSettings if name in _FIRST else LOCAL_MODELS[name].settings).model_validate(said)


AnyLocalSettings = Annotated[SerializeAsAny[LocalSettings], read_by(local_settings)]
"""A field of settings that is of whichever local model it names."""


def build_local(
    settings: LocalSettings,
    dim: int,
    holders: int,
    *,
    last_round: bool,
    streams: LearningStreams,
    round: int,  # noqa: A002 - the paper's word, and the tag's
    custom: CustomModel | None = None,
    dtype: torch.dtype = torch.float32,
    relations: Sequence[Relation] = (),
) -> LocalModel[Any]:
    """Build the local model of one of P holders for an exchange round; weights come from the stream ("local", round).

    ``last_round``: only then ``settings.normalize`` applies. ``custom`` makes a user's module for a given dim;
    ``relations`` are for a model that tells them apart. Raises ``ConfigError``: ``custom`` is missing where the
    settings ask for it, or given where they do not.
    """
    normalize, kind = settings.normalize and last_round, settings.kind
    if issubclass(kind, CustomLocal) != (custom is not None):
        raise ConfigError(
            f"local.model={settings.model!r} and custom is {'missing' if custom is None else 'given'}: they go "
            "together; set model to 'custom' and pass a function that makes the module, or do neither"
        )
    with streams.global_generator("local", round):
        more: dict[str, Any] = {} if custom is None else {"module": custom(dim)}
        if kind.is_relational:
            more["relations"] = relations
        return kind(settings, dim, holders, normalize=normalize, **more).to(dtype)
