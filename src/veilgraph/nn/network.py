"""The split network's parts as the parties hold them; the roles run them apart, the plaintext twin together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.combine import build_combine
from veilgraph.nn.deep import build_deep
from veilgraph.nn.initial import InitialTransform
from veilgraph.nn.local import CustomLocal, LocalModel, build_local
from veilgraph.nn.neighbourhood import Neighbourhood, Sampler
from veilgraph.nn.propagate import Adjacency, first_rows
from veilgraph.nn.settings import ModelSettings

Release = Callable[[Tensor], Tensor]
"""What is done to a round's t of the common nodes before anybody else sees of it: Tensor[C, d] to Tensor[C, d]."""

_Local = LocalModel | CustomLocal

CustomModel = Callable[[int], nn.Module]
"""Makes a user's own local model for a width: any module with PyTorch Geometric's ``forward(x, edge_index)``."""


class HolderNetwork(nn.Module):
    """What one data holder computes between h^0 and what it publishes.

    Args:
        settings: of the model.
        holders: P.
        adjacency: the holder's own edges, over N nodes.
        streams: the holder's.
        dtype: of the weights.
        custom: for ``local.model: custom``.
        common: C, how many of the nodes, the first, all holders know; default: N.
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
    ) -> None:
        super().__init__()
        self._adjacency = adjacency
        self._common = adjacency.num_nodes if common is None else common
        self._local_rate = settings.local.learning_rate
        self.initial = InitialTransform(settings.initial)
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
            )
            for round_ in range(1, settings.rounds + 1)
        )
        combine = build_combine(settings.combine)
        self.contribution = combine.holder_part(settings.dim, holders, adjacency)
        weight = combine.holder_weight(holders, adjacency)
        self.weight = None if weight is None else weight[: self._common]

    def rates(self) -> dict[nn.Parameter, float]:
        """Weights that have a learning rate of their own."""
        return {} if self._local_rate is None else dict.fromkeys(self.local.parameters(), self._local_rate)

    def start(self, embedding: Tensor, generator: torch.Generator | None) -> Tensor:
        """h^0 after activation and dropout: [N, d]."""
        started: Tensor = self.initial(embedding, generator)
        return started

    def contribute(
        self,
        round_: int,
        h: Tensor,
        initial: Tensor,
        generator: torch.Generator | None,
        release: Release | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """A round from 1 to R, over all of the holder's nodes.

        Args:
            round_: its number.
            h: Tensor[N, d], the round's input.
            initial: Tensor[N, d], h^0.
            generator: source of dropout; None means evaluation.
            release: noise, where the job adds any; the strategy's weights come after it.

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
        """The only round of a job in batches, for some of the common nodes.

        Args:
            h: Tensor[n, d], ``start`` of h^0 of the neighbourhood's nodes.
            around: the neighbourhood of the targets.
            targets: Tensor[B] int64, rows of the graph.
            generator: source of dropout.

        Returns:
            What the holder gives to COMBINE, Tensor[B, d].
        """
        contribution: Tensor = self.contribution(self.local[0](h, h, around, generator), targets)
        return contribution

    def propagate_all(self, h: Tensor, sampler: Sampler) -> Tensor:
        """Gives t of the only round of a job in batches, in evaluation: layer by layer, in blocks of nodes.

        Args:
            h: Tensor[N, d], ``start`` of h^0.
            sampler: of one hop, that takes all neighbours.

        Returns:
            Tensor[N, d].
        """
        return cast(_Local, self.local[0]).in_blocks(h, sampler)


def next_input(combined: Tensor, own: Tensor | None) -> Tensor:
    """A holder's input of the next round: the combined rows [C, d], then t of its own nodes: [N, d]."""
    return combined if own is None else torch.cat([combined, own])


class ServerNetwork(nn.Module):
    """What the server computes between the holders' contributions and z_L."""

    def __init__(self, settings: ModelSettings, holders: int, streams: LearningStreams, dtype: torch.dtype) -> None:
        super().__init__()
        self.combine = build_combine(settings.combine)
        width = self.combine.output_dim(settings.dim, holders)
        self.deep = build_deep(width, settings.dim, settings.server, streams=streams, dtype=dtype)

    def merge(self, pieces: Sequence[Tensor], weight_total: Tensor | None) -> Tensor:
        """COMBINE: all contributions, or their sum alone where the strategy is linear."""
        return self.combine.merge(pieces, weight_total)


def deep_width(settings: ModelSettings, holders: int) -> int:
    """Width of z_L, which the label holder's head must know."""
    if settings.server.layers:
        return settings.dim
    return build_combine(settings.combine).output_dim(settings.dim, holders)
