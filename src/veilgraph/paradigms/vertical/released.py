"""What a holder releases once, before it is clipped and noised: of which edges, and in which of two ways."""

from __future__ import annotations

import math
from typing import Final

import torch
from scipy.sparse import csr_array
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.ring import GUARD_BITS
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.fixed import fixed_embedding, project, random_projection
from veilgraph.paradigms.vertical.plan import plan
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.aggregation import pair_matrix
from veilgraph.privacy.degree import bound_degrees
from veilgraph.privacy.joint import Joint
from veilgraph.privacy.mechanism import Mechanism
from veilgraph.protocol.cut import GRADIENT_BITS
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import Session

_LARGEST_NOISE: Final = 14
"""Standard deviations: no value of ``privacy.noise`` is further out."""


def embedding_to_release(graph: PartyGraph, session: Session) -> Tensor:
    """The rows of the common nodes before they are clipped and noised: Tensor[C, d]."""
    job = session.settings
    edges, weight = released_edges(graph, job)
    adjacency = Adjacency.of_edges(edges, weight, graph.num_nodes, session.dtype)
    projection = random_projection(graph.num_features, vertical(job).model.dim, session.streams, session.dtype)
    projected = project(graph.features, projection)
    return fixed_embedding(projected, adjacency, vertical(job).model, session.streams)[: graph.common]


def released_edges(graph: PartyGraph, job: JobSettings) -> tuple[Tensor, Tensor | None]:
    """The edges that are propagated, and their weights: all, or those that the degree bound keeps.

    With unit ``node-edges`` none is left out, for which no proof holds; ``privacy.degree.too_many_neighbours`` refuses.
    """
    edges, weight, privacy = graph.edge_index, graph.edge_weight, job.privacy
    if privacy is None or privacy.degree_bound is None or privacy.unit == "node-edges":
        return edges, weight
    kept = bound_degrees(edges, graph.num_nodes, privacy.degree_bound)
    return edges[:, kept], None if weight is None else weight[kept]


def sums_to_release(graph: PartyGraph, session: Session) -> tuple[Tensor, csr_array]:
    """Rows of all nodes, each made of its own features, Tensor[N, d], and the pairs over which they are summed.

    Raises:
        ConfigError: the job's noise is not in every hop.
    """
    job = session.settings
    if job.privacy is None or job.privacy.aggregation is None:
        raise ConfigError("privacy.aggregation: the job has none; give it, or release what came of all hops")
    projection = random_projection(graph.num_features, job.privacy.aggregation.dim, session.streams, session.dtype)
    return project(graph.features, projection), pair_matrix(*released_edges(graph, job), graph.num_nodes)


def off_the_ring(job: JobSettings, graph: PartyGraph) -> str:
    """Why rows with a share of a sum's noise are no exact numbers of the ring, a setting first; empty where they are.

    Args:
        job: the job.
        graph: of a holder that releases.
    """
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
    largest = share.clip + _LARGEST_NOISE * math.sqrt(share.variance)
    room = 63 - GUARD_BITS - (joint.holders - 1).bit_length() - math.ceil(math.log2(largest))
    return round(-math.log2(share.cell)), room


def to_length_1(job: JobSettings, nodes: int | None = None) -> Tensor:
    """Tensor[w] float64: what the columns that the label holder gets are multiplied by, so that all rows are alike.

    Own rows may be longer than those that are summed (``hop_sensitivity``), so that the same noise is less to them.

    Args:
        job: of schedule ``once``.
        nodes: common to all holders, where that is known.
    """
    columns, hops = vertical(job).released_dim, None if job.privacy is None else job.privacy.aggregation
    plans = (paradigm_of(job).plan(job, party, nodes) for party in job.publishing)
    own = next((of.own_length for of in plans if of is not None), 0.0)
    each = torch.ones(columns, dtype=torch.float64)
    if hops is not None and own:
        each[: hops.dim] = 1 / own
    return each.repeat(_pieces(job))


def noise_variance(session: Session, nodes: int) -> Tensor:
    """Tensor[w] float64: of the noise in each column that the label holder has, public as job and number of nodes are.

    James-Stein's shrinking is left out of the account: it only ever makes the noise smaller.
    """
    job = session.settings
    plans = [paradigm_of(job).plan(job, party, nodes) for party in job.publishing]
    variances = [of.mechanism("embeddings").variance for of in plans if of is not None and of.multiplier > 0]
    divisor = vertical(job).divisor or 1
    return sum(variances) / _pieces(job) / divisor / divisor * to_length_1(job, nodes).square()


def _pieces(job: JobSettings) -> int:
    """How many holders' rows lie side by side."""
    return 1 if vertical(job).model.combine.linear else len(job.publishing)
