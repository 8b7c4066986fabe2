"""A holder of a horizontal job: local embeddings layer by layer, the way back, and weights that all share (SAPGNN)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.parts import HorizontalPart
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import MAX_MESSAGE_BYTES
from veilgraph.mpc.compare import SecureMax
from veilgraph.mpc.mask import PairwiseMasks, sum_among
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.facts import FACT_BITS
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.handed import handed
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.horizontal import baselines
from veilgraph.paradigms.horizontal.network import LayeredHolder, layer_widths, learning_layers, published_layers
from veilgraph.paradigms.horizontal.node_lists import (
    edge_hashes,
    node_hashes,
    receive_places,
    send_edges,
    send_nodes,
    share_secrets,
)
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.tally import Classification, learnt_task
from veilgraph.paradigms.horizontal.unread import unread_bytes_by_rows
from veilgraph.protocol.agreement import Hello, agreed_start, same_count
from veilgraph.protocol.cut import HolderCut, gradient_of, leaf
from veilgraph.protocol.figures import Judged
from veilgraph.protocol.judge import Predicted, SharedJudge
from veilgraph.protocol.label_release import learned_graph
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Session
from veilgraph.protocol.scores import Scores, calibration_at
from veilgraph.protocol.stated import agree_within

GRADIENT_BITS: Final = 40
"""Fractional bits of a masked gradient of the weights: the sum stays below 2^21."""

_REMEDY: Final = "lower train.learning_rate or scale the features (data.feature_scaling)"


class HorizontalHolder(SharedJudge):
    """Holds nodes, their features, edges between them, and perhaps labels.

    With ``label_privacy`` all that it computes of labels is of perturbed ones, scores of test nodes too. A prediction
    learns from no label, and so perturbs none.

    Args:
        session: of this party.
        graph: its own data.
        ids: of its nodes, one per row, distinct.
    """

    def __init__(self, session: Session, graph: PartyGraph, ids: Sequence[str]) -> None:
        super().__init__(session)
        graph.validate()
        self._learnt = horizontal(session.settings).horizontal.task
        self._learnt.check_targets(graph)
        if len(ids) != graph.num_nodes:
            raise DataError(f"{graph.party}: {len(ids)} ids for {graph.num_nodes} nodes; name every node once")
        self.graph, self._ids = graph, ids
        self._transition: Tensor | None = None
        self._settings = horizontal(session.settings).model
        self._others = [holder for holder in session.holders if holder != session.link.party]
        self._tallies = 0
        self._secure: SecureMax | None = None

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph = self.session, self.graph
        mine = Hello(
            job=session.settings.hash(),
            features=graph.num_features,
            edge_columns=graph.num_edge_features,
            classes=self._learnt.outputs(graph),
            checkpoints=list(held),
            restarts=session.restarts,
            nonce=session.nonce(),
            refuses=session.refuses or (session.publisher.refusal() if self._learns else ""),
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos)
        outputs = common_outputs({holder: hellos[holder] for holder in session.holders}, self._learnt.answers)
        if session.settings.label_privacy is not None and graph.labels is not None and self._learns:
            self.graph, self._transition = learned_graph(session, graph)
        key, streams = share_secrets(session.link, session.holders, session.streams, session.secrets)
        self._network = LayeredHolder(
            self._settings, graph.num_features, outputs, streams, session.dtype, graph.num_edge_features
        )
        balanced = session.settings.train.class_weights == "balanced"
        self._task = learnt_task(self._learnt, self._network, outputs, self._transition, balanced=balanced)
        self._widths = layer_widths(self._settings, graph.num_features)
        self._masks = PairwiseMasks.agree(
            session.link, session.holders, session.secrets, rounding_key=session.rounding_key
        )
        self._cut = HolderCut(session.link, None, 0, session.dtype)
        session.link.expect(unread_bytes_by_rows(horizontal(session.settings), graph.num_nodes, self._widths))
        self._send_lists(key)
        self._examples = float(
            self._among(torch.tensor([self._task.examples(self.graph)]).double(), "training nodes", 0)
        )
        if self._examples == 0:
            raise DataError(
                f"train_mask: no holder has a training node; give {self._learnt.answers} and a train_mask to one"
            )
        return start

    def _send_lists(self, key: bytes) -> None:
        """Nodes, and what else this aggregate needs, to the server."""
        session, graph, settings = self.session, self.graph, self._settings
        nodes = node_hashes(key, self._ids)
        send_nodes(session.link, nodes)
        counted = graph
        if settings.edges == "deduplicate":
            counted = graph.with_edges(send_edges(session.link, edge_hashes(key, nodes, graph.edge_index)))
        self._adjacency = Adjacency.from_graph(counted, session.dtype)
        self._features = FixedInput(graph.features, session.dtype)
        if settings.aggregate == "mean":
            session.link.send(SERVER, Tag(Kind.EMBEDDING, 0, 0), self._adjacency.degrees.unsqueeze(1).contiguous())
        if settings.combine == "secure-max":
            self._rows, self._num_nodes = receive_places(session.link, graph.num_nodes, self._most_nodes())
            self._secure = SecureMax(session.link, session.holders, self._masks, session.dtype)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if self._learns and not self._network.has_facts:
            self._gather()
        self._sent: dict[int, Tensor] = {}
        self._wins: dict[int, Tensor] = {}
        self._inputs: list[Tensor] = []
        h: Tensor | FixedInput = self._features
        published = published_layers(self._settings, step)
        for index, widths in enumerate(self._widths):
            if index in published:
                self._sent[index] = self._network.layer(index)(h, self._adjacency)
                self._give(step, index, self._sent[index].detach())
            h = leaf(self._cut.combined(step, index + 1, (self.graph.num_nodes, widths.output)))
            self._inputs.append(h)
        self.logits = self._network.predict(self._inputs[-1])

    def _gather(self) -> None:
        """Sums by which numbers are scaled or classes weighed, once a run: they are kept with the weights."""

        def summed(_: int, known: Tensor) -> Tensor:
            self._tallies += 1
            own = self._task.gathered(self.graph, known)
            return self._among(own, f"sums of {self._learnt.answers}", self._tallies, FACT_BITS)

        self._network.gather(self._task.sums_before, summed)

    def _most_nodes(self) -> int:
        """N at most: the codes of all nodes in the widest layer are one message."""
        return MAX_MESSAGE_BYTES // (self.session.dtype.itemsize * max(widths.sent for widths in self._widths))

    def _give(self, step: int, index: int, local: Tensor) -> None:
        if self._secure is None:
            self._cut.publish(step, index + 1, local)
            return
        everywhere = local.new_full((self._num_nodes, local.shape[1]), -math.inf)
        everywhere[self._rows] = local
        self._wins[index] = self._secure.compete(everywhere, step, index + 1)[self._rows]

    @override
    def backward(self, step: int) -> None:
        graph, loss = self.graph, torch.zeros(())
        if self._task.examples(graph):
            own = self._task.loss(graph, self.logits) / self._examples
            loss = own.detach()
            backward(own)
        self._cut.publish_gradient(step, len(self._inputs), gradient_of(self._inputs[-1]))
        for index in reversed(learning_layers(self._settings)):
            gradient = self._cut.gradient(step, index + 1, tuple(self._sent[index].shape))  # type: ignore[arg-type]
            if self._secure is not None:
                gradient = gradient * self._wins[index]
            backward(handed([self._sent[index]], [gradient]))
            if index:
                self._cut.publish_gradient(step, index, gradient_of(self._inputs[index - 1]))
        self._fuse(step, loss)

    def _fuse(self, step: int, loss: Tensor) -> None:
        """Gradients of the weights that all holders share, and the loss: added up among the holders (eqs. 21-22)."""
        weights = list(self._network.parameters())
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        # in the precision they were computed in, which says how many of their digits are more than zeros
        flat = torch.cat([*(part.reshape(-1) for part in parts), loss.reshape(1).to(parts[0].dtype)])
        tag = Tag(Kind.MASKED_GRADIENT, step)
        total = sum_among(
            self.session.link,
            self._others,
            self._masks,
            flat,
            tag,
            bits=GRADIENT_BITS,
            purpose="weight gradients",
            remedy=_REMEDY,
        )
        self.loss = float(total[-1])
        for weight, part in zip(weights, torch.split(total[:-1], [weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)

    @override
    def scores(self, *, everything: bool = False) -> Judged:
        """Over the answers of all holders; all ask for them at the same time, and learn the same."""
        task, self._tallies = self._task, self._tallies + 1
        own = task.tally(self.graph, self.logits.detach())
        scores = task.scores(self._among(own, "scores", self._tallies, task.tally_bits))
        if everything or not isinstance(scores, Scores):
            return scores
        return scores.of_epoch(self.session.settings.train.select_by)

    @override
    def predictions(self) -> Predicted:
        return self._task.predictions(self.logits.detach())

    @override
    def alone(self) -> Record | None:
        job, task = horizontal(self.session.settings), self._task
        if job.label_privacy is not None or not task.examples(self.graph):
            return None
        part = HorizontalPart(self.graph, torch.arange(self.graph.num_nodes))
        found, mine = (
            baselines.alone(job, part, lambda _: None),
            task.scores(task.tally(self.graph, self.logits.detach())),
        )
        assert found is not None  # it has answers
        return {"together": mine.summary(), "alone": {name: found.summary[name] for name in mine.summary()}}

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """At home: by its own validation nodes, for its own nodes."""
        weights = self._task.weights() if isinstance(self._task, Classification) else None
        return calibration_at(self.graph, probabilities, self._transition, weights)

    def _among(self, values: Tensor, purpose: str, number: int, bits: int = FACT_BITS) -> Tensor:
        tag = Tag(Kind.MASKED, number, 0)
        return sum_among(
            self.session.link,
            self._others,
            self._masks,
            values,
            tag,
            bits=bits,
            purpose=purpose,
            remedy=_REMEDY,
        )

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"holder": self._network}


def common_outputs(hellos: dict[PartyId, Hello], answers: str) -> int:
    """The width that all holders with answers state; all must have the same columns as well.

    Args:
        hellos: of the holders.
        answers: labels, or targets.

    Raises:
        DataError: they differ, or nobody has answers.
    """
    same_count("columns", {holder: hello.features for holder, hello in hellos.items()})
    same_count("columns of edges", {holder: hello.edge_columns for holder, hello in hellos.items()})
    stated = {holder: hello.classes for holder, hello in hellos.items() if hello.classes}
    if not stated:
        raise DataError(f"{answers}: no holder has any; give {answers} and masks to one")
    return same_count("classes", stated)
