"""The roles of a horizontal job (SAPGNN): holders embed their nodes layer by layer, the server aggregates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.link.codec import MAX_MESSAGE_BYTES
from veilgraph.link.collectives import receive_as
from veilgraph.link.mailbox import MAX_UNREAD_BYTES, SLACK_BYTES
from veilgraph.mpc.compare import MaxServer, SecureMax
from veilgraph.mpc.mask import PairwiseMasks, sum_among
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.layers import FACT_BITS, zero_with_gradients
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.paradigms.horizontal import node_lists
from veilgraph.paradigms.horizontal import twin as baselines
from veilgraph.paradigms.horizontal.network import (
    LayeredHolder,
    LayeredServer,
    LayerWidths,
    layer_widths,
    learning_layers,
    published_layers,
    total,
)
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.paradigms.horizontal.tally import build_task
from veilgraph.paradigms.vertical.roles import Background
from veilgraph.protocol.agreement import Hello, Point, Start, same_count
from veilgraph.protocol.bounds import agree_on_start
from veilgraph.protocol.costs import ITEM_BYTES, PASSES
from veilgraph.protocol.cut import HolderCut, gradient_of, leaf
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.judge import Predicted, SharedJudge, calibration_at
from veilgraph.protocol.plain_fitting import PlainResult
from veilgraph.protocol.releases import learned_graph
from veilgraph.protocol.role import PartyModel, Role, RoleContext

GRADIENT_BITS: Final = 40  # fractional bits of a masked gradient of the weights: the sum stays below 2^21
REMEDY: Final = "lower train.learning_rate or scale the features (data.feature_scaling)"
_SHARED_BYTES: Final = 1 << 30  # gradients of shared weights, and a few tallies of up to 3 + 3·C² numbers
_SECURE_MAX: Final = 4
"""Times the default: what is dealt a step ahead for a secure maximum has many times the size of its rows."""


def joint_and_alone_scores(together: Scores, alone: PlainResult | None) -> Record | None:
    """Record for a holder's own nodes each score of the joint model beside that of its model alone; None without."""
    if alone is None:
        return None
    return {"together": dict(together.values), "alone": {name: alone.summary.get(name) for name in together.values}}


def unread_bytes_by_rows(job: HorizontalJob, rows: int, widths: Sequence[LayerWidths]) -> int:
    """Most bytes of one sender's messages that wait unread in an honest session; ``rows``: nodes in one message."""
    if job.model.combine == "secure-max":
        return _SECURE_MAX * MAX_UNREAD_BYTES
    columns = sum(layer.sent + layer.output for layer in widths)
    return SLACK_BYTES + _SHARED_BYTES + 4 * PASSES * ITEM_BYTES * rows * columns


