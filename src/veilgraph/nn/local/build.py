"""A holder's local model from the settings of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import torch
from pydantic import BeforeValidator, SerializeAsAny

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.relations import Relation
from veilgraph.nn.local.appnp import AppnpSettings
from veilgraph.nn.local.custom import CustomLocal, CustomModel
from veilgraph.nn.local.gat import GatSettings
from veilgraph.nn.local.model import LOCAL_MODELS, LocalModel, LocalSettings
from veilgraph.nn.local.sage_mean import SageMeanSettings

_FIRST: Final = frozenset({"sage-mean", "sage-lstm", "sage-pool", "gcn", "gat", "gin", "appnp", "custom"})


class FirstSettings(SageMeanSettings, GatSettings, AppnpSettings):
    """Of a job with one of the first models: it spells out the settings of all of them, and its hash is of them."""


def local_settings(said: Mapping[str, object]) -> LocalSettings:
    """What a job says under ``model.local``, held to the model that it names.

    Raises:
        ValidationError: there is no such model, or it has no such setting.
    """
    name = said.get("model", FirstSettings().model)
    if not isinstance(name, str) or name not in LOCAL_MODELS:
        return LocalSettings.model_validate(said)  # which refuses it
    return (FirstSettings if name in _FIRST else LOCAL_MODELS[name].settings).model_validate(said)


def _read(said: object) -> object:
    return local_settings(said) if isinstance(said, Mapping) else said


AnyLocalSettings = Annotated[SerializeAsAny[LocalSettings], BeforeValidator(_read)]
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
    """A holder's local model of one exchange round.

    Args:
        settings: ``model.local`` of the job.
        dim: d, width of h and of the result.
        holders: P, number of data holders.
        last_round: whether its result is the last the server combines; only then ``settings.normalize`` applies.
        streams: the holder's; initial weights come from its stream ("local", round).
        round: number of the exchange round.
        custom: for ``model: custom``, makes the user's module for a given dim.
        dtype: of the weights.
        relations: of the holder's graph, for a model that tells them apart.

    Returns:
        A module with the forward of ``LocalModel``; its ``parameters()`` are the trainable weights.

    Raises:
        ConfigError: ``custom`` is missing where the settings ask for it, or given where they do not.
    """
    normalize, kind = settings.normalize and last_round, settings.kind
    if issubclass(kind, CustomLocal) != (custom is not None):
        raise ConfigError(
            f"local.model={settings.model!r} and custom is {'missing' if custom is None else 'given'}: they go "
            "together; set model to 'custom' and pass a function that makes the module, or do neither"
        )
    with streams.global_generator("local", round):
        model: LocalModel[Any]
        if issubclass(kind, CustomLocal) and custom is not None:
            model = kind(settings, dim, holders, normalize=normalize, module=custom(dim))
        elif kind.is_relational:
            model = kind(settings, dim, holders, normalize=normalize, relations=relations)  # type: ignore[call-arg]
        else:
            model = kind(settings, dim, holders, normalize=normalize)
        return model.to(dtype)
