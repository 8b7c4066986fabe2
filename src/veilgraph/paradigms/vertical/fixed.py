"""An embedding without trained weights: what a holder releases once (``privacy.schedule: once``)."""

from __future__ import annotations

import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.nn.local.build import build_local
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.vertical.network import ModelSettings


def random_projection(columns: int, dim: int, streams: LearningStreams, dtype: torch.dtype) -> Tensor:
    """A random orthonormal [F, d] matrix: it keeps lengths and angles, about or, where F ≤ d, exactly.

    Args:
        columns: F.
        dim: d.
        streams: of the party; the same matrix whenever it is made, and independent of all data.
        dtype: of the result.
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

    Args:
        features: Tensor[N, F], dense or sparse_csr.
        projection: Tensor[F, d], in whose dtype it is computed.
    """
    features = features.to(projection.dtype)
    return torch.from_numpy(to_scipy(features) @ projection.numpy()) if is_sparse(features) else features @ projection


def fixed_embedding(
    projected: Tensor, adjacency: Adjacency, settings: ModelSettings, streams: LearningStreams
) -> Tensor:
    """K hops of the job's weightless local model over what was projected; every hop's weights depend on degrees alone.

    Args:
        projected: Tensor[N, d], features times ``random_projection``.
        adjacency: of the holder's own edges, after any bound on the degrees.
        settings: of the model; ``local.model`` is ``appnp``.
        streams: of the party.

    Returns:
        Tensor[N, d], rows of length 1 where ``local.normalize`` says so.
    """
    local = build_local(
        settings.local, settings.dim, 1, last_round=True, streams=streams, round=1, dtype=projected.dtype
    )
    with torch.no_grad():
        embedding: Tensor = local(projected, projected, adjacency, None)
    return embedding
