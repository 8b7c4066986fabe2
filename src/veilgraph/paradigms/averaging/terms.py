"""Gradients of single training nodes, each made of what is within K hops of its node and of nothing else.

A term is the loss of one training node, by the network over the *ball* of its node: the nodes from which it can be
reached along at most K edges, and the edges between these. It is computed from the ball as if there were nothing
beside it, so a node that is not in the ball changes no bit of it. A node without which a path of at most K edges is
gone is in the ball; so the ball changes with the data of its own nodes alone (Daigavane et al. 2021, section 4).

With ``gin`` and ``sage-mean`` the term is, but for the last bits, the loss that the network over all of the graph has
at the node: what a node has after k hops depends on its in-neighbours after k − 1, and on weights of edges into it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.propagate import Adjacency, by_target
from veilgraph.paradigms.averaging.network import Averaged


@dataclass(frozen=True, eq=False)
class _Ball:
    features: FixedInput
    adjacency: Adjacency
    place: int
    label: Tensor


class Terms:
    """The training nodes of a holder, ready for their gradients.

    Args:
        graph: of the holder, with labels.
        hops: K.
        dtype: of the weights.
    """

    def __init__(self, graph: PartyGraph, hops: int, dtype: torch.dtype) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        self._graph, self._hops, self._dtype = graph, hops, dtype
        self._labels = graph.labels
        self._nodes: list[int] = torch.nonzero(graph.train_mask).flatten().tolist()
        weight = torch.arange(graph.num_edges, dtype=torch.int64)  # in place of weights: which edge it is
        self._incoming = by_target(graph.edge_index, weight, graph.num_nodes)
        self._rows = to_scipy(graph.features) if is_sparse(graph.features) else None
        self._balls = dict[int, _Ball]()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._nodes)

    def numbers(self, nodes: Tensor) -> list[int]:
        """Numbers of the terms of training nodes, in their order.

        Args:
            nodes: Tensor[n] int64.
        """
        numbers = {node: number for number, node in enumerate(self._nodes)}
        return [numbers[node] for node in nodes.tolist()]

    def ball(self, node: int) -> list[int]:
        """The nodes from which one can be reached along at most K edges, itself among them, in order."""
        found, last = {node}, [node]
        for _ in range(self._hops):
            last = [source for target in last for source in self._sources(target) if source not in found]
            found.update(last)
        return sorted(found)

    def gradient(self, network: Averaged, number: int) -> Tensor:
        """Of the loss of one training node in all weights that are averaged: Tensor[W] of the weights' dtype.

        Args:
            network: with the weights of the round; without dropout.
            number: below ``len``.
        """
        ball = self._ball(number)
        logits = network(ball.features, ball.adjacency, None)[ball.place : ball.place + 1]
        loss = functional.cross_entropy(logits, ball.label)
        weights = network.shared()
        parts = torch.autograd.grad(loss, weights, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(each).flatten() if part is None else part.flatten()
                for each, part in zip(weights, parts, strict=True)
            ]
        )

    def at(self, network: Averaged) -> Callable[[int], Tensor]:
        """Number of a training node → ``gradient``, by these weights."""
        return lambda number: self.gradient(network, number)

    def _sources(self, target: int) -> list[int]:
        start, end = self._incoming.indptr[target : target + 2]
        found: list[int] = self._incoming.indices[start:end].tolist()
        return found

    def _ball(self, number: int) -> _Ball:
        if number not in self._balls:
            self._balls[number] = self._made(self._nodes[number])
        return self._balls[number]

    def _made(self, node: int) -> _Ball:
        graph, nodes = self._graph, self.ball(node)
        place = {each: at for at, each in enumerate(nodes)}
        edges = np.sort(np.concatenate([self._edges_into(each) for each in nodes]))
        kept = [edge for edge in edges.tolist() if int(graph.edge_index[0, edge]) in place]
        index = graph.edge_index[:, kept].apply_(place.__getitem__)
        weight = None if graph.edge_weight is None else graph.edge_weight[kept]
        rows = graph.features[nodes] if self._rows is None else torch.from_numpy(self._rows[nodes].toarray())
        return _Ball(
            FixedInput(rows, self._dtype),
            Adjacency.of_edges(index, weight, len(nodes), self._dtype),
            place[node],
            self._labels[node : node + 1],
        )

    def _edges_into(self, target: int) -> np.ndarray:
        start, end = self._incoming.indptr[target : target + 2]
        found: np.ndarray = self._incoming.data[start:end]
        return found
