"""Block models of any size.

A block model is degree-corrected (Karrer & Newman 2011), with as many edges inside and between blocks as asked, and
features that lean towards the class. The node at an end of an edge is drawn by its weight in constant time and without
a table (``_ranks``), so that time and memory are linear in nodes and edges.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet, masks_by_fractions
from veilgraph.graph.settings import DataSettings
from veilgraph.tables.settings import SplitFractions
from veilgraph_datasets.settings import BlockModelSettings

with deferred():  # seconds to import
    from torch_geometric.data import Data

_SPLIT: Final = {"train": 0.5, "val": 0.25, "test": 0.25}
_EDGES_AT_ONCE: Final = 1 << 18
_ROWS_AT_ONCE: Final = 1 << 13

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def block_model_data(settings: BlockModelSettings, seed: int, features: Tensor | None = None) -> Data:
    """Makes a graph.

    Nodes are dealt to C blocks of equal size (to one node), which are the classes. N·mean_degree/2 undirected edges,
    rounded, are drawn: ``homophily`` of them with both ends in one block, the others with ends in two, all blocks and
    pairs of blocks alike. Within its block a node is drawn by its weight; loops and pairs that are there already are
    drawn anew. The weights of a block are the quantiles of a power law with ``degree_exponent`` γ that is cut off where
    two of the heaviest nodes expect one edge between them: no expected degree exceeds mean_degree/√density.

    Labels, edges and features come from separate streams: another F or signal leaves the graph as it is.

    Args:
        settings: size and shape.
        seed: fixes everything.
        features: where x goes, contiguous float32 [N, F]; one of ``torch.from_file`` keeps it out of memory. Default:
            a new tensor.

    Returns:
        ``x`` [N, F] float32, the class's mean of length ``signal`` in a random direction plus standard normal noise;
        ``edge_index`` [2, 2E], both directions of every edge, without loops; ``y``; masks with half of each class for
        training, a quarter for validation and a quarter for testing.

    Raises:
        DataError: ``features`` has another shape, dtype or layout.
    """
    for_blocks, for_edges, for_features = np.random.default_rng(seed).spawn(3)
    members = for_blocks.permutation(settings.nodes)
    sizes = _block_sizes(settings)
    labels = np.empty(settings.nodes, np.int64)
    labels[members] = np.repeat(np.arange(settings.classes), sizes)
    x = _room(features, settings)
    _fill_features(x.numpy(), labels, settings, for_features)
    y = torch.from_numpy(labels)
    masks = masks_by_fractions(y, SplitFractions(**_SPLIT, seed=seed), "block-model")
    return Data(x=x, edge_index=_edges(members, sizes, settings, for_edges), y=y, **masks)


def _block_sizes(settings: BlockModelSettings) -> Integers:
    """Nodes of each block, [C]."""
    return settings.nodes // settings.classes + (np.arange(settings.classes) < settings.nodes % settings.classes)


def _room(features: Tensor | None, settings: BlockModelSettings) -> Tensor:
    shape = (settings.nodes, settings.features)
    if features is None:
        return torch.empty(shape)
    if tuple(features.shape) != shape or features.dtype != torch.float32 or not features.is_contiguous():
        raise DataError(
            f"features: {features.dtype} {list(features.shape)} must be contiguous float32 {list(shape)}; make it so, "
            "or leave it out"
        )
    return features


def _fill_features(
    x: NDArray[np.float32], labels: Integers, settings: BlockModelSettings, generator: np.random.Generator
) -> None:
    means = generator.standard_normal((settings.classes, settings.features))
    means *= settings.signal / np.linalg.norm(means, axis=1, keepdims=True)
    shift = means.astype(np.float32)
    for start in range(0, settings.nodes, _ROWS_AT_ONCE):
        rows = x[start : start + _ROWS_AT_ONCE]
        generator.standard_normal(dtype=np.float32, out=rows)
        rows += shift[labels[start : start + _ROWS_AT_ONCE]]


def _edges(members: Integers, sizes: Integers, settings: BlockModelSettings, generator: np.random.Generator) -> Tensor:
    """Tensor[2, 2E]: every edge from its lower node to its higher one, ascending, then all of them reversed."""
    pairs = round(settings.nodes * settings.mean_degree / 2)
    inside = round(pairs * settings.homophily)
    codes = np.empty(pairs, np.int64)
    drawing = _Drawing(members, sizes, settings, generator)
    drawing.fill(codes[:inside], inside_blocks=True)
    drawing.fill(codes[inside:], inside_blocks=False)
    codes.sort()
    edge_index = np.empty((2, 2 * pairs), np.int64)
    np.right_shift(codes, drawing.bits, out=edge_index[0, :pairs])
    np.bitwise_and(codes, (1 << drawing.bits) - 1, out=edge_index[1, :pairs])
    edge_index[:, pairs:] = edge_index[::-1, :pairs]
    return torch.from_numpy(edge_index)


class _Drawing:
    """Draws pairs of nodes. A pair's code has the lower node above its last ``bits`` bits, and the higher one there."""

    def __init__(
        self, members: Integers, sizes: Integers, settings: BlockModelSettings, generator: np.random.Generator
    ) -> None:
        self.bits = settings.nodes.bit_length()
        self._members, self._sizes, self._generator = members, sizes, generator
        self._starts = np.cumsum(sizes) - sizes
        self._exponent, self._cutoff = settings.degree_exponent, weight_cutoff(settings)

    def fill(self, codes: Integers, inside_blocks: bool) -> None:
        """Fills ``codes`` with distinct pairs, ascending: draws, drops what is twice, draws as many again."""
        known = 0
        while known < len(codes):
            while known < len(codes):
                fresh = self._draw(min(_EDGES_AT_ONCE, len(codes) - known), inside_blocks)
                codes[known : known + len(fresh)] = fresh
                known += len(fresh)
            codes.sort()
            first = np.ones(len(codes), np.bool_)
            np.not_equal(codes[1:], codes[:-1], out=first[1:])
            known = int(np.count_nonzero(first))
            codes[:known] = codes[first]

    def _draw(self, count: int, inside_blocks: bool) -> Integers:
        """Codes of pairs without loops, ``count`` at most."""
        classes = len(self._sizes)
        block = self._generator.integers(classes, size=count)
        other = block
        if not inside_blocks:
            other = (block + 1 + self._generator.integers(classes - 1, size=count)) % classes
        one, two = self._nodes_of(block), self._nodes_of(other)
        codes: Integers = (np.minimum(one, two) << self.bits | np.maximum(one, two))[one != two]
        return codes

    def _nodes_of(self, blocks: Integers) -> Integers:
        """One node of each given block, by weight."""
        sizes = self._sizes[blocks]
        ranks = _ranks(self._generator.random(len(blocks)), self._exponent, self._cutoff)
        places = np.minimum((ranks * sizes).astype(np.int64), sizes - 1)
        found: Integers = self._members[self._starts[blocks] + places]
        return found


