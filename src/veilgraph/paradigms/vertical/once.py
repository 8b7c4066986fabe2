"""``privacy.schedule: once``: what every other holder releases a single time, for the label holder to learn from alone.

Nothing leaves the label holder. What it was given is kept, so that later sessions on the same data release nothing:
every holder numbers its releases, and a new alignment has a new one. No value of its data decides it.

The label holder of ``privacy.schedule: once``: it learns alone, of its own data and of what the others released.

Released rows are anybody's: what is computed from them costs no ε. Nothing leaves the label holder.
"""

from __future__ import annotations

import logging
import math
from abc import ABC
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

from veilgraph.core.errors import BudgetSpent
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.features import choose_rows, in_order, is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.ring import GUARD_BITS
from veilgraph.nn.combine import build_combine
from veilgraph.nn.layers import Adam, build_deep, build_head, copied_state
from veilgraph.nn.local.build import build_local
from veilgraph.nn.noisy_rows import Axes, JointNetwork, Whitening, class_evidence, shrunk
from veilgraph.nn.propagate import Adjacency, SparseMatrix
from veilgraph.paradigms.vertical.network import HolderNetwork, Individual, ModelSettings
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy.aggregation import bound_degrees, pair_matrix, too_many_neighbours
from veilgraph.privacy.event import Joint
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.release_cache import parts
from veilgraph.protocol.agreement import Hello, Point, Start, agreed_release, alone, room_said
from veilgraph.protocol.aligning import beside, receive_columns, send_columns
from veilgraph.protocol.bounds import agree_within_bounds
from veilgraph.protocol.cut import GRADIENT_BITS, HolderCut, ServerCut, gradient_of, leaf
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.judge import Judge, Objective, warn_of_one_class
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import KeptRelease
from veilgraph.protocol.role import IdleRole, PartyModel, RoleContext


def random_projection(columns: int, dim: int, streams: LearningStreams, dtype: torch.dtype) -> Tensor:
    """A random orthonormal [F, d] matrix, of no data: it keeps lengths and angles, about or, where F ≤ d, exactly."""
    generator = streams.generator("projection")
    tall = torch.randn(max(columns, dim), min(columns, dim), dtype=torch.float64, generator=generator)
    basis, _ = torch.linalg.qr(tall)
    projection: Tensor = basis if columns >= dim else basis.T
    return projection.to(dtype)


def project(features: Tensor, projection: Tensor) -> Tensor:
    """features·projection, Tensor[N, d], in the layout that the features have.

    The faster one for their density hangs on all nodes' values: one node's would be in the last bits of every row.
    """
    features = features.to(projection.dtype)
    return torch.from_numpy(to_scipy(features) @ projection.numpy()) if is_sparse(features) else features @ projection


def fixed_embedding(
    projected: Tensor, adjacency: Adjacency, settings: ModelSettings, streams: LearningStreams
) -> Tensor:
    """K hops of the job's weightless local model over projected features, Tensor[N, d]; edges are after any bound."""
    local = build_local(
        settings.local, settings.dim, 1, last_round=True, streams=streams, round=1, dtype=projected.dtype
    )
    with torch.no_grad():
        embedding: Tensor = local(projected, projected, adjacency, None)
    return embedding


def embedding_to_release(graph: PartyGraph, session: RoleContext) -> Tensor:
    """The rows of the common nodes before they are clipped and noised: Tensor[C, d]."""
    job = session.settings
    edges, weight = released_edges(graph, job)
    adjacency = Adjacency.of_edges(edges, weight, graph.num_nodes, session.dtype)
    projection = random_projection(graph.num_features, vertical(job).model.dim, session.streams, session.dtype)
    projected = project(graph.features, projection)
    return fixed_embedding(projected, adjacency, vertical(job).model, session.streams)[: graph.common]


def released_edges(graph: PartyGraph, job: JobSettings) -> tuple[Tensor, Tensor | None]:
    """The edges that are propagated, and their weights: all, or those that the degree bound keeps.

    With unit ``node-edges`` none is left out, for which no proof holds: ``too_many_neighbours`` refuses.
    """
    edges, weight, privacy = graph.edge_index, graph.edge_weight, job.privacy
    if privacy is None or privacy.degree_bound is None or privacy.unit == "node-edges":
        return edges, weight
    kept = bound_degrees(edges, graph.num_nodes, privacy.degree_bound)
    return edges[:, kept], None if weight is None else weight[kept]


def off_the_ring(job: JobSettings, graph: PartyGraph) -> str:
    """Why rows with a share of a sum's noise are no exact numbers of the ring, a setting first; else empty."""
    planned = plan(job, graph.party, graph.common)
    if planned is None or planned.joint is None or planned.multiplier == 0:
        return ""
    model, why = vertical(job).model, "noise that is made jointly is summed exactly, and this much of it takes"
    needed, room = _bits_of(planned.mechanism("embeddings"), planned.joint)
    if not needed <= model.combine.bits <= room:
        return (
            f"model.combine.bits={model.combine.bits}: {why} {needed} to {room} bits; set them so, or take another "
            "privacy.clip or noise where they cannot be"
        )
    needed, room = _bits_of(planned.mechanism("gradients"), planned.joint)
    if model.rounds > 1 and not needed <= GRADIENT_BITS <= room:
        return (
            f"privacy.gradient_clip={planned.settings.gradient_clip:g}: {why} {needed} to {room} bits where gradients "
            f"have {GRADIENT_BITS}; take another clip, or other noise"
        )
    return ""


