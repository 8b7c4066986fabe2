"""The plain graph networks that the published attacks were published for: two layers, one process, nothing hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from veilgraph.core.randomness import seeded_global
from veilgraph.graph.features import from_scipy, is_sparse, to_scipy
from veilgraph.nn.layers import dropout, linear
from veilgraph.nn.propagate import Adjacency, FixedInput

Kind = Literal["GCN", "GraphSAGE"]

LEARNING_RATE: Final = 0.01
"""Of Adam."""


@dataclass(frozen=True)
class PlainSettings:
    """A network and its training by Adam.

    Attributes:
        kind: GCN (Kipf & Welling 2017), or GraphSAGE with the mean (Hamilton et al. 2017).
        width: of the hidden layer.
        epochs: steps over all training nodes; the last step's weights are taken.
        dropout: of the hidden layer.
        weight_decay: of Adam.
    """

    kind: Kind
    width: int
    epochs: int
    dropout: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a trained network gives out of a graph's nodes.

    Attributes:
        posteriors: [N, C] float64.
        embeddings: [N, width] float32, the hidden layer after its ReLU.
    """

    posteriors: NDArray[np.float64]
    embeddings: NDArray[np.float32]


class PlainNetwork(nn.Module):
    """Two layers; the second gives logits.

    Args:
        settings: of the network.
        features: F.
        classes: C.
    """

    def __init__(self, settings: PlainSettings, features: int, classes: int) -> None:
        super().__init__()
        self._settings = settings
        copies = 1 if settings.kind == "GCN" else 2  # GraphSAGE has weights for the node itself and for its neighbours
        self.first = linear(features, copies * settings.width, bias=False)
        self.second = linear(settings.width, copies * classes, bias=False)

    def embed(self, x: FixedInput, adjacency: Adjacency) -> Tensor:
        """The hidden layer, Tensor[N, width]."""
        return self._aggregate(x.times(self.first.weight.t()), adjacency).relu()

    def classify(self, hidden: Tensor, adjacency: Adjacency, generator: torch.Generator | None) -> Tensor:
        """Logits, Tensor[N, C]; ``generator`` is of the dropout, None means evaluation."""
        return self._aggregate(self.second(dropout(hidden, self._settings.dropout, generator)), adjacency)

    def outputs(self, data: Data) -> Outputs:
        """What it gives out of ``data``'s nodes, which it need not be trained on."""
        x, adjacency = _inputs(data)
        with torch.no_grad():
            hidden = self.embed(x, adjacency)
            posteriors = self.classify(hidden, adjacency, None).double().softmax(dim=1)
        return Outputs(posteriors.numpy(), hidden.numpy())

    def _aggregate(self, h: Tensor, adjacency: Adjacency) -> Tensor:
        if self._settings.kind == "GCN":
            return adjacency.gcn(h)
        own, neighbours = h.chunk(2, dim=1)
        return own + adjacency.mean(neighbours)


def train_plain(data: Data, members: Tensor, classes: int, settings: PlainSettings, *, seed: int) -> PlainNetwork:
    """Trains on the labels of ``members``, messages going over the whole of ``data``.

    Args:
        data: x, edge_index and y.
        members: Tensor[N] bool.
        classes: C.
        settings: of network and training.
        seed: of weights and dropout.
    """
    with seeded_global(seed):
        network = PlainNetwork(settings, data.x.shape[1], classes)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=settings.weight_decay)
    x, adjacency = _inputs(data)
    for _ in range(settings.epochs):
        optimizer.zero_grad()
        logits = network.classify(network.embed(x, adjacency), adjacency, generator)
        backward(cross_entropy(logits[members], data.y[members]))
        optimizer.step()
    return network


def induced(data: Data, keep: Tensor) -> Data:
    """The subgraph of some nodes, with the edges between them, renumbered in their order.

    Args:
        data: x, edge_index and y.
        keep: Tensor[N] bool.
    """
    x = from_scipy(to_scipy(data.x)[keep.numpy()]) if is_sparse(data.x) else data.x[keep]
    edges, _ = subgraph(keep, data.edge_index, relabel_nodes=True, num_nodes=len(keep))
    return Data(x=x, edge_index=edges, y=data.y[keep])


def _inputs(data: Data) -> tuple[FixedInput, Adjacency]:
    x = data.x
    return FixedInput(x, torch.float32), Adjacency.of_edges(data.edge_index, None, x.shape[0], torch.float32)


def classes_of(data: Data) -> int:
    """C."""
    return int(data.y.max()) + 1
