"""Small graphs in one of two worlds, many copies of them side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class World:
    """One of two small graphs.

    Attributes:
        features: of every node, in the one column that there is.
        pairs: that have an edge, in both directions.
    """

    features: list[float]
    pairs: list[tuple[int, int]]


def beside(here: World, there: World, coins: Tensor, names: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One graph of as many copies as there are coins, which have no edge between them.

    Args:
        here: where a coin is in.
        there: elsewhere, of the same n nodes.
        coins: Tensor[m] bool.
        names: Tensor[m, n] int64, the numbers of a copy's nodes; None: one after the other.

    Returns:
        Features Tensor[m·n, 1] float64, and edges Tensor[2, E] int64.
    """
    size = len(here.features)
    if names is None:
        names = torch.arange(size * len(coins)).reshape(-1, size)
    features = torch.empty(size * len(coins), dtype=torch.float64)
    edges = []
    for world, those in ((here, names[coins]), (there, names[~coins])):
        features[those] = torch.tensor(world.features, dtype=torch.float64)
        one, other = (those[:, [pair[side] for pair in world.pairs]].flatten() for side in (0, 1))
        edges += [torch.stack([one, other]), torch.stack([other, one])]
    return features[:, None], torch.cat(edges, 1)
