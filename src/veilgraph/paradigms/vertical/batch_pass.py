"""A holder's passes in a job in batches: neighbourhoods drawn at home, over an h^0 of all nodes.

h^0 is computed for all nodes together and stays the same for a period of steps, so that nobody sees which nodes a
holder needs. Gradients of it add up at home meanwhile; W takes their mean at the end of the period.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.errors import RunError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.handed import handed
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.network import HolderNetwork
from veilgraph.protocol.batches import Batch
from veilgraph.protocol.cut import leaf


class BatchPass:
    """One holder's side of the passes.

    Args:
        network: the holder's.
        adjacency: its whole graph.
        hops: K.
        fanout: neighbours drawn of a node; None takes all.
        streams: the holder's.
        device: of the network; in training h^0 of all nodes stays on the CPU.
    """

    def __init__(
        self,
        network: HolderNetwork,
        adjacency: Adjacency,
        hops: int,
        fanout: int | None,
        streams: LearningStreams,
        device: torch.device,
    ) -> None:
        self._network, self._streams, self._device = network, streams, device
        self._sampler = Sampler(adjacency, hops, fanout)
        self._one_hop = Sampler(adjacency, 1, None)
        self._gradient: Tensor | None = None
        self._local: Tensor | None = None

    def train(self, h0: Tensor, batch: Batch, epoch: int, generator: torch.Generator | None) -> Tensor:
        """What the holder publishes for a batch: Tensor[B, d], with a graph.

        Args:
            h0: Tensor[N, d], of all of the holder's nodes.
            batch: the targets.
            epoch: with the batch's index, names the draws.
            generator: source of dropout.
        """
        draws = self._streams.generator("neighbours", epoch, batch.index)
        around = self._sampler.around(batch.rows, draws)
        self._nodes, self._leaf = around.nodes, leaf(h0.index_select(0, around.nodes).to(self._device))
        started = self._network.start(self._leaf, generator)
        self._output = self._network.contribute_batch(started, around, batch.rows, generator)
        return self._output

    def infer(self, h0: Tensor, batch: Batch) -> Tensor:
        """What the holder publishes for a batch of an inference, from all neighbours: Tensor[B, d], without a graph."""
        if batch.index == 0:
            started = self._network.start(h0.to(self._device), None)
            self._local = self._network.propagate_all(started, self._one_hop)
        if self._local is None:
            raise RunError("an inference in batches begins with its first")
        contribution: Tensor = self._network.contribution(self._local[batch.rows], batch.rows)
        if batch.is_last:
            self._local = None
        return contribution

    def backward(self, gradient: Tensor, h0: Tensor, batch: Batch) -> Tensor | None:
        """Takes the gradient of what ``train`` published.

        Returns:
            At the end of a period the mean over its steps of ∂L/∂h^0, Tensor[N, d]; None before.
        """
        backward(handed([self._output], [gradient]))
        if self._gradient is None:
            self._gradient = torch.zeros_like(h0)
        if self._leaf.grad is not None:
            self._gradient.index_add_(0, self._nodes, self._leaf.grad.to(h0))
        if not batch.period:
            return None
        total, self._gradient = self._gradient, None
        return total.div_(batch.period)