def _bits_of(share: Mechanism, joint: Joint) -> tuple[int, int]:
    """Fractional bits that hold a share of a noise exactly: at least, and at most, for so many holders' sum."""
    largest = share.clip + 14 * math.sqrt(share.variance)  # no value of ``privacy.noise`` is further out
    room = 63 - GUARD_BITS - (joint.holders - 1).bit_length() - math.ceil(math.log2(largest))
    return round(-math.log2(share.cell)), room


def _to_length_1(job: JobSettings, nodes: int | None = None) -> Tensor:
    """Tensor[w] float64: what the label holder's released columns are multiplied by, as own rows may be longer."""
    hops = None if job.privacy is None else job.privacy.aggregation
    own = next((plan.own_length for plan in _plans(job, nodes)), 0.0)
    each = torch.ones(vertical(job).released_dim, dtype=torch.float64)
    if hops is not None and own:
        each[: hops.dim] = 1 / own
    return each.repeat(_pieces(job))


def noise_variance(session: RoleContext, nodes: int) -> Tensor:
    """Tensor[w] float64: of the noise in each released column, public; James-Stein's shrinking makes it less."""
    job = session.settings
    variances = [plan.mechanism("embeddings").variance for plan in _plans(job, nodes) if plan.multiplier > 0]
    divisor = vertical(job).divisor or 1
    return sum(variances) / _pieces(job) / divisor / divisor * _to_length_1(job, nodes).square()


def _plans(job: JobSettings, nodes: int | None) -> list[Plan]:
    plans = (paradigm_of(job).privacy.plan(job, party, nodes) for party in job.duties.publishing)
    return [each for each in plans if each is not None]


def _pieces(job: JobSettings) -> int:
    """How many holders' rows lie side by side."""
    return 1 if vertical(job).model.combine.linear else len(job.duties.publishing)


ROUND: Final = 1  # of the one release


class OnceRole(IdleRole, ABC):
    """A party of such a job, with the number of its session's release, and whether it ``is_new``, once set up."""

    def __init__(self, session: RoleContext, graph: PartyGraph | None) -> None:
        super().__init__(session)
        self._kept = None
        if graph is not None:
            graph.validate()
            self._kept = KeptRelease(session.keeper, session.alignment, graph)
        self.release_number = 0
        self.is_new = False
        job = session.settings
        self._strategy = build_combine(vertical(job).model.combine)
        self._width = self._strategy.output_dim(vertical(job).released_dim, len(job.duties.publishing))

    def _agree(
        self, nodes: int, *, gives: int = 0, affordable: int | None = None, refuses: str = ""
    ) -> dict[PartyId, Hello]:
        """Agrees on the release, of so many columns of this party. Nobody states checkpoints: they depend on labels."""
        session = self.session
        mine = Hello(
            job=session.settings.hash(),
            nodes=nodes,
            features=gives,
            alignment=session.alignment,
            refuses=session.refuses or refuses,
            steps=room_said(affordable),
            release=self._newest(),
            restarts=session.restarts,
        )
        hellos = agree_within_bounds(session, mine)
        self.release_number, self.is_new = agreed_release(hellos, session.holders)
        spent = [holder for holder in session.settings.duties.publishing if hellos[holder].steps == 0]
        if self.is_new and spent:
            raise BudgetSpent(
                f"a new release is needed and the budget of {', '.join(spent)} has no room for one; allow a larger "
                "privacy.epsilon_total in a new run, or leave room for predictions with privacy.predictions; or, where "
                "it is what was ever released (veilgraph budget JOB --party), a larger limits.max_epsilon there, or "
                "protect what that is about (privacy.unit)",
                code="no-room",
            )
        return hellos

    def _newest(self) -> int:
        """Number of its newest release, negative if that is of another alignment, 0 for none."""
        return 0 if self._kept is None else self._kept.number

    @override
    def keep(self) -> None:
        if self.is_new and self._kept is not None:
            self._kept.replace(self.release_number, self._given())

    def _given(self) -> Mapping[str, Tensor]:
        return {}


