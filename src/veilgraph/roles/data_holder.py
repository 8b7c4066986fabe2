"""A data holder: initial embedding, local hops, contributions to COMBINE, and the way back (VFGNN CG1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.embed import EmbeddingSession, InitialEmbedding, build_embedding
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.ring import fractional_bits
from veilgraph.nn.network import CustomModel, HolderNetwork
from veilgraph.nn.propagate import Adjacency
from veilgraph.roles.agreement import Hello, agree, newest_common
from veilgraph.roles.cut import HolderCut, leaf
from veilgraph.roles.role import Role, Session


class DataHolder(Role):
    """Holds private features and edges.

    Args:
        session: of this party.
        graph: its own data, validated.
        custom: for ``local.model: custom``.
    """

    def __init__(self, session: Session, graph: PartyGraph, custom: CustomModel | None = None) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self.adjacency = Adjacency.from_graph(graph, session.dtype)
        model = session.settings.model
        self._network = HolderNetwork(
            model, len(session.holders), self.adjacency, session.streams, session.dtype, custom
        )
        self._shape = (graph.num_nodes, model.dim)
        self._rounds = model.rounds
        self._embedding: InitialEmbedding
        self._is_set_up = False
        self._cut: HolderCut
        self._h0: Tensor

    @override
    def setup(self, checkpoints: list[int]) -> int:
        session, graph = self.session, self.graph
        settings = session.settings.model.initial
        joint, shared = settings.method != "individual", settings.method == "collaborative"
        bits = fractional_bits(graph.features) if settings.feature_bits is None else settings.feature_bits
        mine = Hello(
            job=session.settings.hash(),
            nodes=graph.num_nodes,
            features=graph.num_features if joint else 0,
            feature_bits=bits if shared else 0,
            checkpoints=checkpoints,
        )
        hellos = agree(session.link, session.holders, mine)
        masks = PairwiseMasks.agree(session.link, session.holders, session.secrets)
        combine = session.settings.model.combine
        self._cut = HolderCut(session.link, masks if combine.is_masked else None, combine.bits, session.dtype)
        if self._network.weight is not None:
            self._cut.publish_weight(self._network.weight)
        self._embedding = build_embedding(
            EmbeddingSession(
                link=session.link,
                settings=settings,
                matrix=graph.features,
                features={holder: hellos[holder].features for holder in session.holders},
                feature_bits=max(hellos[holder].feature_bits for holder in session.holders),
                dim=session.settings.model.dim,
                masks=masks,
                streams=session.streams,
                dtype=session.dtype,
            )
        )
        self._is_set_up = True
        return newest_common(hellos)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        generator = self.dropout(epoch)
        if self._embeds_now():
            self._h0 = self._embedding.embed(self.embed_step, learns=self._learns)
        self._h0_leaf = leaf(self._h0)
        self._started = self._network.start(self._h0_leaf, generator)
        self._initial = leaf(self._started)
        self._inputs, self._outputs = [self._initial], list[Tensor]()
        for round_ in range(1, self._rounds + 1):
            output = self._network.contribute(round_, self._inputs[-1], self._initial, generator)
            self._outputs.append(output)
            self._cut.publish(step, round_, output)
            if round_ < self._rounds:
                self._inputs.append(leaf(self._cut.combined(step, round_, self._shape)))

    @override
    def backward(self, step: int) -> None:
        for round_ in range(self._rounds, 0, -1):
            gradient = self._cut.gradient(step, round_, self._shape)
            backward(self._outputs[round_ - 1], gradient)
            if round_ > 1:
                self._cut.publish_gradient(step, round_ - 1, gradient_of(self._inputs[round_ - 1]))
        backward(self._started, gradient_of(self._initial))
        self._embedding.learn(self.embed_step, gradient_of(self._h0_leaf))
        self._stale = True

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
        initial = {f"initial.{name}": tensor.data for name, tensor in self._embedding.tensors().items()}
        return {**super().weights(), **initial}

    @override
    def close(self) -> None:
        if self._is_set_up:
            self._embedding.close()


def gradient_of(tensor: Tensor) -> Tensor:
    """The gradient that a leaf collected, zero when nothing depends on it."""
    return tensor.new_zeros(tensor.shape) if tensor.grad is None else tensor.grad
