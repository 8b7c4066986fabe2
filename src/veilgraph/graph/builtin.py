"""Data sets that come with the package and need no download: digits of scikit-learn, and a small graph for tests."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings

with deferred():  # seconds to import
    from torch_geometric import data as pyg

_IMAGE_ROWS = 8


def random_masks(labels: Tensor, train_per_class: int, validation: int, seed: int) -> dict[str, Tensor]:
    """``train_mask``, ``val_mask`` (so many nodes in all), ``test_mask`` (the rest), Tensor[N] bool each, disjoint."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(int(labels.max()) + 1):
        train[order[labels[order] == label][:train_per_class]] = True
    rest = order[~train[order]]
    val, test = torch.zeros_like(train), torch.zeros_like(train)
    val[rest[:validation]] = True
    test[rest[validation:]] = True
    return {"train_mask": train, "val_mask": val, "test_mask": test}


def digits_data(seed: int) -> pyg.Data:
    """Return the digits as one graph: x [1797, 64], each image joined with its 5 nearest, both ways; labels, masks."""
    pixels, labels, masks = _digits(seed)
    flat = pixels.reshape(len(pixels), -1)
    data = pyg.Data(x=torch.from_numpy(flat.copy()), edge_index=_nearest_edges(flat), y=labels)
    data.update(masks)
    return data


def _digits(seed: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], Tensor, dict[str, Tensor]]:
    """Pixels [1797, 8, 8] in [0, 1], labels and masks."""
    scikit_learn = find_spec("sklearn")  # has the file, and takes a second to import
    assert scikit_learn is not None
    assert scikit_learn.origin is not None
    table = np.loadtxt(Path(scikit_learn.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    pixels = (table[:, :-1] / 16).reshape(-1, _IMAGE_ROWS, _IMAGE_ROWS).astype(np.float32)
    labels = torch.from_numpy(table[:, -1]).long()
    return pixels, labels, random_masks(labels, 10, 300, seed)


def _nearest_edges(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
    """Join each row of sixteenths with its 5 nearest, both ways; of equally near ones with the first.

    Their squares are exact in float32, so every machine, with however many cores, finds the same edges.
    """
    x, nodes = torch.from_numpy(rows), len(rows)
    squares = x.square().sum(1)
    distances = (squares[:, None] + squares - 2 * x @ x.T).double() * 16**2
    ranks = (distances * nodes + torch.arange(nodes)).fill_diagonal_(torch.inf)
    linked = torch.zeros(nodes, nodes, dtype=torch.bool).scatter_(1, ranks.topk(5, largest=False).indices, value=True)
    return torch.stack((linked | linked.T).nonzero(as_tuple=True))


def synthetic_data(num_nodes: int = 400, num_features: int = 24, classes: int = 3, seed: int = 0) -> pyg.Data:
    """A degree-corrected stochastic block model whose features lean towards the class.

    ``x`` is standard normal plus a shift per class, float32; ``edge_index`` undirected without loops, of mean degree
    about 6, four in five edges within a class. The masks have 10 training nodes a class and a quarter of the nodes for
    validation.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_nodes) % classes
    x = torch.randn(num_nodes, num_features, generator=generator)
    x += 0.6 * torch.randn(classes, num_features, generator=generator)[labels]
    activity = 0.3 - torch.rand(num_nodes, generator=generator).log()
    within = (labels[:, None] == labels[None, :]).float()
    rate = (
        activity[:, None] * activity[None, :] * (0.8 * within * classes + 0.2 * (1 - within) * classes / (classes - 1))
    )
    probability = (6 * num_nodes * rate / rate.sum()).clamp(max=1)
    linked = torch.rand(num_nodes, num_nodes, generator=generator) < probability
    source, target = linked.triu(1).nonzero().T
    edge_index = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    masks = random_masks(labels, 10, num_nodes // 4, seed)
    return pyg.Data(x=x, edge_index=edge_index, y=labels, **masks)


class Digits(DataSet):
    """1,797 handwritten digits of 8 × 8 pixels."""

    @override
    def whole(self, settings: DataSettings, seed: int) -> pyg.Data:
        return digits_data(seed)

    @override
    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        """Each holder sees a horizontal band of every image.

        A holder's edges join each image with the 5 whose band is most like its own band, in both directions. The label
        holder has 10 training labels a class and 300 validation labels, drawn by ``seed``; the rest is for testing.
        Raises ``DataError``: more holders than image rows, or proportions.
        """
        names = settings.names
        if settings.feature_proportions is not None or settings.edge_proportions is not None:
            raise DataError(
                "data.dataset='digits' divides the images into even bands, each with its own edges, and takes no "
                "feature_proportions or edge_proportions; remove them"
            )
        if len(names) > _IMAGE_ROWS:
            raise DataError(
                f"data.holders={len(names)}: the digits have {_IMAGE_ROWS} rows of pixels; take at most as many"
            )
        pixels, labels, masks = _digits(seed)
        cuts = [round(index * _IMAGE_ROWS / len(names)) for index in range(len(names) + 1)]
        parties = []
        for name, (start, end) in zip(names, pairwise(cuts), strict=True):
            band = pixels[:, start:end].reshape(len(pixels), -1)
            graph = PartyGraph(name, torch.from_numpy(band.copy()), _nearest_edges(band))
            if name == settings.label_party:
                graph = replace(graph, labels=labels, num_classes=10, **masks)  # type: ignore[arg-type]
            parties.append(graph)
        return parties


class Synthetic(DataSet):
    """``synthetic_data`` of 400 nodes."""

    @override
    def whole(self, settings: DataSettings, seed: int) -> pyg.Data:
        return synthetic_data(seed=seed)


DIGITS, SYNTHETIC = Digits(), Synthetic()
