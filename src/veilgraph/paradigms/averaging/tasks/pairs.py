"""Pairs of a holder's nodes: its own edges, divided into splits, and pairs without an edge, drawn at home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.averaging.tasks.beside import side_by_side
from veilgraph.paradigms.averaging.tasks.own import Own

TRAIN: Final = 0
_ATTEMPTS: Final = 16
"""How often a pair is drawn; it is left out where it had an edge every time, in a graph that is nearly complete."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes, whichever the direction.

    Attributes:
        ends: Tensor[2, M] int64, of each pair the two nodes.
        split: Tensor[M] int64: 0 training, 1 validation, 2 test.
        linked: Tensor[M] bool, whether there is an edge.
        first: Tensor[M] int64, of the holder's rows the first: pairs without an edge are drawn among its own nodes.
        nodes: Tensor[M] int64, how many rows the holder has.
    """

    ends: Tensor
    split: Tensor
    linked: Tensor
    first: Tensor
    nodes: Tensor

    def where(self, chosen: Tensor) -> Pairs:
        """Those that are chosen, by Tensor[M] bool or numbers of pairs."""
        return Pairs(
            self.ends[:, chosen], self.split[chosen], self.linked[chosen], self.first[chosen], self.nodes[chosen]
        )

    def __len__(self) -> int:
        return int(self.ends.shape[1])


@dataclass(frozen=True, eq=False)
class PairsOwn(Own):
    """A holder's graph of training edges alone, and its pairs.

    Attributes:
        pairs: all edges, and as many pairs without; they are what a model is judged on.
        taken: Tensor[T] int64 ascending, keys of the training edges, beside which training draws pairs.
    """

    pairs: Pairs
    taken: Tensor

    @classmethod
    def divided(
        cls, graph: PartyGraph, dtype: torch.dtype, streams: LearningStreams, validation: float, test: float
    ) -> Self:
        """A holder's edges, divided at random, loops left out.

        Args:
            graph: the holder's.
            dtype: of the network.
            streams: of the holder; the same in all sessions of a run.
            validation: share of the edges that no message passes and the best epoch is chosen by.
            test: share that no message passes and the result is told of.
        """
        nodes = graph.num_nodes
        keys = _keys(graph.edge_index, nodes)
        every = torch.unique(keys[graph.edge_index[0] != graph.edge_index[1]])
        order = torch.randperm(len(every), generator=streams.generator("links"))
        split = torch.zeros(len(every), dtype=torch.int64)
        held, last = round(validation * len(every)), round(test * len(every))
        split[order[:held]], split[order[held : held + last]] = 1, 2
        edges = Pairs(
            torch.stack([every // nodes, every % nodes]),
            split,
            torch.ones(len(every), dtype=torch.bool),
            torch.zeros(len(every), dtype=torch.int64),
            torch.full((len(every),), nodes),
        )
        drawn = unlinked(edges, every, nodes, streams.generator("no links"))
        taken = every[split == TRAIN]
        seen = graph.with_edges(torch.isin(keys, every[split != TRAIN], invert=True))
        ready = Own.of(seen, dtype)
        return cls(seen, ready.features, ready.adjacency, _both([edges, drawn]), taken)

    @classmethod
    def joined(cls, owns: Sequence[PairsOwn], dtype: torch.dtype) -> Self:
        """Several holders' in one place: each pair stays one of its holder's nodes."""
        graph = side_by_side([own.graph for own in owns])
        parts, taken, start = [], [], 0
        for own in owns:
            pairs, nodes = own.pairs, own.graph.num_nodes
            parts.append(replace(pairs, ends=pairs.ends + start, first=pairs.first + start))
            ends = torch.stack([own.taken // nodes, own.taken % nodes]) + start
            taken.append(_keys(ends, graph.num_nodes))
            start += nodes
        features, adjacency = FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype)
        return cls(graph, features, adjacency, _both(parts), torch.cat(taken).sort().values)

    def training(self, negatives: int, generator: torch.Generator) -> Pairs:
        """The training edges, and for each so many pairs without a training edge, drawn anew."""
        edges = self.pairs.where((self.pairs.split == TRAIN) & self.pairs.linked)
        times = edges.where(torch.arange(len(edges)).repeat(negatives))
        return _both([edges, unlinked(times, self.taken, self.graph.num_nodes, generator)])


def unlinked(like: Pairs, taken: Tensor, nodes: int, generator: torch.Generator) -> Pairs:
    """For each of some pairs another of the same holder, uniform among those of two nodes without an edge.

    Args:
        like: for each of which one is drawn, of the same split.
        taken: Tensor[T] int64 ascending, keys of pairs that have an edge.
        nodes: of the graph, for the keys.
        generator: of the draws.

    Returns:
        As many, or fewer where hardly any pair is without an edge.
    """
    ends = torch.zeros_like(like.ends)
    wrong = torch.ones(len(like), dtype=torch.bool)
    for _ in range(_ATTEMPTS):
        if not bool(wrong.any()):
            break
        first, count = like.first[wrong], like.nodes[wrong]
        drawn = torch.rand(2, len(first), generator=generator, dtype=torch.float64)
        ends[:, wrong] = first + (drawn * count).long()
        wrong = (ends[0] == ends[1]) | _within(_keys(ends, nodes), taken)
    found = replace(like, ends=ends, linked=torch.zeros(len(like), dtype=torch.bool))
    return found.where(~wrong)


def _within(keys: Tensor, ascending: Tensor) -> Tensor:
    if not len(ascending):
        return torch.zeros(len(keys), dtype=torch.bool)
    place = torch.searchsorted(ascending, keys).clamp_max(len(ascending) - 1)
    found: Tensor = ascending[place] == keys
    return found


def _keys(ends: Tensor, nodes: int) -> Tensor:
    """A number of each pair, the same in both directions: Tensor[M] int64."""
    low, high = ends.sort(dim=0).values
    keys: Tensor = low * nodes + high
    return keys


def _both(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(
        torch.cat([part.ends for part in parts], dim=1),
        torch.cat([part.split for part in parts]),
        torch.cat([part.linked for part in parts]),
        torch.cat([part.first for part in parts]),
        torch.cat([part.nodes for part in parts]),
    )