def _ranks(uniform: Floats, exponent: float | None, cutoff: float) -> Floats:
    """Where in its block, ordered by weight from 0 to 1, a node drawn by weight stands.

    Weights have the density w^-γ on [1, R], so the weight of a node that was drawn by it has w^(1-γ). The weight at
    uniform u is (1 − u·(1 − R^(2-γ)))^(1/(2-γ)), and its rank the share of nodes below, (1 − w^(1-γ)) / (1 − R^(1-γ)).

    Args:
        uniform: u in [0, 1).
        exponent: γ; None: equal weights.
        cutoff: R.
    """
    if exponent is None:
        return uniform
    above = (1 - uniform * (1 - cutoff ** (2 - exponent))) ** ((exponent - 1) / (exponent - 2))
    ranks: Floats = (1 - above) / (1 - cutoff ** (1 - exponent))
    return ranks


def weight_cutoff(settings: BlockModelSettings) -> float:
    """R, the highest weight where the lowest is 1 and ``mean`` is the mean: mean/√density; 1 with equal weights.

    Two nodes of weights w and w' expect density·w·w'/mean² edges between them (inside blocks or between them, wherever
    pairs are denser), so that no two expect more than one.
    """
    exponent, highest = settings.degree_exponent, settings.density**-0.5
    if exponent is None:
        return 1.0

    def excess(cutoff: float) -> float:
        mean = (exponent - 1) / (exponent - 2) * (1 - cutoff ** (2 - exponent)) / (1 - cutoff ** (1 - exponent))
        return float(cutoff / mean - highest)

    from scipy.optimize import brentq  # noqa: PLC0415  (slow to import, and few processes solve)

    return float(brentq(excess, 1 + 1e-6, highest * (exponent - 1) / (exponent - 2)))


def _asked(settings: DataSettings) -> BlockModelSettings:
    return settings.block_model if isinstance(settings.block_model, BlockModelSettings) else BlockModelSettings()


class BlockModel(DataSet):
    """The graph that ``data.block_model`` describes."""

    settings = BlockModelSettings

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return block_model_data(_asked(settings), seed)

    @override
    def classes(self, settings: DataSettings) -> int:
        return (_asked(settings)).classes


BLOCK_MODEL = BlockModel()
