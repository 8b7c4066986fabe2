"""What the label holder learns of its columns and of the noisy rows that were released to it, together.

Released rows are anybody's: what is computed from them costs no ε. The network learns once, after the holder's own
one, and the validation nodes choose between them (``Objective.simplest``).

It keeps the step that serves validation nodes best. Where its columns are few and training nodes many it hardly
overfits, and the best of many steps by a few nodes is luck: there it keeps the mean of its weights over all steps but
the first (Polyak & Juditsky 1992).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.adam import Adam
from veilgraph.nn.joint import Axes, JointNetwork, Whitening, shrunk
from veilgraph.nn.propagate import SparseMatrix
from veilgraph.paradigms.vertical.fixed import project, random_projection
from veilgraph.protocol.scores import Objective

_log: Final = logging.getLogger("veilgraph")

_STEPS: Final = 300
_EVALUATED_EVERY: Final = 2
_PATIENCE: Final = 20
"""Evaluations without a better one, after which it stops."""
_MEAN_OF: Final = range(21, 201)
"""Steps whose mean is kept in place of the best one, where columns are few and training nodes many."""
MANY: Final = 1000
"""As many: with 600 training nodes of Amazon the best step is as good as the mean, with 200 better (docs/gap.md)."""
_RATE: Final = 0.01
_DECAY: Final = 5e-4
AT_ONCE: Final = 8192
"""Training nodes of one step, drawn anew for each: memory and time have this bound, whatever the number of nodes."""


class JointLearner(nn.Module):
    """The network and how it is trained.

    Args:
        graph: the label holder's, of which the first C nodes are the common ones.
        width: columns of one released matrix, d.
        noise_variance: Tensor[w] float64, of each released column; w is a multiple of d.
        objective: over the common nodes.
        streams: of the party.
        dtype: of the weights.
        at_once: the most training nodes of a step.
        few: whether its columns, with those that it was given, are no more than d.
        many: from how many training nodes on it then keeps the mean of its steps.
    """

    def __init__(
        self,
        graph: PartyGraph,
        width: int,
        noise_variance: Tensor,
        objective: Objective,
        streams: LearningStreams,
        dtype: torch.dtype,
        at_once: int = AT_ONCE,
        few: bool = False,
        many: int = MANY,
    ) -> None:
        super().__init__()
        self._at_once = at_once
        self._keeps_mean = few and len(objective.train_nodes) >= many
        self._graph, self._width, self._objective, self._streams = graph, width, objective, streams
        self._dtype = dtype
        self._variances = noise_variance[::width].tolist()
        self._features = _matrix(graph, dtype)
        projection = random_projection(graph.num_features, width, streams, dtype)
        self._projected = functional.normalize(project(graph.features, projection)[: graph.common])
        self.whitening = Whitening(width, dtype)
        self._axes = [Axes(width, dtype) for _ in self._variances if few]
        self.axes = nn.ModuleList(self._axes)
        with streams.global_generator("joint"):
            widths = [width] * (1 + len(self._variances))
            self.network = JointNetwork(graph.num_features, widths, objective.classes, dtype)

    def learn(self, released: Tensor) -> None:
        """Trains, and keeps the step that serves the validation nodes best, or the mean of all.

        Args:
            released: Tensor[C, w].
        """
        self.whitening.learn(self._projected)
        for axes, block, variance in zip(self._axes, self._split(released), self._variances, strict=False):
            axes.learn(block, variance)
        blocks = self._blocks(released)
        self.network.load_state_dict(self._mean(blocks) if self._keeps_mean else self._best(blocks))

    def _best(self, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
        objective = self._objective
        validation = self._inputs(objective.val_nodes, blocks)
        best, kept, since = (-float("inf"), -float("inf")), _clone(self.network), 0
        for step in self._steps(blocks, _STEPS):
            if step % _EVALUATED_EVERY:
                continue
            with torch.no_grad():
                score = objective.validation(self.network(*validation, None))
            if score > best:
                best, kept, since = score, _clone(self.network), 0
            else:
                since += 1
                if since >= _PATIENCE:
                    break
        _log.info("the joint network was trained for %d steps", step)
        return kept

    def _mean(self, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
        mean = _clone(self.network)
        for step in self._steps(blocks, _MEAN_OF.stop - 1):
            if step in _MEAN_OF:
                for name, tensor in self.network.state_dict().items():
                    mean[name].lerp_(tensor, 1 / (step - _MEAN_OF.start + 1))
        return mean

    def _steps(self, blocks: Sequence[Tensor], count: int) -> Iterator[int]:
        """Trains, and says after each step which one it was."""
        optimizer = Adam(self.network.parameters(), lr=_RATE, weight_decay=_DECAY)
        drawn = _Drawn(self._objective.train_nodes, self._at_once, self._streams)
        inputs: tuple[SparseMatrix, list[Tensor]] | None = None
        for step in range(1, count + 1):
            nodes = drawn.of(step)
            if inputs is None or drawn.changes:
                inputs = self._inputs(nodes, blocks)
            optimizer.zero_grad()
            logits = self.network(*inputs, self._streams.generator("joint dropout", step))
            backward(self._objective.training_loss(logits, nodes))
            optimizer.step()
            yield step

    @torch.no_grad()
    def logits(self, released: Tensor) -> Tensor:
        """Of the common nodes: Tensor[C, classes].

        Args:
            released: Tensor[C, w].
        """
        nodes = torch.arange(self._graph.common)
        found: Tensor = self.network(*self._inputs(nodes, self._blocks(released)), None)
        return found

    def _blocks(self, released: Tensor) -> list[Tensor]:
        """What the network sees beside the columns: these, projected; then each released matrix."""
        seen, variances = self._split(released), self._variances
        if self._axes:
            seen = [axes(block) for axes, block in zip(self._axes, seen, strict=True)]
            variances = [of * axes.share for axes, of in zip(self._axes, variances, strict=True)]
        return [self.whitening(self._projected), *map(shrunk, seen, variances)]

    def _split(self, released: Tensor) -> Sequence[Tensor]:
        return torch.split(released, self._width, dim=1)

    def _inputs(self, nodes: Tensor, blocks: Sequence[Tensor]) -> tuple[SparseMatrix, list[Tensor]]:
        return SparseMatrix(self._features[nodes.numpy()]), [block[nodes] for block in blocks]


class _Drawn:
    """The training nodes of a step: all, or ``at_once`` of them drawn anew."""

    def __init__(self, nodes: Tensor, at_once: int, streams: LearningStreams) -> None:
        self._nodes, self._at_once, self._streams = nodes, at_once, streams
        self.changes = len(nodes) > at_once

    def of(self, step: int) -> Tensor:
        if not self.changes:
            return self._nodes
        order = torch.randperm(len(self._nodes), generator=self._streams.generator("joint nodes", step))
        return self._nodes[order[: self._at_once]]


def _matrix(graph: PartyGraph, dtype: torch.dtype) -> sp.csr_array:
    features = graph.features.to(dtype)
    matrix = to_scipy(features) if is_sparse(features) else features.numpy()
    return sp.csr_array(
        sp.csr_array(matrix)[: graph.common], dtype=np.float64 if dtype == torch.float64 else np.float32
    )


def _clone(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
