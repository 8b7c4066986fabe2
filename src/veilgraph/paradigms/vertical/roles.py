"""The parties of a vertical job (VFGNN): the semi-honest server (CG2), and data holders (CG1), one with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.types import Kind, Tag
from veilgraph.graph.federation import check_classes
from veilgraph.graph.party import PartyGraph, rows_between
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.product import Dealer, Direction
from veilgraph.mpc.ring import fractional_bits
from veilgraph.nn.layers import OutputHead, build_head, zero_with_gradients
from veilgraph.nn.local.model import LocalSettings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.network import (
    OWN_NODES,
    EmbeddingSession,
    HolderNetwork,
    Individual,
    InitialEmbedding,
    ServerNetwork,
    build_embedding,
    deep_width,
    next_input,
)
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.protocol.agreement import Point, Start
from veilgraph.protocol.bounds import agree_on_start
from veilgraph.protocol.cut import HolderCut, ServerCut, gradient_of, leaf
from veilgraph.protocol.judge import Judge, Objective, warn_of_one_class
from veilgraph.protocol.releases import learned_graph
from veilgraph.protocol.role import Batch, LocalPart, PartyModel, Role, RoleContext

P = ParamSpec("P")


class Background:
    """A work queue on one thread, on which the server deals beside its passes."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dealer")
        self._unfinished: list[Future[object]] = []

    def submit(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue ``work`` with its arguments; pieces run in order."""
        self._unfinished.append(self._executor.submit(work, *args, **kwargs))

    def check(self) -> None:
        """Raise the error of the first piece of work that has failed since the last check."""
        while self._unfinished and self._unfinished[0].done():  # on one thread they end in their order
            self._unfinished.pop(0).result()

    def close(self) -> None:
        """Wait for all queued work, and end the thread."""
        self._executor.shutdown(wait=True)


class Server(Role):
    """Sees combined (or, where the job says so, single) embeddings and their gradients; deals masks it never uses."""

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        job = vertical(session.settings)
        self._model, combine, dtype = job.model, job.model.combine, session.dtype
        network = ServerNetwork(self._model, len(session.holders), session.streams, dtype)
        self._network = network.to(session.device)
        self.model = PartyModel(session, {"server": self._network})
        masked, bits, device = combine.is_masked, combine.bits, session.device
        self._cut = ServerCut(session.link, session.holders, masked=masked, bits=bits, dtype=dtype, device=device)
        self._weight_total: Tensor | None = None
        self._publishes_once = job.publishes_once
        self._pieces: list[list[Tensor]] = []
        self._sent: list[Tensor] = []
        self._dealer: Dealer | None = None
        self._background = Background()

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session = self.session
        hellos, start = agree_on_start(session, held, alignment=session.alignment)
        self.allow_steps(hellos)
        self.nodes = nodes = hellos[session.holders[0]].nodes
        if self._network.combine.needs_weight:
            self._weight_total = self._cut.weight_total(nodes).clamp_min(1e-12)
        if self._model.initial.method == "collaborative":
            features = {holder: hellos[holder].features for holder in session.holders}
            dim = self._model.dim
            self._dealer = Dealer(session.link, features, nodes, dim, session.secrets, device=session.device)
            self._dealer.send_seeds()
            self._queue_deal(Direction.FORWARD, 0)
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Deal for the next products, combine what holders publish in every round, and send the deep output."""
        has_changed = self._embeds_now()
        self._background.check()
        if has_changed and self._learns:  # while the holders use one product: the next two
            self._queue_deal(Direction.BACKWARD, self.embed_step)
            self._queue_deal(Direction.FORWARD, self.embed_step + 1)
        generator = self._dropout(epoch)
        rounds, weight_total = self._model.rounds, self._weight_total
        self._shape = (self.nodes, self._model.dim)
        if self.batch is not None:
            self._shape = (len(self.batch.rows), self._model.dim)
            weight_total = None if weight_total is None else weight_total[self.batch.rows]
        is_new, before = has_changed or not self._publishes_once, self._pieces
        self.in_lockstep = is_new  # what was published before a checkpoint does not show that all have it
        self._pieces, self._sent = [], []
        for round_ in range(1, rounds + 1):
            if not is_new:
                published = before[round_ - 1]
            elif self._network.combine.linear:
                published = [self._cut.total(step, round_, self._shape)]
            else:
                published = self._cut.each(step, round_, self._shape)
            pieces = [leaf(piece) for piece in published]
            self._pieces.append(pieces)
            combined = self._network.merge(pieces, weight_total)
            if round_ < rounds:
                if is_new:
                    self._cut.send_combined(step, round_, combined)
            else:
                combined = self._network.deep(combined, generator)
                self._cut.send_combined(step, round_, combined, to=[self.session.settings.data.label_party])
            self._sent.append(combined)

    @override
    def backward(self, step: int) -> None:
        label_party = self.session.settings.data.label_party
        shape = tuple(self._sent[-1].shape)
        gradient = receive_as(self.session.link, label_party, Tag(Kind.GRADIENT, step), shape, self.session.dtype)
        gradient = gradient.to(self.session.device)
        for round_ in range(self._model.rounds, 0, -1):
            if round_ < self._model.rounds:
                gradient = self._cut.gradient_total(step, round_, self._shape)
            backward(zero_with_gradients([self._sent[round_ - 1]], [gradient]))
            self._cut.send_gradients(step, round_, [gradient_of(piece) for piece in self._pieces[round_ - 1]])
        self._changed()

    @override
    def close(self) -> None:
        self._background.close()

    def _queue_deal(self, direction: Direction, step: int) -> None:
        def deal(dealer: Dealer) -> None:
            with self.session.trace.span(f"deal {direction.name.lower()}", step=step):
                dealer.deal(direction, step)

        if self._dealer is not None:
            self._background.submit(deal, self._dealer)


class _BatchPass:
    """A holder's passes in a job in batches: neighbourhoods drawn at home, over an h^0 of all nodes.

    h^0 stays the same for a period of steps, on the CPU, so that nobody sees which nodes a holder needs. Its gradients
    add up at home meanwhile; W takes their mean at the end of the period.
    """

    def __init__(
        self, session: RoleContext, network: HolderNetwork, adjacency: Adjacency, settings: LocalSettings
    ) -> None:
        self._network, self._streams, self._device = network, session.streams, session.device
        self._sampler = Sampler(adjacency, settings.hops, settings.fanout)
        self._one_hop = Sampler(adjacency, 1, None)
        self._gradient: Tensor | None = None
        self._local: Tensor | None = None

    def train(self, h0: Tensor, batch: Batch, epoch: int, generator: torch.Generator | None) -> Tensor:
        """Compute what the holder publishes for a training batch from its h^0 [N, d]: Tensor[B, d], with gradients."""
        draws = self._streams.generator("neighbours", epoch, batch.index)
        around = self._sampler.around(batch.rows, draws)
        self._nodes, self._leaf = around.nodes, leaf(h0.index_select(0, around.nodes).to(self._device))
        started = self._network.start(self._leaf, generator)
        self._output = self._network.contribute_batch(started, around, batch.rows, generator)
        return self._output

    def infer(self, h0: Tensor, batch: Batch) -> Tensor:
        """Compute what it publishes for an inference batch, from all neighbours: Tensor[B, d]; from batch 0 on."""
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
        """Add up ∂L/∂h^0 by the gradient of what ``train`` published; its mean [N, d] at a period's end, else None."""
        backward(zero_with_gradients([self._output], [gradient]))
        if self._gradient is None:
            self._gradient = torch.zeros_like(h0)
        if self._leaf.grad is not None:
            self._gradient.index_add_(0, self._nodes, self._leaf.grad.to(h0))
        if not batch.period:
            return None
        total, self._gradient = self._gradient, None
        return total.div_(batch.period)


class DataHolder(Role):
    """Holds private features and edges. Messages are about the C common nodes.

    Its other nodes take part in its local hops, with its own t, and no message tells of them (alignment tells how many
    ids it has).
    """

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        job = vertical(session.settings)
        model = job.model
        self.adjacency = Adjacency.from_graph(graph, session.dtype, relational=job.inputs.is_relational)
        own = self.adjacency, session.streams, session.custom, graph.common
        network = HolderNetwork(model, len(session.holders), *own)
        self._network = network.to(session.device)
        self.nodes = graph.common
        self._shape = (graph.common, model.dim)
        self._rounds, self._publishes_once, self._is_joint = model.rounds, job.publishes_once, model.initial.is_joint
        self._embedding: InitialEmbedding
        self._own: Individual | None = None
        self._is_set_up = False
        self._batches = None
        if session.settings.train.batch_size is not None:
            self._batches = _BatchPass(session, self._network, self.adjacency, model.local)
        self._cut: HolderCut
        self._h0: Tensor

    def local_part(self) -> LocalPart:
        """The local models, graph and sizes with which several machines of the holder can compute for it."""
        model, holders = vertical(self.session.settings).model, len(self.session.holders)
        return LocalPart(self._network.local, self.adjacency, model.local, model.dim, holders)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph, job = self.session, self.graph, vertical(self.session.settings)
        settings, combine = job.model.initial, job.model.combine
        joint, shared = settings.is_joint, settings.method == "collaborative"
        common = rows_between(graph.features, 0, graph.common)
        bits = fractional_bits(common) if settings.feature_bits is None else settings.feature_bits
        steps, refuses = self._affordable_steps(begins=self._learns and not held)
        hellos, start = agree_on_start(
            session,
            held,
            nodes=graph.common,
            features=graph.num_features if joint else 0,
            feature_bits=bits if shared else 0,
            alignment=session.alignment,
            refuses=session.refuses or refuses,
            steps=steps,
        )
        self.allow_steps(hellos)
        masks = PairwiseMasks.agree(session.link, session.holders, session.secrets, rounding_key=session.rounding_key)
        hides = masks if combine.is_masked else None
        self._cut = HolderCut(session.link, hides, combine.bits, session.dtype, session.device)
        if self._network.weight is not None:
            self._cut.publish_weight(self._network.weight)
        self._embedding = build_embedding(
            EmbeddingSession(
                link=session.link,
                settings=settings,
                matrix=common if joint else graph.features,
                features={holder: hellos[holder].features for holder in session.holders},
                feature_bits=max(hellos[holder].feature_bits for holder in session.holders),
                dim=job.model.dim,
                masks=masks,
                streams=session.streams,
                dtype=session.dtype,
                device=session.device,
                trace=session.trace,
            )
        )
        if joint and graph.common < graph.num_nodes:
            rows = rows_between(graph.features, graph.common, graph.num_nodes)
            self._own = Individual(settings, rows, job.model.dim, session.streams, OWN_NODES, session.dtype)
        self._is_set_up = True
        self.model = _HolderModel(session, self._networks(), self._network.rates(), self._embedding, self._own)
        return start

    def _networks(self) -> dict[str, nn.Module]:
        return {"holder": self._network}

    def _affordable_steps(self, *, begins: bool) -> tuple[int | None, str]:
        """Number of training steps the budget allows, None: any, and why this party takes no part, or ""."""
        publisher = self.session.publisher
        if refuses := publisher.refusal():
            return None, refuses
        steps = publisher.affordable_steps()
        if begins and steps == 0:
            refuses = (
                f"a total ε of {publisher.budget:g} and this noise allow no training step beside the inference; allow "
                "a larger total (privacy.epsilon_total, limits.max_epsilon) or add more noise"
            )
        return steps, refuses

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Compute h^0 if its weights have changed, and publish embeddings of all rounds, or of the batch."""
        generator = self._dropout(epoch)
        has_changed = self._embeds_now()
        # As at the server; but on the way back a joint h^0 needs all holders.
        self.in_lockstep = has_changed or not self._publishes_once or self._is_joint
        if has_changed:
            self._h0 = torch.empty(0)  # so that the old one is not kept beside the new
            self._h0 = self._embedding.embed(self.embed_step, learns=self._learns)
            if self._own is not None:
                self._h0 = torch.cat([self._h0, self._own.embed(self.embed_step, learns=self._learns)])
            if self.batch is None:
                self._h0 = self._h0.to(self.session.device)
        passes, batch = self._batches, self.batch
        if passes is not None and batch is not None:
            h0 = self._h0
            self._cut.publish(
                step, 1, passes.infer(h0, batch) if epoch is None else passes.train(h0, batch, epoch, generator)
            )
        elif not self._publishes_once:
            self._publish(step, generator)
        elif has_changed:
            with torch.set_grad_enabled(self._learns):  # the training step that follows goes back from here
                self._publish(step, None)

    def _publish(self, step: int, generator: torch.Generator | None) -> None:
        """Run all rounds from h^0, publish what goes to COMBINE, and keep what ``backward`` needs."""
        self._h0_leaf = leaf(self._h0)
        self._started = self._network.start(self._h0_leaf, generator)
        self._initial = leaf(self._started)
        self._inputs, self._outputs = [self._initial], list[tuple[Tensor, Tensor | None]]()
        for round_ in range(1, self._rounds + 1):
            output, own = self._network.contribute(round_, self._inputs[-1], self._initial, generator)
            self._outputs.append((output, own))
            self._cut.publish(step, round_, output)
            if round_ < self._rounds:
                self._inputs.append(leaf(next_input(self._cut.combined(step, round_, self._shape), own)))

    @override
    def backward(self, step: int) -> None:
        """Propagate back the gradients of what was published, from the last round on, and learn the initial weights."""
        if self._batches is not None and self.batch is not None:
            published = self._cut.gradient(step, 1, (len(self.batch.rows), self._shape[1]))
            if (mean := self._batches.backward(published, self._h0, self.batch)) is not None:
                self._learn_initial(mean)
            self._changed()
            return
        common, after = self.graph.common, None  # the gradient of the next round's input
        for round_ in range(self._rounds, 0, -1):
            output, own = self._outputs[round_ - 1]
            roots, gradients = [output], [self._cut.gradient(step, round_, self._shape).to(output.dtype)]
            if own is not None and after is not None:  # t of the own nodes went into the next round as it was
                roots.append(own)
                gradients.append(after[common:])
            backward(zero_with_gradients(roots, gradients))
            if round_ > 1:
                after = gradient_of(self._inputs[round_ - 1])
                self._cut.publish_gradient(step, round_ - 1, after[:common])
        backward(zero_with_gradients([self._started], [gradient_of(self._initial)]))
        self._learn_initial(gradient_of(self._h0_leaf).cpu())
        self._changed()

    def _learn_initial(self, gradient: Tensor) -> None:
        """Update the initial weights with ∂L/∂h^0, Tensor[N, d], of common nodes and of the holder's own."""
        if self._own is not None:
            self._own.learn(self.embed_step, gradient[self.graph.common :])
            gradient = gradient[: self.graph.common]
        self._embedding.learn(self.embed_step, gradient)

    @override
    def close(self) -> None:
        if self._is_set_up:
            self._embedding.close()


class _HolderModel(PartyModel):
    """A holder's model: its networks, and its part of the initial embedding's weights under ``initial.``."""

    def __init__(
        self,
        session: RoleContext,
        networks: Mapping[str, nn.Module],
        rates: Mapping[nn.Parameter, float],
        embedding: InitialEmbedding,
        own: Individual | None,
    ) -> None:
        def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            more = {} if own is None else {"own_weight": own.weight}
            return {f"initial.{name}": tensor.data for name, tensor in {**tensors, **more}.items()}

        weights, state = (lambda: named(embedding.weights())), (lambda: named(embedding.tensors()))
        super().__init__(session, networks, rates=rates, besides=weights, in_training=state)
        self.trained += [*embedding.parameters(), *([] if own is None else own.parameters())]

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        own, weights = "initial.own_weight", self.weights()
        if own in weights and own not in saved:
            # All nodes were common in training. Zero is the mean h^0 where features are standardised.
            saved = {**saved, own: torch.zeros_like(weights[own])}
        if {name for name in saved if ".related." in name} != {name for name in weights if ".related." in name}:
            raise RunError(
                f"{self.session.link.party}: the relations of its edges are others than those that the model was "
                "trained with, which has weights for each; restore them and their hops, or train anew",
                code="relations",
                party=self.session.link.party,
            )
        super().load_weights({name: tensor for name, tensor in saved.items() if name != own or name in weights})


class LabelHolder(DataHolder, Judge):
    """Holds labels of common nodes and their split; neither is sent, but the gradient of z_L tells of them.

    With ``label_privacy`` it trains and chooses by labels that were perturbed once, before the first step.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, session.dtype)
        warn_of_one_class(common, session.settings.train)
        self._common = common
        self._common_adjacency = self.adjacency if common is graph else Adjacency.from_graph(common, session.dtype)
        model = vertical(session.settings).model
        self._width = deep_width(model, len(session.holders))
        self._head: OutputHead = build_head(
            self._width, self._objective.classes, model.head, streams=session.streams, dtype=session.dtype
        ).to(session.device)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        is_perturbed = self.session.settings.label_privacy is not None
        if self._learns and not is_perturbed:
            check_classes(self._common)
        start = super().setup(held)
        if self._learns and is_perturbed:  # the loss and what others see of the judgement; test nodes keep theirs
            learned, transition = learned_graph(self.session, self._common)
            self._objective = Objective(learned, self.session.settings.train, self.session.dtype, transition)
        return start

    @override
    def _affordable_steps(self, *, begins: bool) -> tuple[int | None, str]:
        """As a holder's; a prediction with label privacy needs no budget, for it perturbs no label."""
        if isinstance(self.session.publisher, LabelPublisher) and not self._learns:
            return None, ""
        return super()._affordable_steps(begins=begins)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        super().forward(step, epoch)
        batch, common = self.batch, self.graph.common
        rows = common if batch is None else len(batch.rows)
        self._deep = leaf(self._cut.combined(step, self._rounds, (rows, self._width)))
        logits = self._head(self._deep, self._common_adjacency, self._dropout(epoch, "head dropout")).cpu()
        if batch is None or epoch is not None:
            self.logits = logits
            return
        if batch.index == 0:
            self._inferred = torch.empty(common, logits.shape[1], dtype=logits.dtype)
        self._inferred[batch.rows] = logits
        self.logits = self._inferred

    @override
    def backward(self, step: int) -> None:
        rates = "train.learning_rate, model.initial.learning_rate or model.local.learning_rate"
        backward(self.training_loss(rates))
        self._cut.publish_deep_gradient(step, gradient_of(self._deep))
        super().backward(step)

    @override
    def _current_loss(self) -> Tensor:
        return self._objective.training_loss(self.logits, None if self.batch is None else self.batch.rows)

    @override
    def _networks(self) -> dict[str, nn.Module]:
        return {**super()._networks(), "head": self._head}
