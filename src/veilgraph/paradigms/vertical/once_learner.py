"""The label holder of ``privacy.schedule: once``: it learns alone, of its own data and of what the others released.

Released rows are anybody's: what is computed from them costs no ε. Nothing leaves the label holder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc import ring
from veilgraph.nn.layers import Adam, build_deep, build_head, copied_state
from veilgraph.nn.noisy_rows import Axes, JointNetwork, Whitening, class_evidence, shrunk
from veilgraph.nn.propagate import Adjacency, SparseMatrix
from veilgraph.paradigms.vertical.initial import init_std, init_weight
from veilgraph.paradigms.vertical.network import HolderNetwork
from veilgraph.paradigms.vertical.once import ROUND, OnceRole, noise_variance, project, random_projection, to_length_1
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.release_cache import parts
from veilgraph.protocol.agreement import Point, Start, alone
from veilgraph.protocol.aligning import beside, receive_columns
from veilgraph.protocol.cut import HolderCut, gradient_of, leaf
from veilgraph.protocol.judge import Judge, Objective
from veilgraph.protocol.role import PartyModel, RoleContext

_log: Final = logging.getLogger("veilgraph")

_STEPS: Final = 300
_PATIENCE: Final = 20
"""Evaluations, at every second step, without a better one, after which it stops."""
_MEAN_OF: Final = range(21, 201)
"""Steps whose mean is kept in place of the best one, where columns are few and training nodes many."""
MANY: Final = 1000
"""As many: with 600 training nodes of Amazon the best step is as good as the mean, with 200 better (docs/gap.md)."""
_RATE: Final = 0.01
_DECAY: Final = 5e-4
AT_ONCE: Final = 8192
"""Training nodes of one step, drawn anew for each: memory and time have this bound, whatever the number of nodes."""


class JointLearner(nn.Module):
    """A network of the label holder's columns and of the noisy rows that were released to it, together.

    It learns once, after the holder's own network, and the validation nodes choose between them. It keeps the step that
    serves validation nodes best. Where its columns are few and training nodes many it hardly overfits, and the best of
    many steps by a few nodes is luck: there it keeps the mean of its weights over all steps but the first (Polyak &
    Juditsky 1992).

    Args:
        graph: the label holder's, of which the first C nodes are the common ones.
        width: columns of one released matrix, d.
        noise_variance: Tensor[w] float64, of each released column; w is a multiple of d.
        objective: over the common nodes.
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
        features = graph.features.to(dtype)
        matrix = sp.csr_array(to_scipy(features) if is_sparse(features) else features.numpy())[: graph.common]
        self._features = sp.csr_array(matrix, dtype=np.float64 if dtype == torch.float64 else np.float32)
        projection = random_projection(graph.num_features, width, streams, dtype)
        self._projected = functional.normalize(project(graph.features, projection)[: graph.common])
        self.whitening = Whitening(width, dtype)
        self._axes = [Axes(width, dtype) for _ in self._variances if few]
        self.axes = nn.ModuleList(self._axes)
        with streams.global_generator("joint"):
            widths = [width] * (1 + len(self._variances))
            self.network = JointNetwork(graph.num_features, widths, objective.classes, dtype)

    def learn(self, released: Tensor) -> None:
        """Trains on Tensor[C, w], and keeps the step that serves the validation nodes best, or the mean of all."""
        self.whitening.learn(self._projected)
        for axes, block, variance in zip(
            self._axes, torch.split(released, self._width, dim=1), self._variances, strict=False
        ):
            axes.learn(block, variance)
        blocks = self._blocks(released)
        self.network.load_state_dict(self._mean(blocks) if self._keeps_mean else self._best(blocks))

    def _best(self, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
        objective = self._objective
        validation = self._inputs(objective.val_nodes, blocks)
        best, kept, since = (-float("inf"), -float("inf")), copied_state(self.network), 0
        for step in self._steps(blocks, _STEPS):
            if step % 2:
                continue
            with torch.no_grad():
                score = objective.validation(self.network(*validation, None))
            if score > best:
                best, kept, since = score, copied_state(self.network), 0
            else:
                since += 1
                if since >= _PATIENCE:
                    break
        _log.info("the joint network was trained for %d steps", step)
        return kept

    def _mean(self, blocks: Sequence[Tensor]) -> dict[str, Tensor]:
        mean = copied_state(self.network)
        for step in self._steps(blocks, _MEAN_OF.stop - 1):
            if step in _MEAN_OF:
                for name, tensor in self.network.state_dict().items():
                    mean[name].lerp_(tensor, 1 / (step - _MEAN_OF.start + 1))
        return mean

    def _steps(self, blocks: Sequence[Tensor], count: int) -> Iterator[int]:
        optimizer = Adam(self.network.parameters(), lr=_RATE, weight_decay=_DECAY)
        nodes = every = self._objective.train_nodes
        inputs: tuple[SparseMatrix, list[Tensor]] | None = None
        for step in range(1, count + 1):
            if len(every) > self._at_once:
                order = torch.randperm(len(every), generator=self._streams.generator("joint nodes", step))
                nodes, inputs = every[order[: self._at_once]], None
            inputs = inputs or self._inputs(nodes, blocks)
            optimizer.zero_grad()
            logits = self.network(*inputs, self._streams.generator("joint dropout", step))
            backward(self._objective.training_loss(logits, nodes))
            optimizer.step()
            yield step

    @torch.no_grad()
    def logits(self, released: Tensor) -> Tensor:
        """Of the common nodes: Tensor[C, w] to Tensor[C, classes]."""
        nodes = torch.arange(self._graph.common)
        found: Tensor = self.network(*self._inputs(nodes, self._blocks(released)), None)
        return found

    def _blocks(self, released: Tensor) -> list[Tensor]:
        """What the network sees beside the columns: these, projected; then each released matrix."""
        seen: Sequence[Tensor] = torch.split(released, self._width, dim=1)
        variances = self._variances
        if self._axes:
            seen = [axes(block) for axes, block in zip(self._axes, seen, strict=True)]
            variances = [of * axes.share for axes, of in zip(self._axes, variances, strict=True)]
        return [self.whitening(self._projected), *map(shrunk, seen, variances)]

    def _inputs(self, nodes: Tensor, blocks: Sequence[Tensor]) -> tuple[SparseMatrix, list[Tensor]]:
        return SparseMatrix(self._features[nodes.numpy()]), [block[nodes] for block in blocks]


_ROWS: Final = "released"


class LearningHolder(OnceRole, Judge):
    """The label holder: trains the job's network on its own data alone, and hears what the released rows say.

    Its own network gives each node log probabilities; the rows add their evidence (``class_evidence``). With noise in
    every hop a second network learns from its columns and the released rows together, once the first has. Its columns
    are its own and those that it was given.

    Attributes:
        graph: with the columns that it was given, once set up.
        released: Tensor[C, width], what the others released, own rows as long as those that are summed; None before it
            is set up, where nothing was kept.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self.graph = graph
        kept: Mapping[str, Tensor] = {} if self._kept is None else self._kept.tensors
        self.released = kept.get(_ROWS)
        self._columns = {name: tensor for name, tensor in kept.items() if name != _ROWS}
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, session.dtype)
        self._noise_variance = noise_variance(session, graph.common)

    def _begin(self) -> None:
        session, graph = self.session, self.graph
        model, streams, dtype = vertical(session.settings).model, session.streams, session.dtype
        common, adjacency = graph.common_part(), Adjacency.from_graph(graph, dtype)
        self._common_adjacency = adjacency if common is graph else Adjacency.from_graph(common, dtype)
        self._operand = ring.static_operand(graph.features, lambda values: values.to(dtype))
        std = init_std(model.initial, graph.num_features, model.dim)
        weight = init_weight(streams, session.link.party, graph.num_features, model.dim, std)
        self._weight = nn.Parameter(weight.to(dtype))
        self._network = HolderNetwork(model, 1, adjacency, streams, dtype, common=graph.common)
        self._deep = build_deep(model.dim, model.dim, model.server, streams=streams, dtype=dtype)
        self._head = build_head(
            self._deep.output_dim, self._objective.classes, model.head, streams=streams, dtype=dtype
        )
        privacy = session.settings.privacy
        hops = None if privacy is None else privacy.aggregation
        self._joint = None
        if hops is not None:
            few = graph.num_features <= hops.dim
            self._joint = JointLearner(graph, hops.dim, self._noise_variance, self._objective, streams, dtype, few=few)
        networks: dict[str, nn.Module] = {"holder": self._network, "deep": self._deep, "head": self._head}
        own = [parameter for network in networks.values() for parameter in network.parameters()]
        self.model = PartyModel(
            session,
            networks if self._joint is None else {**networks, "joint": self._joint},
            trained=[*own, self._weight],
            besides=lambda: {"initial.weight": self._weight.data},
        )

    @override
    def _newest(self) -> int:
        return super()._newest() if self.released is not None else 0

    @override
    def _given(self) -> Mapping[str, Tensor]:
        return {} if self.released is None else {_ROWS: self.released, **self._columns}

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, job = self.session, vertical(self.session.settings)
        hellos = self._agree(self.graph.common)
        widths = {party: hellos[party].features for party in job.duties.publishing if job.gives_columns}
        if self.is_new:
            nodes = self.graph.common
            self._columns = {}
            for party, width in widths.items():
                columns = receive_columns(session.link, party, nodes, width, session.dtype)
                self._columns |= {_part(party, at): part for at, part in enumerate(parts(columns))}
            cut = HolderCut(session.link, None, job.model.combine.bits, session.dtype)
            sent = cut.combined(0, ROUND, (nodes, self._width))
            self.released = sent * to_length_1(session.settings, nodes).to(sent)
        if widths:
            given = [self._of(party, width) for party, width in widths.items()]
            self.graph = replace(self.graph, features=beside(self.graph.features, given))
        self._begin()
        return alone([] if self.is_new else held, session.nonce())

    def _of(self, party: PartyId, columns: int) -> Tensor:
        """The columns that a holder gave: Tensor[C, F_i], ``torch.sparse_csr``."""
        pointers, places, values = (self._columns[_part(party, at)] for at in range(3))
        return torch.sparse_csr_tensor(pointers, places, values, (self.graph.common, columns), check_invariants=True)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """In training the logits of the own network alone; else with what the released rows add to them.

        With noise in every hop epochs are chosen by the own network alone.
        """
        generator = self._dropout(epoch)
        self._h0 = leaf(self._operand.times(self._weight.detach()))
        started = self._network.start(self._h0, generator)
        own, _ = self._network.contribute(ROUND, started, started, generator)
        deep = self._deep(own, generator)
        of_head = None if epoch is None else self.session.streams.generator("head dropout", epoch)
        self.logits = self._head(deep, self._common_adjacency, of_head)
        if epoch is None and self.released is not None:
            log_probabilities, opinion = self._objective.opinion(self.logits)
            self._alone = log_probabilities
            if self._joint is None:
                self.logits = log_probabilities + class_evidence(self.released, opinion, self._noise_variance)
            elif not self._learns:
                self.logits = self._chosen(self._joint, self.released, log_probabilities, opinion)

    def _chosen(self, joint: JointLearner, released: Tensor, alone: Tensor, opinion: Tensor) -> Tensor:
        """What serves the validation nodes best: of own and joint network one, or both as if they were independent.

        The own one goes with as much evidence as serves: sums of several hops repeat each other, where Bayes' rule
        adds up. Both together also without, for the joint network has heard the same rows.
        """
        evidence = class_evidence(released, opinion, self._noise_variance)
        first = self._objective.weighed(alone, evidence)
        second, _ = self._objective.opinion(joint.logits(released))
        candidates = [first, second, alone + second, first + second]
        return candidates[self._objective.simplest(candidates)]

    @override
    def finish(self) -> None:
        if self._joint is not None and self.released is not None:
            with self.session.trace.span("joint network"):
                self._joint.learn(self.released)

    @override
    def backward(self, step: int) -> None:
        backward(self.training_loss("train.learning_rate or model.local.learning_rate"))
        self._weight.grad = self._operand.transposed_times(gradient_of(self._h0))


def _part(party: PartyId, place: int) -> str:
    """Name of one of the three tensors that a holder's columns are made of."""
    return f"columns/{party}/{place}"
