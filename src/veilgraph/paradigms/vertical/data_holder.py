"""A data holder: initial embedding, local hops, contributions to COMBINE, and the way back (VFGNN CG1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rows import rows_between
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.ring import fractional_bits
from veilgraph.nn.handed import handed
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.batch_pass import BatchPass
from veilgraph.paradigms.vertical.initial.build import build_embedding
from veilgraph.paradigms.vertical.initial.method import EmbeddingSession, InitialEmbedding
from veilgraph.paradigms.vertical.network import HolderNetwork, next_input
from veilgraph.paradigms.vertical.released import off_the_ring
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.batches import Batch
from veilgraph.protocol.cut import HolderCut, gradient_of, leaf
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.spreading import LocalPart
from veilgraph.protocol.stated import agree_within


class DataHolder(Role):
    """Holds private features and edges.

    Messages are about the C common nodes. Nodes that only this holder knows take part in its local hops, from round
    to round with its own t, and no message of the job tells of them (alignment tells how many ids a holder has).

    Args:
        session: of this party.
        graph: its own data, validated.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        model = vertical(session.settings).model
        self.adjacency = Adjacency.from_graph(graph, session.dtype, relational=session.settings.is_relational)
        self._network = HolderNetwork(
            model,
            len(session.holders),
            self.adjacency,
            session.streams,
            session.dtype,
            session.custom,
            graph.common,
            is_summed=vertical(session.settings).sums_releases,
        ).to(session.device)
        self.nodes = graph.common
        self._shape = (graph.common, model.dim)
        self._rounds, self._publishes_once = model.rounds, vertical(session.settings).publishes_once
        self._embedding: InitialEmbedding
        self._is_set_up = False
        self._batches: BatchPass | None = None
        self._cut: HolderCut
        self._h0: Tensor

    @override
    def local_part(self) -> LocalPart:
        model, holders = vertical(self.session.settings).model, len(self.session.holders)
        return LocalPart(self._network.local, self.adjacency, model.local, model.dim, holders)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph = self.session, self.graph
        settings = vertical(session.settings).model.initial
        has_own = graph.common < graph.num_nodes
        joint, shared = settings.is_joint, settings.method == "collaborative"
        common = rows_between(graph.features, 0, graph.common)
        stated = vertical(session.settings).feature_bits
        bits = fractional_bits(common) if stated is None else stated
        steps, refuses = self._afford(begins=self._learns and not held)
        mine = Hello(
            job=session.settings.hash(),
            nodes=graph.common,
            features=graph.num_features if joint else 0,
            feature_bits=bits if shared else 0,
            checkpoints=list(held),
            restarts=session.restarts,
            nonce=session.nonce(),
            alignment=session.alignment,
            refuses=session.refuses or refuses or off_the_ring(session.settings, graph),
            steps=steps,
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos)
        self.allow_steps(hellos)
        masks = PairwiseMasks.agree(session.link, session.holders, session.secrets, rounding_key=session.rounding_key)
        combine = vertical(session.settings).model.combine
        self._cut = HolderCut(
            session.link,
            masks if combine.is_masked else None,
            combine.bits,
            session.dtype,
            session.publisher,
            session.device,
        )
        if self._network.weight is not None:
            self._cut.publish_weight(self._network.weight)
        self._embedding = build_embedding(
            EmbeddingSession(
                link=session.link,
                settings=settings,
                matrix=common if joint else graph.features,
                features={holder: hellos[holder].features for holder in session.holders},
                feature_bits=max(hellos[holder].feature_bits for holder in session.holders),
                dim=vertical(session.settings).model.dim,
                masks=masks,
                streams=session.streams,
                dtype=session.dtype,
                device=session.device,
                trace=session.trace,
                own=rows_between(graph.features, graph.common, graph.num_nodes) if joint and has_own else None,
            )
        )
        self._is_set_up = True
        return start

    def _afford(self, *, begins: bool) -> tuple[int | None, str]:
        """Training steps that the budget allows, and why this party takes no part where it allows too few."""
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
        generator = self.dropout(epoch)
        has_changed = self._embeds_now()
        if has_changed:
            self._h0 = torch.empty(0)  # so that the old one is not kept beside the new
            self._h0 = self._embedding.embed(self.embed_step, learns=self._learns)
            if self.batch is None:
                self._h0 = self._h0.to(self.session.device)
        if self.batch is not None:
            self._forward_batch(self.batch, step, epoch, generator)
        elif not self._publishes_once:
            self._publish(step, generator)
        elif has_changed:
            with torch.set_grad_enabled(self._learns):  # the training step that follows goes back from here
                self._publish(step, None)

    def _publish(self, step: int, generator: torch.Generator | None) -> None:
        self._h0_leaf = leaf(self._h0)
        self._started = self._network.start(self._h0_leaf, generator)
        self._initial = leaf(self._started)
        self._inputs, self._outputs = [self._initial], list[tuple[Tensor, Tensor | None]]()
        for round_ in range(1, self._rounds + 1):
            output, own = self._network.contribute(
                round_, self._inputs[-1], self._initial, generator, self._cut.release(step)
            )
            self._outputs.append((output, own))
            self._cut.publish(step, round_, output)
            if round_ < self._rounds:
                self._inputs.append(leaf(next_input(self._cut.combined(step, round_, self._shape), own)))

    def _forward_batch(self, batch: Batch, step: int, epoch: int | None, generator: torch.Generator | None) -> None:
        if self._batches is None:
            local = vertical(self.session.settings).model.local
            session = self.session
            self._batches = BatchPass(
                self._network, self.adjacency, local.hops, local.fanout, session.streams, session.device
            )
        if epoch is None:
            output = self._batches.infer(self._h0, batch)
        else:
            output = self._batches.train(self._h0, batch, epoch, generator)
        self._cut.publish(step, 1, output)

    def _backward_batch(self, passes: BatchPass, batch: Batch, step: int) -> None:
        shape = (len(batch.rows), self._shape[1])
        gradient = passes.backward(self._cut.gradient(step, 1, shape), self._h0, batch)
        if gradient is not None:
            self._embedding.learn(self.embed_step, gradient)
        self._changed()

    @override
    def backward(self, step: int) -> None:
        if self.batch is not None and self._batches is not None:
            self._backward_batch(self._batches, self.batch, step)
            return
        common, after = self.graph.common, None  # the gradient of the next round's input
        for round_ in range(self._rounds, 0, -1):
            output, own = self._outputs[round_ - 1]
            roots, gradients = [output], [self._cut.gradient(step, round_, self._shape).to(output.dtype)]
            if own is not None and after is not None:  # t of the own nodes went into the next round as it was
                roots.append(own)
                gradients.append(after[common:])
            backward(handed(roots, gradients))
            if round_ > 1:
                after = gradient_of(self._inputs[round_ - 1])
                self._cut.publish_gradient(step, round_ - 1, after[:common])
        backward(handed([self._started], [gradient_of(self._initial)]))
        self._embedding.learn(self.embed_step, gradient_of(self._h0_leaf).cpu())
        self._changed()

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"holder": self._network}

    @override
    def trained(self) -> list[nn.Parameter]:
        return [*super().trained(), *self._embedding.parameters()]

    @override
    def rates(self) -> dict[nn.Parameter, float]:
        return self._network.rates()

    @override
    def weights(self) -> dict[str, Tensor]:
        return {**super().weights(), **_initial(self._embedding.weights())}

    @override
    def state(self) -> dict[str, Tensor]:
        return {**super().weights(), **_initial(self._embedding.tensors())}

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        own, weights = "initial.own_weight", self.weights()
        if own in weights and own not in saved:
            # All nodes were common in training. Zero is the mean h^0 where features are standardised.
            saved = {**saved, own: torch.zeros_like(weights[own])}
        if _relations(saved) != _relations(weights):
            raise RunError(
                f"{self.session.link.party}: the relations of its edges are others than those that the model was "
                "trained with, which has weights for each; restore them and their hops, or train anew",
                code="relations",
                party=self.session.link.party,
            )
        super().load_weights({name: tensor for name, tensor in saved.items() if name != own or name in weights})

    @override
    def close(self) -> None:
        if self._is_set_up:
            self._embedding.close()


def _relations(weights: Mapping[str, Tensor]) -> set[str]:
    return {name for name in weights if ".related." in name}


def _initial(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"initial.{name}": tensor.data for name, tensor in tensors.items()}
