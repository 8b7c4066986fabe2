"""``privacy.schedule: once``: what every other holder releases a single time, for the label holder to learn from alone.

Nothing leaves the label holder. What it was given is kept, so that later sessions on the same data release nothing:
every holder numbers its releases, and a new alignment has a new one. No value of its data decides it.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import BudgetSpent, ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.graph.features import choose_rows, in_order, is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.mpc.ring import GUARD_BITS
from veilgraph.nn.combine import build_combine
from veilgraph.nn.local.build import build_local
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy.aggregation import bound_degrees, pair_matrix, too_many_neighbours
from veilgraph.privacy.event import Joint
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.protocol.agreement import Hello, Point, Start, agreed_release, alone, room_said
from veilgraph.protocol.aligning import send_columns
from veilgraph.protocol.bounds import agree_within_bounds
from veilgraph.protocol.cut import GRADIENT_BITS, HolderCut, ServerCut
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.releases import KeptRelease
from veilgraph.protocol.role import IdleRole, RoleContext


def random_projection(columns: int, dim: int, streams: LearningStreams, dtype: torch.dtype) -> Tensor:
    """A random orthonormal [F, d] matrix: it keeps lengths and angles, about or, where F ≤ d, exactly.

    A party's is the same whenever it is made, and independent of all data.
    """
    generator = streams.generator("projection")
    tall = torch.randn(max(columns, dim), min(columns, dim), dtype=torch.float64, generator=generator)
    basis, _ = torch.linalg.qr(tall)
    projection: Tensor = basis if columns >= dim else basis.T
    return projection.to(dtype)


def project(features: Tensor, projection: Tensor) -> Tensor:
    """features·projection, Tensor[N, d], in the layout that the features have.

    Not in the faster one for their density, which hangs on the values of all nodes: layouts round differently, and one
    node's values would be in the last bits of every row.
    """
    features = features.to(projection.dtype)
    return torch.from_numpy(to_scipy(features) @ projection.numpy()) if is_sparse(features) else features @ projection


def fixed_embedding(
    projected: Tensor, adjacency: Adjacency, settings: ModelSettings, streams: LearningStreams
) -> Tensor:
    """K hops of the job's weightless local model over projected features: Tensor[N, d] to Tensor[N, d].

    Every hop's weights depend on degrees alone; ``adjacency`` is after any bound on these.
    """
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


def sums_to_release(graph: PartyGraph, session: RoleContext) -> tuple[Tensor, csr_array]:
    """Rows of all nodes, each made of its own features, Tensor[N, d], and the pairs over which they are summed."""
    job = session.settings
    if job.privacy is None or job.privacy.aggregation is None:
        raise ConfigError("privacy.aggregation: the job has none; give it, or release what came of all hops")
    projection = random_projection(graph.num_features, job.privacy.aggregation.dim, session.streams, session.dtype)
    return project(graph.features, projection), pair_matrix(*released_edges(graph, job), graph.num_nodes)


def off_the_ring(job: JobSettings, graph: PartyGraph) -> str:
    """Why rows with a share of a sum's noise are no exact numbers of the ring, a setting first; else empty."""
    planned = plan(job, graph.party, graph.common)
    if planned is None or planned.joint is None or planned.multiplier == 0:
        return ""
    model = vertical(job).model
    bits = model.combine.bits
    needed, room = _bits_of(planned.mechanism("embeddings"), planned.joint)
    if not needed <= bits <= room:
        return (
            f"model.combine.bits={bits}: noise that is made jointly is summed exactly, and this much of it takes "
            f"{needed} to {room} bits; set them so, or take another privacy.clip or noise where they cannot be"
        )
    needed, room = _bits_of(planned.mechanism("gradients"), planned.joint)
    if model.rounds == 1 or needed <= GRADIENT_BITS <= room:
        return ""
    return (
        f"privacy.gradient_clip={planned.settings.gradient_clip:g}: noise that is made jointly is summed exactly, and "
        f"this much of it takes {needed} to {room} bits where gradients have {GRADIENT_BITS}; take another clip, or "
        "other noise"
    )


def _bits_of(share: Mechanism, joint: Joint) -> tuple[int, int]:
    """Fractional bits that hold a share of a noise exactly: at least, and at most, for so many holders' sum."""
    largest = share.clip + 14 * math.sqrt(share.variance)  # no value of ``privacy.noise`` is further out
    room = 63 - GUARD_BITS - (joint.holders - 1).bit_length() - math.ceil(math.log2(largest))
    return round(-math.log2(share.cell)), room


def to_length_1(job: JobSettings, nodes: int | None = None) -> Tensor:
    """Tensor[w] float64: what the columns that the label holder gets are multiplied by, so that all rows are alike.

    Own rows may be longer than those that are summed (``hop_sensitivity``), so that the same noise is less to them.
    """
    columns, hops = vertical(job).released_dim, None if job.privacy is None else job.privacy.aggregation
    plans = (paradigm_of(job).privacy.plan(job, party, nodes) for party in job.duties.publishing)
    own = next((of.own_length for of in plans if of is not None), 0.0)
    each = torch.ones(columns, dtype=torch.float64)
    if hops is not None and own:
        each[: hops.dim] = 1 / own
    return each.repeat(_pieces(job))


def noise_variance(session: RoleContext, nodes: int) -> Tensor:
    """Tensor[w] float64: of the noise in each column that the label holder has, public as job and number of nodes are.

    James-Stein's shrinking is left out of the account: it only ever makes the noise smaller.
    """
    job = session.settings
    plans = [paradigm_of(job).privacy.plan(job, party, nodes) for party in job.duties.publishing]
    variances = [of.mechanism("embeddings").variance for of in plans if of is not None and of.multiplier > 0]
    divisor = vertical(job).divisor or 1
    return sum(variances) / _pieces(job) / divisor / divisor * to_length_1(job, nodes).square()


def _pieces(job: JobSettings) -> int:
    """How many holders' rows lie side by side."""
    return 1 if vertical(job).model.combine.linear else len(job.duties.publishing)


ROUND: Final = 1
"""Of the one release."""


class OnceRole(IdleRole, ABC):
    """A party of such a job.

    Attributes:
        release_number: of the release that this session worked with, known once set up.
        is_new: whether that release was made in this session.
    """

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
        """Agrees on the release; ``gives`` is how many columns this party gives the label holder.

        Nobody states checkpoints: only the label holder has any, and how far it came depends on its labels.
        """
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
        if job.privacy is not None and job.privacy.aggregation is not None:
            released = cut.release_sums(*sums_to_release(graph, session), self.graph.common)[places]
        else:
            rows = embedding_to_release(graph, session)[places]
            release = cut.release(0)
            released = rows if release is None else release(rows)
        cut.publish(0, ROUND, released / job.sent_divisor)
        return alone([], session.nonce())

    def _ordered(self) -> tuple[PartyGraph, Tensor]:
        """The graph in the publisher's order of the nodes, so that the same data are the same bits in every job.

        Returns:
            The graph, and Tensor[C] int64, where in it the common nodes are.
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
