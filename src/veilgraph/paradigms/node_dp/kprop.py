"""The KProp layer and the network around it: aggregation over many hops, in which perturbed features' noise cancels.

Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", Algorithm 2.

The features are x' = scale·x* + offset with released values x*, which are few where the mechanism samples features.
Since AGGREGATE is linear, A^K·(X'·W) = scale·A^K·(X*·W) + offset·(A^K·1)(1ᵀ·W), so that X' is never formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.dropout import dropout
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.linear import linear
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.node_dp.settings import KPropSettings
from veilgraph.privacy.local.affine import AffineFeatures

_SPARSE_COST = 10
"""Time of a multiplication in a sparse product over that in a dense one, about."""

LARGEST = 1 << 24
"""Entries of a sparse matrix that may be propagated once for all, which makes it dense: 64 MiB in float32."""


def neighbour_adjacency(graph: PartyGraph, aggregate: str, dtype: torch.dtype) -> Adjacency:
    """A linear AGGREGATE over a node's neighbours as an adjacency, whose ``sum`` is the aggregate.

    Self-loops are left out, and count in no degree; a node without neighbours gets zero.

    Args:
        graph: features are not read.
        aggregate: ``gcn`` D^-1/2·A·D^-1/2, ``mean`` D^-1·A, ``sum`` A, with the edges' weights in A and D.
        dtype: of every product.
    """
    keep = graph.edge_index[0] != graph.edge_index[1]
    edge_index = graph.edge_index[:, keep]
    source, target = edge_index
    weight = torch.ones(len(source)) if graph.edge_weight is None else graph.edge_weight[keep]
    weight = weight.double()
    degrees = torch.bincount(target, weights=weight, minlength=graph.num_nodes)
    if aggregate == "gcn":
        root = torch.where(degrees > 0, degrees.rsqrt(), 0.0)
        weight = weight * root[source] * root[target]
    elif aggregate == "mean":
        weight = weight / torch.where(degrees > 0, degrees, 1.0)[target]
    return Adjacency.of_edges(edge_index, weight, graph.num_nodes, dtype)


def propagate(adjacency: Adjacency, x: Tensor, hops: int) -> Tensor:
    """A^hops·x: Tensor[N, d] to Tensor[N, d]."""
    for _ in range(hops):
        x = adjacency.sum(x)
    return x


class PropagatedInput:
    """T·X' for the features X' and a fixed linear map T over the edges: A^K, or a GCN's where K is 0.

    T is applied to X once, where that makes a step cheaper and needs little memory, else to X·W in every step.

    Args:
        features: of every node.
        graph: features are not read.
        settings: of the network.
        dtype: of every product.
    """

    def __init__(
        self, features: AffineFeatures, graph: PartyGraph, settings: KPropSettings, dtype: torch.dtype
    ) -> None:
        self._map: Callable[[Tensor], Tensor]
        if settings.hops == 0:
            self._map = Adjacency.from_graph(graph, dtype).gcn
        else:
            neighbours = neighbour_adjacency(graph, settings.aggregate, dtype)
            self._map = lambda x: propagate(neighbours, x, settings.hops)
        values = features.values
        self.columns = int(values.shape[1])
        self.is_propagated = _is_cheaper_propagated(values, max(settings.hops, 1) * graph.num_edges)
        self._features = FixedInput(self._map(values.to(dtype).to_dense()) if self.is_propagated else values, dtype)
        self._scale = features.scale
        self._offset = torch.as_tensor(features.offset, dtype=dtype).expand(self.columns)
        self._reach = self._map(torch.ones(graph.num_nodes, 1, dtype=dtype)) if self._offset.any() else None

    def times(self, weight: Tensor) -> Tensor:
        """T·X'·weight: Tensor[F, d] to Tensor[N, d]."""
        product = self._features.times(weight)
        product = self._scale * (product if self.is_propagated else self._map(product))
        return product if self._reach is None else product + self._reach * (self._offset @ weight)


def _is_cheaper_propagated(values: Tensor, propagation: int) -> bool:
    """Whether T·X as a dense matrix beats T·(X·W) in time, for so many products in T, and is small enough."""
    if not is_sparse(values):
        return True
    entries = values.shape[0] * values.shape[1]
    return entries <= min(LARGEST, _SPARSE_COST * (values.values().numel() + propagation))


class KPropNetwork(nn.Module):
    """KProp, whose UPDATE is a linear map with bias and an activation; dropout; a GCN layer with class scores.

    What goes into the linear map is multiplied by a constant, such that its output has a root mean square of 1 with
    the initial weights. Adam's steps do not grow with its input, so without the constant the best learning rate would
    depend on ε, m, K and the data.

    Args:
        settings: of the network.
        features: of every node.
        graph: features and labels are not read.
        classes: c.
        streams: initial weights come from the stream "kprop".
        dtype: of weights and embeddings.

    Attributes:
        gain: the constant, a buffer.
    """

    gain: Tensor

    def __init__(
        self,
        settings: KPropSettings,
        features: AffineFeatures,
        graph: PartyGraph,
        classes: int,
        *,
        streams: LearningStreams,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._input = PropagatedInput(features, graph, settings, dtype)
        self._adjacency = Adjacency.from_graph(graph, dtype)
        with streams.global_generator("kprop"):
            self.update = linear(self._input.columns, settings.dim, bias=True)
            self.output = linear(settings.dim, classes, bias=True)
        self.to(dtype)
        with torch.no_grad():
            spread = self._input.times(self.update.weight.t()).square().mean().sqrt()
        self.register_buffer("gain", torch.where(spread > 0, 1 / spread, 1.0))

    def forward(self, generator: torch.Generator | None) -> Tensor:
        """Logits of every node.

        Args:
            generator: source of dropout; None means evaluation.

        Returns:
            Tensor[N, c].
        """
        settings = self._settings
        h = self.gain * self._input.times(self.update.weight.t()) + self.update.bias
        h = dropout(ACTIVATIONS[settings.activation](h), settings.dropout, generator)
        return self._adjacency.gcn(h @ self.output.weight.t()) + self.output.bias
