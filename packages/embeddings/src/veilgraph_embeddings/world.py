"""What is embedded: one graph in one piece, an attribute that its embeddings keep and one that they hide."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import choose_rows

UNKNOWN = -1
"""The code of a node whose value nobody knows."""


@dataclass(frozen=True, eq=False)
class Attribute:
    """One value of each node, from a few.

    Attributes:
        name: as the job has it.
        classes: its values, as text.
        codes: Tensor[N] int64, places in ``classes``; ``UNKNOWN`` where there is none.
    """

    name: str
    classes: tuple[str, ...]
    codes: Tensor

    @property
    def known(self) -> Tensor:
        """Tensor[N] bool."""
        return self.codes != UNKNOWN

    def without(self, nodes: Tensor) -> Attribute:
        """The attribute as who does not know it of some nodes has it: Tensor[N] bool."""
        return replace(self, codes=torch.where(nodes, UNKNOWN, self.codes))


@dataclass(frozen=True, eq=False)
class World:
    """A graph to embed. What is hidden, and what is kept, are no features.

    Attributes:
        ids: [N], of the rows, which are published beside them.
        features: Tensor[N, F], strided or ``torch.sparse_csr``, float32.
        pairs: Tensor[2, E] int64, the edges without direction, weight and loops: the lower node first, each once.
        keep: the useful attribute.
        hide: the private one.
        columns: [F] names of the features.
        named: whether the ids are the nodes' own; else they are the rows' numbers, which name nobody.
    """

    ids: tuple[str, ...]
    features: Tensor
    pairs: Tensor
    keep: Attribute
    hide: Attribute
    columns: tuple[str, ...]
    named: bool = True

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.ids)


def pairs_of(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The pairs of nodes that have an edge, in whichever direction: Tensor[2, E] int64, ascending, each once."""
    low, high = edge_index.aminmax(dim=0)
    codes = torch.unique((low * num_nodes + high)[low != high])
    return torch.stack([codes // num_nodes, codes % num_nodes])


def by_id(world: World) -> World:
    """The same with its nodes ordered by id: what is made of it is the same in whatever order its tables have them."""
    order = torch.tensor(sorted(range(world.num_nodes), key=world.ids.__getitem__))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    keep, hide = (replace(each, codes=each.codes[order]) for each in (world.keep, world.hide))
    return replace(
        world,
        ids=tuple(world.ids[place] for place in order.tolist()),
        features=choose_rows(world.features, order),
        pairs=pairs_of(places[world.pairs], world.num_nodes),
        keep=keep,
        hide=hide,
    )


def both_ways(pairs: Tensor) -> Tensor:
    """Pairs as messages: Tensor[2, E] to Tensor[2, 2E]."""
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def drawn(purpose: str, count: int, share: float, seed: int) -> Tensor:
    """Which of some nodes are drawn: of ``count``, ``share`` at random, Tensor[count] bool."""
    generator = LearningStreams(seed, "embed").generator(purpose)
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.randperm(count, generator=generator)[: round(share * count)]] = True
    return chosen


def drawn_pairs(pairs: Tensor, share: float, seed: int) -> Tensor:
    """Which pairs are drawn, each by its two nodes alone: with ``share`` for a probability, Tensor[E] bool.

    So that one edge more or less changes nothing of the draw of others, as the sensitivity of ``noise`` counts on.
    """
    key = np.uint64(LearningStreams(seed, "embed").seed("held out pairs"))
    low, high = (each.numpy().astype(np.uint64) for each in pairs)
    mixed = _mixed(_mixed(low ^ key) + high)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)


def _mixed(z: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014), a bijection of uint64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def to_scipy(features: Tensor) -> sp.csr_array:
    """Features as a sparse matrix, [N, F] float32."""
    if features.layout != torch.sparse_csr:
        return sp.csr_array(features.numpy().astype(np.float32))
    parts = features.values(), features.col_indices(), features.crow_indices()
    values, columns, pointers = (each.numpy() for each in parts)
    return sp.csr_array((values.astype(np.float32), columns, pointers), tuple(features.shape))
