"""The network of LPGNN: aggregation over many hops, in which the noise of perturbed features and labels cancels.

Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", CCS 2021: Algorithm 2 (KProp) and section
3.3 (Drop); the correction is Patrini et al. 2017.

The features are x' = scale·x* + offset with released values x*, which are few where the mechanism samples features.
Since AGGREGATE is linear, A^K·(X'·W) = scale·A^K·(X*·W) + offset·(A^K·1)(1ᵀ·W), so that X' is never formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.calibration import corrected
from veilgraph.nn.layers import ACTIVATIONS, dropout, linear
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.paradigms.node_dp.settings import DenoiseSettings, KPropSettings
from veilgraph.privacy.local_features import AffineFeatures

LARGEST = 1 << 24
"""Entries of a sparse matrix that may be propagated once for all, which makes it dense: 64 MiB in float32."""


def neighbour_adjacency(graph: PartyGraph, aggregate: str, dtype: torch.dtype) -> Adjacency:
    """A linear AGGREGATE over a node's neighbours as an adjacency, whose ``sum`` is the aggregate.

    Self-loops are left out, and count in no degree; a node without neighbours gets zero. ``gcn`` is D^-1/2·A·D^-1/2,
    ``mean`` D^-1·A, ``sum`` A, with the edges' weights in A and D.
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
    sparse_cost = 10  # time of a multiplication in a sparse product over that in a dense one, about
    return entries <= min(LARGEST, sparse_cost * (values.values().numel() + propagation))


class KPropNetwork(nn.Module):
    """KProp, whose UPDATE is a linear map with bias and an activation; dropout; a GCN layer with class scores.

    What goes into the linear map is multiplied by a constant, such that its output has a root mean square of 1 with
    the initial weights. Adam's steps do not grow with its input, so without the constant the best learning rate would
    depend on ε, m, K and the data.

    Initial weights come from the stream "kprop"; features and labels of the graph are not read.
    """

    gain: Tensor
    """The constant, a buffer."""

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
        """Logits of every node, Tensor[N, c]; the generator is of dropout, and None means evaluation."""
        settings = self._settings
        h = self.gain * self._input.times(self.update.weight.t()) + self.update.bias
        h = dropout(ACTIVATIONS[settings.activation](h), settings.dropout, generator)
        return self._adjacency.gcn(h @ self.output.weight.t()) + self.output.bias


class LabelDenoising:
    """Compares what the network says of a node's neighbours' labels, K_y hops away, with those labels.

    Both sides are the same linear function of labels: ỹ = A^K_y·Y' over its row sums, Y' being one-hot for nodes whose
    perturbed label is known and zero for others, and p̃ = A^K_y·p(y'|x) over the same. So with the true p(y|x) p̃ is the
    expectation of ỹ, whose noise falls with the number of labels in reach. Where none is, the node's own takes its
    place.

    Args:
        labels: Tensor[N] int64, perturbed; read where ``known``.
        known: Tensor[N] bool, nodes whose perturbed label the server has.
        transition: Tensor[c, c], as for ``corrected``.
        settings: K_y and the targets.
        adjacency: of a linear aggregate without self-loops, as ``neighbour_adjacency`` makes it.

    Attributes:
        targets: ỹ, Tensor[N, c] of probabilities, one-hot where settings say ``hard``.

    Raises:
        DataError: the transition is no matrix of probabilities, or a known label is none of its classes.
    """

    def __init__(
        self, labels: Tensor, known: Tensor, transition: Tensor, settings: DenoiseSettings, adjacency: Adjacency
    ) -> None:
        classes = _checked(transition, labels[known])
        self._transition = transition.to(adjacency.dtype)
        self._steps, self._adjacency = settings.denoise_steps, adjacency
        self._known = known.to(adjacency.dtype).unsqueeze(1)
        self._reach = propagate(adjacency, self._known, self._steps)
        own = functional.one_hot(torch.where(known, labels, 0), classes).to(adjacency.dtype)
        self.targets = self._aggregated(own)
        if settings.targets == "hard":
            self.targets = functional.one_hot(self.targets.argmax(dim=1), classes).to(adjacency.dtype)

    def loss(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """Mean cross-entropy of p̃ against the targets, at the nodes to learn from, Tensor[N] bool."""
        predicted = self._aggregated(corrected(logits, self._transition))
        least = torch.finfo(predicted.dtype).tiny
        return -(self.targets[nodes] * predicted[nodes].clamp_min(least).log()).sum(dim=1).mean()

    def scores(self, logits: Tensor) -> Tensor:
        """Logits of the perturbed labels, log p(y'|x): Tensor[N, c] to Tensor[N, c]."""
        return corrected(logits, self._transition).clamp_min(torch.finfo(logits.dtype).tiny).log()

    def _aggregated(self, probabilities: Tensor) -> Tensor:
        """A^K_y·(known·p) over its row sums; p where that is zero. Tensor[N, c] to Tensor[N, c]."""
        if self._steps == 0:
            return probabilities
        total = propagate(self._adjacency, self._known * probabilities, self._steps)
        reached = self._reach > 0
        return torch.where(reached, total / torch.where(reached, self._reach, 1.0), probabilities)


def _checked(transition: Tensor, labels: Tensor) -> int:
    """The number of classes."""
    if transition.dim() != 2 or transition.shape[0] != transition.shape[1]:
        raise DataError(f"transition: of shape {list(transition.shape)} must be [c, c]: a row for every true class")
    if bool((transition < 0).any()) or not torch.allclose(transition.sum(dim=1), torch.ones_like(transition[0])):
        raise DataError("transition: has a row that is no distribution: probabilities of the released label, sum 1")
    classes = len(transition)
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"labels: lie in {int(labels.min())}..{int(labels.max())}, and transition has {classes} classes from 0; "
            "give the matrix of the mechanism that released them"
        )
    return classes