class HorizontalHolder(SharedJudge):
    """A holder of nodes with distinct ``ids``, their features, edges between them, and perhaps labels.

    With ``label_privacy`` all that it computes from labels, test scores too, uses perturbed ones; a prediction perturbs
    none.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph, ids: Sequence[str]) -> None:
        super().__init__(session)
        graph.validate()
        job = horizontal(session.settings)
        self._learnt, self._settings = job.horizontal.task, job.model
        self._learnt.check_targets(graph)
        if len(ids) != graph.num_nodes:
            raise DataError(f"{graph.party}: {len(ids)} ids for {graph.num_nodes} nodes; name every node once")
        self.graph, self._ids = graph, ids
        self._transition: Tensor | None = None
        self._others = [holder for holder in session.holders if holder != session.link.party]
        self._tallies = 0
        self._secure: SecureMax | None = None

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph = self.session, self.graph
        hellos, start = agree_on_start(
            session,
            held,
            features=graph.num_features,
            edge_columns=graph.num_edge_features,
            classes=self._learnt.outputs(graph),
            refuses=session.refuses or (session.publisher.refusal() if self._learns else ""),
        )
        outputs = _common_outputs({holder: hellos[holder] for holder in session.holders}, self._learnt.answers)
        if session.settings.label_privacy is not None and graph.labels is not None and self._learns:
            self.graph, self._transition = learned_graph(session, graph)
        key, streams = node_lists.share_secrets(session.link, session.holders, session.streams, session.secrets)
        self._network = LayeredHolder(
            self._settings, graph.num_features, outputs, streams, session.dtype, graph.num_edge_features
        )
        self.model = PartyModel(session, {"holder": self._network})
        balanced = session.settings.train.class_weights == "balanced"
        self._task = build_task(self._learnt, self._network, outputs, self._transition, balanced=balanced)
        self._widths = layer_widths(self._settings, graph.num_features)
        self._masks = PairwiseMasks.agree(
            session.link, session.holders, session.secrets, rounding_key=session.rounding_key
        )
        self._cut = HolderCut(session.link, None, 0, session.dtype)
        session.link.expect(unread_bytes_by_rows(horizontal(session.settings), graph.num_nodes, self._widths))
        self._send_lists(key)
        examples = torch.tensor([self._task.examples(self.graph)]).double()
        self._examples = float(self._sum(examples, Tag(Kind.MASKED, 0), "training nodes"))
        if self._examples == 0:
            raise DataError(
                f"train_mask: no holder has a training node; give {self._learnt.answers} and a train_mask to one"
            )
        return start

    def _send_lists(self, key: bytes) -> None:
        """Send the server node and edge hashes and degrees, and prepare adjacency, features and secure maxima."""
        session, graph, settings = self.session, self.graph, self._settings
        nodes = node_lists.node_hashes(key, self._ids)
        node_lists.send_nodes(session.link, nodes)
        counted = graph
        if settings.edges == "deduplicate":
            counted = graph.with_edges(
                node_lists.send_edges(session.link, node_lists.edge_hashes(key, nodes, graph.edge_index))
            )
        self._adjacency = Adjacency.from_graph(counted, session.dtype)
        self._features = FixedInput(graph.features, session.dtype)
        if settings.aggregate == "mean":
            session.link.send(SERVER, Tag(Kind.EMBEDDING), self._adjacency.degrees.unsqueeze(1).contiguous())
        if settings.combine == "secure-max":
            # The codes of all nodes in the widest layer are one message: that bounds N.
            widest = max(widths.sent for widths in self._widths)
            most = MAX_MESSAGE_BYTES // (session.dtype.itemsize * widest)
            self._rows, self._num_nodes = node_lists.receive_places(session.link, graph.num_nodes, most)
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
                self._publish_layer(step, index, self._sent[index].detach())
            h = leaf(self._cut.combined(step, index + 1, (self.graph.num_nodes, widths.output)))
            self._inputs.append(h)
        self.logits = self._network.predict(self._inputs[-1])

    def _gather(self) -> None:
        """Open the sums that scale targets or weigh classes, once a run: they are kept with the weights."""
        what = f"sums of {self._learnt.answers}"
        self._network.gather(
            self._task.sums_before, lambda _, known: self._open_tally(self._task.gathered(self.graph, known), what)
        )

    def _publish_layer(self, step: int, index: int, local: Tensor) -> None:
        """Send the server a layer's local embeddings in the clear, or compete with them in a secure maximum."""
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
            backward(zero_with_gradients([self._sent[index]], [gradient]))
            if index:
                self._cut.publish_gradient(step, index, gradient_of(self._inputs[index - 1]))
        self._sum_gradients(step, loss)

    def _sum_gradients(self, step: int, loss: Tensor) -> None:
        """Replace the shared weights' gradients, and the loss, by their sums over all holders (eqs. 21-22)."""
        weights = list(self._network.parameters())
        parts = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        # in the precision they were computed in, which says how many of their digits are more than zeros
        flat = torch.cat([*(part.reshape(-1) for part in parts), loss.reshape(1).to(parts[0].dtype)])
        total = self._sum(flat, Tag(Kind.MASKED_GRADIENT, step), "weight gradients", GRADIENT_BITS)
        self.loss = float(total[-1])
        for weight, part in zip(weights, torch.split(total[:-1], [weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Scores over all holders' answers, from summed tallies; all holders call it together, and learn the same."""
        own = self._task.tally(self.graph, self.logits.detach())
        scores = self._task.scores(self._open_tally(own, "scores", self._task.tally_bits))
        return scores if everything else scores.of_epoch(self.session.settings.train.select_by)

    @override
    def predictions(self) -> Predicted:
        return self._task.predictions(self.logits.detach())

    @override
    def alone(self) -> Record | None:
        job, task = horizontal(self.session.settings), self._task
        if job.label_privacy is not None or not task.examples(self.graph):
            return None
        part = HorizontalPart(self.graph, torch.arange(self.graph.num_nodes))
        mine = task.scores(task.tally(self.graph, self.logits.detach()))
        return joint_and_alone_scores(mine, baselines.alone(job, part, lambda _: None))

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Calibrate at home on its own validation nodes, for its own nodes."""
        return calibration_at(self.graph, probabilities, self._transition, self._task.weights())

    def _open_tally(self, values: Tensor, purpose: str, bits: int = FACT_BITS) -> Tensor:
        self._tallies += 1
        return self._sum(values, Tag(Kind.MASKED, self._tallies), purpose, bits)

    def _sum(self, values: Tensor, tag: Tag, purpose: str, bits: int = FACT_BITS) -> Tensor:
        return sum_among(
            self.session.link, self._others, self._masks, values, tag, bits=bits, purpose=purpose, remedy=REMEDY
        )


def _common_outputs(hellos: Mapping[PartyId, Hello], answers: str) -> int:
    """The output width that all holders with answers state; ``DataError``: widths or columns differ, or none has."""
    same_count("columns", {holder: hello.features for holder, hello in hellos.items()})
    same_count("columns of edges", {holder: hello.edge_columns for holder, hello in hellos.items()})
    stated = {holder: hello.classes for holder, hello in hellos.items() if hello.classes}
    if not stated:
        raise DataError(f"{answers}: no holder has any; give {answers} and masks to one")
    return same_count("classes", stated)


class HorizontalServer(Role):
    """The semi-honest server: aggregates over holders, applies global updates, and deals for secure maxima.

    It sees which hashed nodes each holder knows, and their local embeddings or, with ``secure-max``, the maximum alone.
    """

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self._settings = horizontal(session.settings).model
        self._secure: MaxServer | None = None
        self._background = Background()
        self._dealt_steps = 0

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, settings = self.session, self._settings
        hellos, start = agree_on_start(session, held)
        features = hellos[session.holders[0]].features
        self._widths = layer_widths(settings, features)
        self._network = LayeredServer(settings, features, session.streams, session.dtype)
        self.model = PartyModel(session, {"server": self._network})
        self._places = node_lists.receive_nodes(session.link, session.holders)
        largest = max(len(rows) for rows in self._places.rows.values())
        session.link.expect(unread_bytes_by_rows(horizontal(session.settings), largest, self._widths))
        if settings.edges == "deduplicate":
            node_lists.settle_edges(session.link, session.holders)
        self._degrees: Tensor | None = None
        if settings.aggregate == "mean":
            self._degrees = self._total(self._receive_from_all(Tag(Kind.EMBEDDING), 1))
        if settings.combine == "secure-max":
            self._order = node_lists.send_places(session.link, self._places, session.secrets)
            self._secure = MaxServer(session.link, session.holders, session.secrets, session.dtype)
            self._secure.send_seeds()
            self._deal(until=0)
        return start

    def _receive_from_all(self, tag: Tag, width: int) -> list[Tensor]:
        link, dtype = self.session.link, self.session.dtype
        return [receive_as(link, holder, tag, (len(at), width), dtype) for holder, at in self._places.rows.items()]

    def _total(self, pieces: Sequence[Tensor]) -> Tensor:
        return total(pieces, list(self._places.rows.values()), self._places.num_nodes)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self._background.check()
        self._deal(until=step + 1 if self._learns else step)
        generator = self._dropout(epoch)
        self._pieces: dict[int, list[Tensor]] = {}
        self._sent: list[Tensor] = []
        for index in range(len(self._widths)):
            aggregate = self._network.aggregated(index, partial(self._receive_aggregate, step, index))
            output = self._network.layer(index).update(aggregate, generator)
            self._sent.append(output)
            for holder, at in self._places.rows.items():
                self.session.link.send(holder, Tag(Kind.COMBINED, step, index + 1), output.detach().index_select(0, at))

    def _receive_aggregate(self, step: int, index: int) -> Tensor:
        rows, nodes, width = self._places.rows, self._places.num_nodes, self._widths[index].sent
        if self._secure is not None:
            maximum = leaf(self._secure.receive((nodes, width), step, index + 1)[self._order])
            self._pieces[index] = [maximum]
            return maximum
        pieces = [leaf(piece) for piece in self._receive_from_all(Tag(Kind.EMBEDDING, step, index + 1), width)]
        self._pieces[index] = pieces
        return self._network.layer(index).combine(pieces, list(rows.values()), nodes, self._degrees)

    @override
    def backward(self, step: int) -> None:
        for index, output in reversed(list(enumerate(self._sent))):
            tag = Tag(Kind.GRADIENT, step, index + 1)
            gradient = self._total(self._receive_from_all(tag, output.shape[1]))
            if output.requires_grad:
                backward(zero_with_gradients([output], [gradient]))
            if index in learning_layers(self._settings):
                self._send_gradients(tag, self._pieces[index])

    def _send_gradients(self, tag: Tag, pieces: list[Tensor]) -> None:
        for number, (holder, at) in enumerate(self._places.rows.items()):
            if self._secure is not None:
                piece = gradient_of(pieces[0]).index_select(0, at)
            else:
                piece = gradient_of(pieces[number])
            self.session.link.send(holder, tag, piece.contiguous())

    def _deal(self, until: int) -> None:
        """Deals in the background for every step up to ``until`` that was not dealt for."""
        if self._secure is None:
            return
        for step in range(self._dealt_steps, until + 1):
            for index in published_layers(self._settings, step):
                shape = (self._places.num_nodes, self._widths[index].sent)
                self._background.submit(self._secure.deal, shape, step, index + 1)
        self._dealt_steps = max(self._dealt_steps, until + 1)

    @override
    def close(self) -> None:
        self._background.close()