class ReleasingHolder(OnceRole):
    """Projects its features with fixed random weights, propagates over its own edges, and releases the rows."""

    trains = False

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self.graph = graph

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, job = self.session, vertical(self.session.settings)
        self._agree(
            self.graph.common,
            gives=self.graph.num_features if job.gives_columns else 0,
            affordable=session.publisher.affordable_releases(),
            refuses=too_many_neighbours(job.inputs.degree_rules.get(session.link.party), self.graph)
            or off_the_ring(job, self.graph),
        )
        if not self.is_new:
            return alone([], session.nonce())
        if job.gives_columns:
            features = choose_rows(self.graph.features, torch.arange(self.graph.common)).to(session.dtype)
            send_columns(session.link, job.data.label_party, features)
        masks = None
        if job.passes.is_masked:
            masks = PairwiseMasks.agree(
                session.link, job.duties.publishing, session.secrets, rounding_key=session.rounding_key
            )
        cut = HolderCut(session.link, masks, job.model.combine.bits, session.dtype, session.publisher)
        graph, places = self._ordered()
        if job.privacy is not None and (hops := job.privacy.aggregation) is not None:
            projection = random_projection(graph.num_features, hops.dim, session.streams, session.dtype)
            pairs = pair_matrix(*released_edges(graph, job), graph.num_nodes)
            released = cut.release_sums(project(graph.features, projection), pairs, self.graph.common)[places]
        else:
            rows = embedding_to_release(graph, session)[places]
            release = cut.release(0)
            released = rows if release is None else release(rows)
        cut.publish(0, ROUND, released / job.sent_divisor)
        return alone([], session.nonce())

    def _ordered(self) -> tuple[PartyGraph, Tensor]:
        """The graph in the publisher's order of nodes, the same bits in every job, and where common ones are:
        Tensor[C].
        """
        order, graph = self.session.publisher.order, self.graph
        if order is None:
            return graph, torch.arange(graph.common)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        return in_order(graph, order), places[: graph.common]


class ReleaseServer(OnceRole):
    """Adds up, or joins, what the holders released, and passes it on."""

    trains = False

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session, None)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, job = self.session, vertical(self.session.settings)
        hellos = self._agree(0)
        if self.is_new:
            shape, bits = (hellos[session.holders[0]].nodes, job.released_dim), job.model.combine.bits
            cut = ServerCut(
                session.link, job.duties.publishing, masked=job.passes.is_masked, bits=bits, dtype=session.dtype
            )
            linear = self._strategy.linear
            pieces = [cut.total(0, ROUND, shape)] if linear else cut.each(0, ROUND, shape)
            combined = self._strategy.merge(pieces) / job.left_divisor
            cut.send_combined(0, ROUND, combined, to=[job.data.label_party])
        return alone([], session.nonce())


_log: Final = logging.getLogger("veilgraph")

_STEPS: Final = 300
_PATIENCE: Final = 20  # evaluations, at every second step, without a better one, after which it stops
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

    It learns once, after the holder's own network, and keeps the step that serves validation nodes best. Where its
    columns are few and training nodes many the best of many steps by a few nodes is luck: there it keeps the mean of
    its weights over all steps but the first (Polyak & Juditsky 1992). ``noise_variance`` is Tensor[w], w a multiple of
    d.
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
    every hop a second network learns from all columns together, once the first has. ``graph`` has the columns that it
    was given, once set up; ``released`` is Tensor[C, width], own rows as long as those that are summed.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self.graph = graph
        kept: Mapping[str, Tensor] = {} if self._kept is None else self._kept.tensors
        self.released = kept.get(_ROWS)
        self._columns = {name: tensor for name, tensor in kept.items() if name != _ROWS}
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, session.dtype)
        warn_of_one_class(common, session.settings.train)
        self._noise_variance = noise_variance(session, graph.common)

    def _begin(self) -> None:
        session, graph = self.session, self.graph
        model, streams, dtype = vertical(session.settings).model, session.streams, session.dtype
        common, adjacency = graph.common_part(), Adjacency.from_graph(graph, dtype)
        self._common_adjacency = adjacency if common is graph else Adjacency.from_graph(common, dtype)
        party = session.link.party
        self._initial = Individual(model.initial, graph.features, model.dim, streams, party, dtype)
        self._network = HolderNetwork(model, 1, adjacency, streams, common=graph.common)
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
            trained=[*own, self._initial.weight],
            besides=lambda: {"initial.weight": self._initial.weight.data},
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
            self.released = sent * _to_length_1(session.settings, nodes).to(sent)
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
        """In training, and with noise in every hop, own logits alone; else with what released rows add."""
        generator = self._dropout(epoch)
        self._h0 = leaf(self._initial.embed(step, learns=self._learns))
        started = self._network.start(self._h0, generator)
        own, _ = self._network.contribute(ROUND, started, started, generator)
        deep = self._deep(own, generator)
        self.logits = self._head(deep, self._common_adjacency, self._dropout(epoch, "head dropout"))
        if epoch is None and self.released is not None:
            log_probabilities, opinion = self._objective.opinion(self.logits)
            self._alone = log_probabilities
            if self._joint is None:
                self.logits = log_probabilities + class_evidence(self.released, opinion, self._noise_variance)
            elif not self._learns:
                self.logits = self._chosen(self._joint, self.released, log_probabilities, opinion)

    def _chosen(self, joint: JointLearner, released: Tensor, alone: Tensor, opinion: Tensor) -> Tensor:
        """What serves the validation nodes best: of own and joint network one, or both as if they were independent.

        The own one goes with as much evidence as serves: sums of several hops repeat each other. Both together also
        without, for the joint network has heard the same rows.
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
        self._initial.learn(step, gradient_of(self._h0))


def _part(party: PartyId, place: int) -> str:
    return f"columns/{party}/{place}"
