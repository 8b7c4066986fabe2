"""The split network's parts as the parties hold them; the roles run them apart, the plaintext twin together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.nn.combine import AnyCombineSettings, CombineSettings, Unchanged, build_combine
from veilgraph.nn.layers import ACTIVATIONS, HeadSettings, ServerSettings, build_deep, dropout
from veilgraph.nn.local.build import AnyLocalSettings, CustomModel, FirstSettings, build_local
from veilgraph.nn.local.model import LocalModel
from veilgraph.nn.neighbourhood import Neighbourhood, Sampler
from veilgraph.nn.propagate import Adjacency, first_rows
from veilgraph.paradigms.vertical.initial import InitialSettings
from veilgraph.protocol.cut import Release


class ModelSettings(Settings):
    """The split network."""

    dim: int = Field(64, ge=1, le=4096, description="d, the width of every embedding")
    rounds: int = Field(1, ge=1, le=64, description="R; with R > 1 holders see combined embeddings of earlier rounds")
    initial: InitialSettings = InitialSettings()
    local: AnyLocalSettings = FirstSettings()
    combine: AnyCombineSettings = CombineSettings()
    server: ServerSettings = ServerSettings()
    head: HeadSettings = HeadSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rounds > 1 and build_combine(self.combine).output_dim(self.dim, 2) != self.dim:
            raise ValueError(
                f"rounds > 1 sends the combined embedding back as the next input of width dim, and "
                f"{self.combine.strategy} makes it wider; set rounds to 1 or choose mean, regression or degree-weighted"
            )
        self.local.kind.check(self.local, self.dim)
        return self


class HolderNetwork(nn.Module):
    """What one data holder computes between h^0 and what it publishes.

    Args:
        settings: of the model.
        holders: P.
        adjacency: the holder's own edges, over N nodes; of a relational local model with their relations.
        streams: the holder's.
        dtype: of the weights.
        custom: for ``local.model: custom``.
        common: C, how many of the nodes, the first, all holders know; default: N.
        is_summed: whether rows are added up as they were released, and weighed by nobody.
    """

    def __init__(
        self,
        settings: ModelSettings,
        holders: int,
        adjacency: Adjacency,
        streams: LearningStreams,
        dtype: torch.dtype,
        custom: CustomModel | None = None,
        common: int | None = None,
        *,
        is_summed: bool = False,
    ) -> None:
        super().__init__()
        self._adjacency = adjacency
        self._common = adjacency.num_nodes if common is None else common
        self._local_rate = settings.local.learning_rate
        self._initial = settings.initial
        self.local = nn.ModuleList(
            build_local(
                settings.local,
                settings.dim,
                holders,
                last_round=round_ == settings.rounds,
                streams=streams,
                round=round_,
                custom=custom,
                dtype=dtype,
                relations=adjacency.relations,
            )
            for round_ in range(1, settings.rounds + 1)
        )
        combine = build_combine(settings.combine)
        self.contribution = Unchanged() if is_summed else combine.holder_part(settings.dim, holders, adjacency)
        weight = combine.holder_weight(holders, adjacency)
        self.weight = None if weight is None else weight[: self._common]

    def rates(self) -> dict[nn.Parameter, float]:
        """Weights that have a learning rate of their own."""
        return {} if self._local_rate is None else dict.fromkeys(self.local.parameters(), self._local_rate)

    def start(self, embedding: Tensor, generator: torch.Generator | None) -> Tensor:
        """h^0 after activation and dropout: [N, d]."""
        return dropout(ACTIVATIONS[self._initial.activation](embedding), self._initial.dropout, generator)

    def contribute(
        self,
        round_: int,
        h: Tensor,
        initial: Tensor,
        generator: torch.Generator | None,
        release: Release | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """A round from 1 to R, over all of the holder's nodes, of its input h [N, d] and h^0.

        Noise is added by ``release``, where the job adds any; the strategy's weights come after it.

        Returns:
            What the holder gives to COMBINE, Tensor[C, d]; and t of the nodes that only it knows, Tensor[N − C, d],
            None where there are none.
        """
        local: Tensor = self.local[round_ - 1](h, initial, self._adjacency, generator)
        own = local[self._common :] if self._common < self._adjacency.num_nodes else None
        if release is not None:
            contribution: Tensor = self.contribution(release(first_rows(local, self._common)))
            return contribution, own
        contribution = self.contribution(local)
        return first_rows(contribution, self._common), own

    def contribute_batch(
        self, h: Tensor, around: Neighbourhood, targets: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """What the holder gives to COMBINE in the only round of a job in batches: Tensor[B, d], for B targets.

        ``h`` is ``start`` of h^0 of the nodes around the targets, Tensor[n, d].
        """
        contribution: Tensor = self.contribution(self.local[0](h, h, around, generator), targets)
        return contribution

    def propagate_all(self, h: Tensor, sampler: Sampler) -> Tensor:
        """Gives t of the only round of a job in batches, in evaluation: Tensor[N, d], as ``LocalModel.in_blocks``."""
        return cast(LocalModel[Any], self.local[0]).in_blocks(h, sampler)


def next_input(combined: Tensor, own: Tensor | None) -> Tensor:
    """A holder's input of the next round: the combined rows [C, d], then t of its own nodes: [N, d]."""
    return combined if own is None else torch.cat([combined, own])


class ServerNetwork(nn.Module):
    """What the server computes between the holders' contributions and z_L.

    ``divisor`` is of the sum, where holders have not divided what they contribute.
    """

    def __init__(
        self, settings: ModelSettings, holders: int, streams: LearningStreams, dtype: torch.dtype, divisor: int = 1
    ) -> None:
        super().__init__()
        self._divisor = divisor
        self.combine = build_combine(settings.combine)
        width = self.combine.output_dim(settings.dim, holders)
        self.deep = build_deep(width, settings.dim, settings.server, streams=streams, dtype=dtype)

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None) -> Tensor:
        """COMBINE: all contributions, or their sum alone where the strategy is linear."""
        merged = self.combine.merge(pieces, weight_total)
        return merged if self._divisor == 1 else merged / self._divisor


def deep_width(settings: ModelSettings, holders: int) -> int:
    """Width of z_L, which the label holder's head must know."""
    if settings.server.layers:
        return settings.dim
    return build_combine(settings.combine).output_dim(settings.dim, holders)
