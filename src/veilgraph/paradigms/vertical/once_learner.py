"""The label holder of ``privacy.schedule: once``: it hears what the others released, and learns alone.

Nothing leaves it. What it was given is kept, so that later sessions on the same data have the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc import ring
from veilgraph.nn.deep import build_deep
from veilgraph.nn.discriminant import class_evidence
from veilgraph.nn.head import build_head
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.initial.method import init_std, init_weight
from veilgraph.paradigms.vertical.joint import JointLearner
from veilgraph.paradigms.vertical.network import HolderNetwork
from veilgraph.paradigms.vertical.once import ROUND, OnceRole
from veilgraph.paradigms.vertical.released import noise_variance, to_length_1
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.single import parts
from veilgraph.protocol.columns import beside, receive_columns
from veilgraph.protocol.cut import HolderCut, gradient_of, leaf
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.resumption import Point, Start, alone
from veilgraph.protocol.role import Session
from veilgraph.protocol.scores import Objective

_ROWS: Final = "released"
_COLUMNS: Final = "columns"


class LearningHolder(OnceRole, Judge):
    """The label holder: trains the job's network on its own data alone, and hears what the released rows say.

    Its own network gives each node log probabilities; the rows add their evidence (``nn.discriminant``). With noise in
    every hop a second network learns from its columns and the released rows together, once the first has. Its columns
    are its own and those that it was given.

    Args:
        session: of this party.
        graph: its own data, validated.

    Attributes:
        graph: with the columns that it was given, once set up.
        released: Tensor[C, width], what the others released, own rows as long as those that are summed; None before it
            is set up, where nothing was kept.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self.graph = graph
        kept: Mapping[str, Tensor] = {} if self._kept is None else self._kept.tensors
        self.released = kept.get(_ROWS)
        self._columns = {name: tensor for name, tensor in kept.items() if name != _ROWS}
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, session.dtype)
        self._noise_variance = noise_variance(session, graph.common)

    def _begin(self) -> None:
        """Builds its networks, as soon as it knows how many columns it has."""
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
        widths = {party: hellos[party].features for party in job.publishing if job.gives_columns}
        if self.is_new:
            nodes = self.graph.common
            received = {
                party: receive_columns(session.link, party, nodes, width, session.dtype)
                for party, width in widths.items()
            }
            self._columns = {
                _part(party, at): part for party in received for at, part in enumerate(parts(received[party]))
            }
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
        generator = self.dropout(epoch)
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

    @override
    def without_releases(self) -> dict[str, float | int | None]:
        """What its own network says of the same epoch: what an ε close to 0 would leave it with."""
        scores = self._objective.score(self._alone)
        return {
            "val_accuracy": scores.val_accuracy,
            "test_accuracy": scores.test_accuracy,
            "changed": int((self._alone.argmax(dim=1) != self.logits.argmax(dim=1)).sum()),
        }

    @override
    def audience(self) -> list[PartyId]:
        """Nobody: the others are done."""
        return []

    @override
    def modules(self) -> dict[str, nn.Module]:
        own = {"holder": self._network, "deep": self._deep, "head": self._head}
        return own if self._joint is None else {**own, "joint": self._joint}

    @override
    def trained(self) -> list[nn.Parameter]:
        own = (parameter for part in (self._network, self._deep, self._head) for parameter in part.parameters())
        return [*own, self._weight]

    @override
    def weights(self) -> dict[str, Tensor]:
        return {**super().weights(), "initial.weight": self._weight.data}


def _part(party: PartyId, place: int) -> str:
    """By which one of the tensors that a holder's columns are made of is kept."""
    return f"{_COLUMNS}/{party}/{place}"
